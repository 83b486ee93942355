"""Work that is shared out to several processes, in batches."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from threading import Thread
from types import FrameType
from typing import Any, TypeVar

from machtrace.errors import MachtraceError

_Batch = TypeVar("_Batch")
_Outcome = TypeVar("_Outcome")
_TIDYING_S = 10
"""Seconds that a terminated child has to remove its unfinished file."""
_run_batch: Callable[[Any], Any] | None = None
"""The work of this child process."""


def run_in_processes(
    batches: Iterator[_Batch],
    begin: Callable[[], Callable[[_Batch], _Outcome]],
    processes: int,
) -> Generator[_Outcome]:
    """Yield the outcomes in the order of the batches.

    At most one batch more than there are processes is buffered. If the caller stops early, as after
    Ctrl-C, the children end at once and remove unfinished files.

    Args:
        batches: the work.
        begin: called once in each process; it returns the function that is called with batches.
        processes: how many.

    Raises:
        MachtraceError: a process died.
    """
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _begin, (begin, os.getpid())
    )
    waiting: deque[Future[_Outcome]] = deque()
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
            "a process that shared the work died, perhaps for lack of memory", remedy="try --jobs 1"
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


def _begin(begin: Callable[[], Callable[[Any], Any]], parent: int) -> None:
    global _run_batch  # noqa: PLW0603 - a child process reuses it for its batches
    Thread(target=_follow, args=(parent,), daemon=True).start()
    gc.disable()  # garbage is collected after each batch; cached names stay
    _run_batch = begin()
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


def _run(batch: Any) -> Any:  # noqa: ANN401 - of the type that the caller stated
    assert _run_batch is not None  # noqa: S101 - for the type checker: _begin came first
    try:
        return _run_batch(batch)
    except SystemExit:
        # From :func:`_leave`, after cleanup. The pool would send it to the parent as the outcome
        # and let this process wait for the next batch, with SIGTERM ignored.
        os._exit(1)
