"""Threads of this process by whatever names them, and the Python functions that they run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from machtrace.cpython.runs import PythonRuns, python_runs
from machtrace.errors import TargetSpecError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadState
from machtrace.targets.base import Target

if TYPE_CHECKING:
    from machtrace.targets.inprocess.copier import SignalCopier

ThreadLike = threading.Thread | int | str | None
"""A thread of this process: the object, its native id or its pthread, ``main``, ``#N`` or a name;
None is the calling thread."""

_MAX_LENGTH = 80
"""Characters of an invalid thread in a message."""


class OwnTarget(Target, Protocol):
    """The additional interface of targets of this process, on every system."""

    def python_threads(self) -> dict[ThreadId, threading.Thread]:
        """See :meth:`OwnThreads.python_threads`."""
        ...

    def own_code(self) -> range:
        """See :meth:`OwnThreads.own_code`."""
        ...

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """See :meth:`OwnThreads.snapshot_with_python`."""
        ...

    def thread_id(self, thread: ThreadLike) -> ThreadId:
        """See :meth:`OwnThreads.thread_id`."""
        ...


class OwnThreads(ABC):
    """The part of a target of this process that is the same on every system."""

    _own_copier: SignalCopier

    @abstractmethod
    def _own_snapshot(
        self, threads: Collection[ThreadId] | None = None, *, stack_limit: int
    ) -> Snapshot:
        """Take a snapshot, as the target's ``snapshot``."""

    @abstractmethod
    def _thread_ids(self) -> Sequence[int]:
        """Return the ids of all threads, in the kernel's order."""

    def python_threads(self) -> dict[ThreadId, threading.Thread]:
        """Return the threads that Python's ``threading`` knows, by id."""
        return {
            ThreadId(thread.native_id): thread
            for thread in threading.enumerate()
            if thread.native_id is not None
        }

    @staticmethod
    def own_code() -> range:
        """Return the extension's address range: the calling thread's innermost frames are in it."""
        from machtrace._native import _inprocess

        return range(*_inprocess.own_image())

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """:meth:`snapshot`, and of each thread the Python functions that it was in just then.

        The interpreter's lock is held meanwhile: threads are at points where they have released it
        up or wait for it. Without such a lock (free-threaded builds) both are of moments that
        follow one another, and what runs in between may be in one of them only.
        """
        copier = self._own_copier
        copier.with_python = True
        try:
            snapshot = self._own_snapshot(threads, stack_limit=stack_limit if stacks else 0)
        finally:
            copier.with_python = False
        runs = {
            ThreadId(thread): python_runs(copier.python[pthread])
            for pthread, thread in copier.pthreads.items()
            if pthread in copier.python
        }
        return snapshot, runs

    def thread_id(self, thread: ThreadLike) -> ThreadId:
        """Return the id of the thread that ``thread`` names.

        Raises:
            TargetSpecError: none answers to it.
        """
        if thread is None:
            return ThreadId(threading.get_native_id())
        if isinstance(thread, threading.Thread):
            if thread.native_id is None or not thread.is_alive():
                raise TargetSpecError(
                    f"thread {thread.name} is not running", remedy="pass a thread that was started"
                )
            return ThreadId(thread.native_id)
        if isinstance(thread, int) and not isinstance(thread, bool):
            return self._by_number(thread)
        raise TargetSpecError(
            f"invalid thread: {_described(thread)}",
            remedy="pass a threading.Thread, a native id, a pthread, main, or a name",
        )

    def _by_number(self, number: int) -> ThreadId:
        if number in self._thread_ids():
            return ThreadId(number)
        for thread in threading.enumerate():
            if thread.ident == number and thread.native_id is not None:
                return ThreadId(thread.native_id)
        # Python does not know it; each thread knows its own when it copies itself.
        self._own_snapshot(stack_limit=0)
        native_id = self._own_copier.pthreads.get(number)
        if native_id is None:
            raise TargetSpecError(
                f"no thread of this process has the id {number}",
                remedy="pass the native id or pthread of a running thread",
            )
        return ThreadId(native_id)


_RUNNING_SHARE = 0.1


class OwnStates:
    """States of this process's threads, less the waits that captures cause.

    A capture from Python code has the interpreter's lock, and Python threads that would run wait
    for it. So a waiting thread counts as running if it used a tenth of the time since its previous
    capture.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """Each thread's time and processor time at its last capture."""

    def state(
        self, thread: int, state: ThreadState | None, cpu_ns: int | None, now_ns: int
    ) -> ThreadState | None:
        """Return the state, given the kernel's, the processor time and a monotonic clock's."""
        if cpu_ns is None:
            return state
        time_ns, last_ns = self._last.get(thread, (now_ns, cpu_ns))
        self._last[thread] = now_ns, cpu_ns
        ran = cpu_ns - last_ns >= max(1, (now_ns - time_ns) * _RUNNING_SHARE)
        return ThreadState.RUNNING if ran and state is ThreadState.SLEEPING else state


def python_name(thread: int) -> str | None:
    """Return Python's name of the thread with a native id; None if Python does not know it."""
    return next((one.name for one in threading.enumerate() if one.native_id == thread), None)


def own_copier() -> SignalCopier:
    """Return a copier of this process's threads.

    Raises:
        TargetSpecError: the package was installed without its extensions.
    """
    try:
        from machtrace.targets.inprocess.copier import SignalCopier
    except ImportError as error:
        raise TargetSpecError(
            "machtrace was installed without its extension _inprocess, which copies own threads",
            remedy="install a wheel of machtrace, or build it with a C compiler",
        ) from error
    return SignalCopier()


def _described(value: object) -> str:
    """Describe an invalid argument briefly."""
    if isinstance(value, str | bytes | int | float | None):
        text = repr(value)
        return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    return f"an object of {type(value).__name__}"
