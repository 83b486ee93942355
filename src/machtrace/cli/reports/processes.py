"""Processing batches of reports in several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from threading import Thread
from types import FrameType

from machtrace.cli.reports.outputs import Task
from machtrace.errors import MachtraceError
from machtrace.reports.batches import BatchOptions, BatchOutcome, BatchRunner

_TIDYING_S = 10
"""Seconds that a terminated child has to remove its unfinished file."""
_runner: BatchRunner | None = None
"""The runner of this child process."""


def run_in_processes(
    batches: Iterator[list[Task]], options: BatchOptions, processes: int
) -> Generator[BatchOutcome]:
    """Yield the outcomes in the order of the batches; each process caches the images it opened.

    At most one batch more than there are processes is buffered. If the caller stops early, as after
    Ctrl-C, the children end at once and remove unfinished files.

    Raises:
        MachtraceError: a process died.
    """
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _begin, (options, os.getpid())
    )
    waiting: deque[Future[BatchOutcome]] = deque()
    is_done = False
    try:
        for batch in batches:
            with _no_interruption():
                waiting.append(pool.submit(_run, batch))
            if len(waiting) > processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        is_done = True
    except BrokenProcessPool as error:
        raise MachtraceError(
            "a process that named reports died, perhaps for lack of memory", remedy="try --jobs 1"
        ) from error
    finally:
        if not is_done:
            _end_children()
            # Before Python 3.11.5 the pool waits for a thread that writes to a full pipe, which
            # nobody reads any more (cpython issue 94777); without a reader the write fails.
            with suppress(OSError):
                pool._call_queue._reader.close()  # type: ignore[attr-defined]  # noqa: SLF001
        pool.shutdown(wait=True, cancel_futures=True)


def _end_children() -> None:
    """Terminate all children, and kill late ones: shutting the pool down waits for them."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(_TIDYING_S)
        child.kill()


@contextmanager
def _no_interruption() -> Iterator[None]:
    """Block SIGINT, also in children that are started meanwhile: their parent ends them.

    Ignoring it instead would be inherited as well, but a Ctrl-C at this moment would be lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(options: BatchOptions, parent: int) -> None:
    global _runner  # noqa: PLW0603 - a child process reuses it for its batches
    Thread(target=_follow, args=(parent,), daemon=True).start()
    gc.disable()  # garbage is collected after each batch; cached names stay
    _runner = BatchRunner(options)
    # Last: there was nothing to clean up before, and an error here would be reported.
    signal.signal(signal.SIGTERM, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Exit with cleanup: a file that is being written is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)


def _follow(parent: int) -> None:
    """Exit when the parent has ended, for whatever reason."""
    started_by = multiprocessing.parent_process()
    if started_by is not None and started_by.pid == parent:
        started_by.join()
        os._exit(1)


def _run(batch: list[Task]) -> BatchOutcome:
    assert _runner is not None  # noqa: S101 - for the type checker: _begin came first
    try:
        return _runner.run(batch)
    except SystemExit:
        # From :func:`_leave`, after cleanup. The pool would send it to the parent as the outcome
        # and let this process wait for the next batch, with SIGTERM ignored.
        os._exit(1)
