"""A process that reads reports: one that crashes on a report, or takes too long, is replaced.

The process gets batches of records through a pipe and returns their segments. When it ends early,
the records of its batch are read one by one, so that the one that ended it goes to quarantine.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from machtrace.warehouse.builder import SegmentBuilder
from machtrace.warehouse.ingest import BatchOutcome, LogRecord, read_batch
from machtrace.warehouse.manifest import Quarantined


class ReaderProcess:
    """Reads batches in another process, which starts when it is needed."""

    def __init__(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Start nothing yet.

        Args:
            seconds: the time for a batch, and for a record that is read alone.
            is_over: whether to read no further batch.
        """
        self._seconds = seconds
        self._is_over = is_over
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.restarts = 0
        """Processes that ended early."""

    def run(self, batches: Iterator[list[LogRecord]]) -> Iterator[BatchOutcome]:
        """Yield the outcome of each batch, in order; none after it is over."""
        for batch in batches:
            if self._is_over():
                return
            outcome = self._read(batch)
            if isinstance(outcome, BatchOutcome):
                yield outcome
                continue
            for record in batch:
                if self._is_over():
                    return
                yield self._read_alone(record)

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        self._pipe, self._process = None, None

    def _read_alone(self, record: LogRecord) -> BatchOutcome:
        outcome = self._read([record])
        return outcome if isinstance(outcome, BatchOutcome) else _refused(record, outcome)

    def _read(self, batch: Sequence[LogRecord]) -> BatchOutcome | str:
        """Return an outcome, or why the process ended."""
        pipe = self._pipe or self._start()
        reason = "its reader crashed"
        with suppress(EOFError, OSError):
            pipe.send(batch)
            if pipe.poll(self._seconds):
                outcome: BatchOutcome = pipe.recv()
                return outcome
            reason = f"its reader takes longer than {self._seconds:g} seconds"
        self.close()
        self.restarts += 1
        return reason

    def _start(self) -> Connection:
        context = get_context("spawn")  # a fork of a process with threads may hold their locks
        own, others = context.Pipe()
        process = context.Process(target=_serve, args=(others,), name="machtrace-reader")
        process.start()
        others.close()  # so that its end is seen
        self._process, self._pipe = process, own
        return own


def _serve(pipe: Connection) -> None:
    """Read batches until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the server, which closes the pipe
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(read_batch(pipe.recv()))


def _refused(record: LogRecord, reason: str) -> BatchOutcome:
    """Return the outcome of a record that nothing can read."""
    log, body = record
    row = Quarantined(log, body.offset, "", reason)
    return BatchOutcome(SegmentBuilder().build(), 1, 0, {log: body.end}, [row])
