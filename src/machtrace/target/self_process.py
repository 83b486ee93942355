"""This process: its other threads, and the calling one."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from machtrace.errors import TargetSpecError
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Snapshot
from machtrace.model.thread import ThreadId
from machtrace.target.base import DEFAULT_STACK_LIMIT
from machtrace.target.linux_facts import FactsGatherer
from machtrace.target.linux_identity import read_mappings
from machtrace.target.linux_process import LinuxProcessTarget
from machtrace.target.linux_procfs import ProcessDirectory
from machtrace.target.python_runs import PythonRuns, python_runs

if TYPE_CHECKING:
    from machtrace.target.self_copier import SignalCopier
    from machtrace.target.self_series import CaptureSeries

SERIES_STACK_LIMIT = 1 << 20
"""Bytes copied of each stack: of deeper ones the innermost."""

SERIES_ROOM = 64 << 20
"""Bytes of captures that wait until they are taken."""

ThreadLike = threading.Thread | int | str | None
"""A thread of this process: the object, its native id or its pthread, ``main``, ``#N`` or a name;
None is the calling thread."""


class SelfTarget(LinuxProcessTarget):
    """This process; see :class:`~machtrace.target.base.Target`.

    Other threads are stopped by a real-time signal, and may see what any handled signal does to
    system calls: those with a time limit, and ``poll``, ``select``, ``epoll_wait``, ``nanosleep``
    and ``sigwait`` in any case, end early with EINTR (signal(7)); others are restarted. Python's
    own functions go on by themselves. The calling thread is listed, and copied where it is asked
    for by its id, but not along with all others.

    Raises:
        TargetSpecError: this machine is not supported, or the package was installed without its
            extensions.
    """

    _is_own = True

    def __init__(self) -> None:
        self._own_copier = _signal_copier()
        super().__init__(os.getpid(), copier=self._own_copier)

    def _open_directory(self, pid: int) -> ProcessDirectory:
        from machtrace.target.self_directory import OwnDirectory

        return OwnDirectory(pid)

    def _open_memory(self) -> AbstractContextManager[MemoryReader]:
        from machtrace.target.self_directory import OwnMemory

        return nullcontext(OwnMemory())

    def _facts_gatherer(self) -> FactsGatherer:
        from machtrace.target.self_directory import OwnFacts

        return OwnFacts(self._directory, self._process.arch)

    def python_threads(self) -> dict[ThreadId, threading.Thread]:
        """The threads that Python's ``threading`` knows, by id."""
        return {
            ThreadId(thread.native_id): thread
            for thread in threading.enumerate()
            if thread.native_id is not None
        }

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.target.base.Target.snapshot`; None is all but the calling one.

        Raises:
            TargetError: no signal can be had, or there is no memory to begin.
        """
        return super().snapshot(threads, stack_limit=stack_limit)

    @staticmethod
    def own_code() -> range:
        """Where the extension is that copies the calling thread: its innermost frames are there."""
        from machtrace._native import _self

        return range(*_self.own_image())

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """:meth:`snapshot`, and of each thread the Python functions that it was in just then.

        The interpreter's lock is kept meanwhile: threads stand at a place where they have given it
        up or wait for it. Without such a lock (free-threaded builds) both are of moments that
        follow one another, and what runs in between may be in one of them only.
        """
        copier = self._own_copier
        copier.with_python = True
        try:
            found = self.snapshot(threads, stack_limit=stack_limit)
        finally:
            copier.with_python = False
        runs = {
            ThreadId(thread): python_runs(copier.python[pthread])
            for pthread, thread in copier.pthreads.items()
            if pthread in copier.python
        }
        return found, runs

    def series(
        self,
        hz: float,
        *,
        stack_limit: int = SERIES_STACK_LIMIT,
        room: int = SERIES_ROOM,
        together: bool = False,
    ) -> CaptureSeries:
        """Capture all threads at a rate from now on, whatever Python's threads do meanwhile.

        A thread without Python captures, so that none of theirs needs its turn for it; whoever has
        one takes what was captured.

        Args:
            hz: captures a second.
            stack_limit: bytes copied of each stack at most.
            room: bytes of captures that wait to be taken; what finds no room is counted, and lost.
            together: whether no thread goes on before all are copied.

        Raises:
            TargetError: no signal can be had, or there is no memory or thread to begin; or a
                number is none that can be.
        """
        from machtrace.target.self_series import CaptureSeries, SnapshotMaker

        with self._open_memory() as memory:
            gathered = self._facts.gather(read_mappings(self._directory), memory)
            snapshots = SnapshotMaker(self._directory, self._process, memory, gathered, self._name)
        return CaptureSeries(hz, snapshots, stack_limit=stack_limit, room=room, together=together)

    def thread_id(self, thread: ThreadLike) -> ThreadId:
        """Which thread is meant.

        Raises:
            TargetSpecError: none answers to it.
        """
        if thread is None:
            return ThreadId(threading.get_native_id())
        if isinstance(thread, threading.Thread):
            if thread.native_id is None or not thread.is_alive():
                raise TargetSpecError(
                    f"thread {thread.name} does not run", remedy="give a thread that was started"
                )
            return ThreadId(thread.native_id)
        if isinstance(thread, int) and not isinstance(thread, bool):
            return self._by_number(thread)
        raise TargetSpecError(
            f"a thread is not named by {thread!r}",
            remedy="give a threading.Thread, a native id, a pthread, main, or a name",
        )

    def _by_number(self, number: int) -> ThreadId:
        ids = self._directory.thread_ids()
        if number in ids:
            return ThreadId(number)
        for thread in threading.enumerate():
            if thread.ident == number and thread.native_id is not None:
                return ThreadId(thread.native_id)
        # Python does not know it; each thread knows its own when it copies itself.
        super().snapshot(stack_limit=0)
        found = self._own_copier.pthreads.get(number)
        if found is None:
            raise TargetSpecError(
                f"no thread of this process has the id {number}",
                remedy="give a native id or pthread of a thread that runs",
            )
        return ThreadId(found)

    def _name(self, thread: int) -> str:
        known = next((one for one in threading.enumerate() if one.native_id == thread), None)
        return super()._name(thread) if known is None else known.name

    def _left_out(self) -> int:
        return threading.get_native_id()


def _signal_copier() -> SignalCopier:
    try:
        from machtrace.target.self_copier import SignalCopier
    except ImportError as error:
        raise TargetSpecError(
            "threads of this process are copied by the extension _self, which is not here",
            remedy="install machtrace where there is a C compiler, or from a wheel",
        ) from error
    return SignalCopier()
