"""A process that reads reports: one that crashes on a report, or takes too long, is replaced.

The process gets batches of records through a pipe and returns their segments. When it ends early,
the records of its batch are read one by one, so that the one that ended it goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from machtrace.server.worker_process import WorkerEndedError, WorkerProcess, tasks
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
        self._worker = WorkerProcess("machtrace-reader", _serve)
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
        self._worker.close()

    def _read_alone(self, record: LogRecord) -> BatchOutcome:
        outcome = self._read([record])
        return outcome if isinstance(outcome, BatchOutcome) else _refused(record, outcome)

    def _read(self, batch: Sequence[LogRecord]) -> BatchOutcome | str:
        """Return an outcome, or why the process ended."""
        try:
            outcome: BatchOutcome = self._worker.run(batch, self._seconds)
        except WorkerEndedError as error:
            self.restarts += 1
            if error.is_late:
                return f"its reader takes longer than {self._seconds:g} seconds"
            return "its reader crashed"
        return outcome


def _serve(pipe: Connection) -> None:
    """Read batches until the pipe is closed."""
    with suppress(OSError):
        for batch in tasks(pipe):
            pipe.send(read_batch(batch))


def _refused(record: LogRecord, reason: str) -> BatchOutcome:
    """Return the outcome of a record that nothing can read."""
    log, body = record
    row = Quarantined(log, body.offset, "", reason)
    return BatchOutcome(SegmentBuilder().build(), 1, 0, {log: body.end}, [row])
