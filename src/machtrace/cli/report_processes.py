"""Batches of reports in several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from machtrace.capture.report_batches import BatchOptions, BatchOutcome, BatchRunner
from machtrace.errors import MachtraceError
from machtrace.report.inputs import ReportInput

Batch = Sequence[tuple[ReportInput, str | None]]

_runner: BatchRunner | None = None
"""Of a child process."""


def run_in_processes(
    batches: Sequence[Batch], options: BatchOptions, processes: int
) -> Iterator[BatchOutcome]:
    """The outcomes, in the order of the batches; each process keeps the images that it opened.

    Raises:
        MachtraceError: a process died.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _begin, (options,))
    try:
        futures: list[Future[BatchOutcome]] = [pool.submit(_run, batch) for batch in batches]
        for future in futures:
            wait([future], return_when=FIRST_COMPLETED)
            yield future.result()
    except BrokenProcessPool as error:
        raise MachtraceError(
            "a process that named reports died", remedy="try --jobs 1; it may lack memory"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(options: BatchOptions) -> None:
    global _runner  # noqa: PLW0603 - what a child process keeps between its batches
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    _runner = BatchRunner(options)


def _run(batch: Batch) -> BatchOutcome:
    assert _runner is not None  # noqa: S101 - for the type checker: _begin came first
    return _runner.run(batch)
