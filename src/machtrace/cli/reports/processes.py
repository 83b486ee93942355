"""Batches of reports in several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread
from types import FrameType

from machtrace.cli.reports.outputs import Task
from machtrace.errors import MachtraceError
from machtrace.reports.batches import BatchOptions, BatchOutcome, BatchRunner

_TIDYING_S = 10
"""How long a child that is to end may take to remove what it was writing."""
_runner: BatchRunner | None = None
"""The runner of this child process."""


def run_in_processes(
    batches: Iterator[list[Task]], options: BatchOptions, processes: int
) -> Generator[BatchOutcome]:
    """The outcomes, in the order of the batches; each process keeps the images that it opened.

    At most one batch more than there are processes is held here. When it is left early, as by
    Ctrl-C, the children end at once, and leave no file half written.

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
        pool.shutdown(wait=True, cancel_futures=True)


def _end_children() -> None:
    """Terminate all, and kill what has not ended in time: shutting the pool down waits for them."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(_TIDYING_S)
        child.kill()


@contextmanager
def _no_interruption() -> Iterator[None]:
    """SIGINT waits here; and children that are started here never get it: their parent ends them.

    It is not ignored, which children would inherit as well, since one in this moment would be lost.
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
    """End through everything that tidies up: a file that is being written is taken away."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)


def _follow(parent: int) -> None:
    """End this process with the one that started it, however that ends."""
    started_by = multiprocessing.parent_process()
    if started_by is not None and started_by.pid == parent:
        started_by.join()
        os._exit(1)


def _run(batch: list[Task]) -> BatchOutcome:
    assert _runner is not None  # noqa: S101 - for the type checker: _begin came first
    try:
        return _runner.run(batch)
    except SystemExit:
        # From :func:`_leave`, and all is tidied up. The pool would send it to the parent as outcome
        # and let this process wait for the next batch, deaf to a second SIGTERM.
        os._exit(1)
