"""This process: its other threads, and the calling one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma
from machtrace.model.image import ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.targets.inprocess.preload import preload
from machtrace.targets.inprocess.threads import OwnStates, OwnThreads, own_copier, python_name
from machtrace.targets.linux.core_facts import FactsGatherer
from machtrace.targets.linux.identity import read_mappings
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.linux.procfs import ActivityReader, ProcessDirectory, ThreadUse
from machtrace.targets.shared.thread_copy import Activity

if TYPE_CHECKING:
    from machtrace.cpython.runtime import PythonRuntime
    from machtrace.targets.inprocess.series import CaptureSeries
    from machtrace.targets.inprocess.watchdog import OwnWatchdog
    from machtrace.targets.linux.process_polls import ProcessPolls

SERIES_STACK_LIMIT = 1 << 20
"""Bytes copied of each stack: of deeper ones the innermost."""

SERIES_ROOM = 64 << 20
"""Bytes of captures that wait until they are taken."""


class SelfTarget(OwnThreads, LinuxProcessTarget):
    """This process; see :class:`~machtrace.targets.base.Target`.

    Other threads are stopped by a real-time signal, and may see what any handled signal does to
    system calls: those with a time limit, and ``poll``, ``select``, ``epoll_wait``, ``nanosleep``
    and ``sigwait`` in any case, end early with EINTR (signal(7)); others are restarted. Python's
    own functions continue. The calling thread is listed, and copied if it is requested
    for by its id, but not along with all others.

    Raises:
        TargetSpecError: this machine is not supported, or the package was installed without its
            extensions.
    """

    _is_own = True

    def __init__(self) -> None:
        self._own_copier = own_copier()
        preload(ImageFormat.ELF)
        super().__init__(os.getpid(), copier=self._own_copier)

    def _open_directory(self, pid: int) -> ProcessDirectory:
        from machtrace.targets.inprocess.memory import OwnDirectory

        return OwnDirectory(pid)

    def _open_memory(self) -> AbstractContextManager[MemoryReader]:
        from machtrace.targets.inprocess.memory import OwnMemory

        return nullcontext(OwnMemory())

    def _activity_reader(self) -> ActivityReader:
        return _OwnActivity(self._directory)

    def _facts_gatherer(self) -> FactsGatherer:
        from machtrace.targets.inprocess.memory import OwnFacts

        return OwnFacts(self._directory, self._process.arch)

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`; None is all but the calling one.

        Raises:
            TargetError: no signal can be had, or there is no memory to begin.
        """
        return super().snapshot(threads, stack_limit=stack_limit)

    def series(
        self,
        hz: float,
        *,
        stack_limit: int = SERIES_STACK_LIMIT,
        room: int = SERIES_ROOM,
        together: bool = False,
    ) -> CaptureSeries:
        """Capture all threads at a rate from now on, whatever Python's threads do meanwhile.

        A thread without Python captures, so that no Python thread needs its turn for it.

        Args:
            hz: captures a second.
            stack_limit: bytes copied of each stack at most.
            room: bytes of captures that wait to be taken; what finds no room is counted, and lost.
            together: whether no thread resumes before all are copied.

        Raises:
            TargetError: no signal can be had, or there is no memory or thread to begin; or a
                number is none that can be.
        """
        from machtrace.targets.inprocess.series import CaptureSeries, SnapshotMaker

        with self._open_memory() as memory:
            gathered = self._facts.gather(read_mappings(self._directory), memory)
            snapshots = SnapshotMaker(self._directory, self._process, memory, gathered, self._name)
        return CaptureSeries(hz, snapshots, stack_limit=stack_limit, room=room, together=together)

    def watchdog(
        self, limit_ns: int, interval_ns: int, *, record: str | None = None
    ) -> OwnWatchdog:
        """Watch threads of this process from now on, whatever Python's threads do meanwhile.

        Args:
            limit_ns: the time that a watched thread may be busy; 0 to watch scopes alone.
            interval_ns: from poll to poll.
            record: the path of a file that stays readable if this process is killed; see
                :mod:`machtrace.targets.inprocess.watchdog_file`.

        Raises:
            TargetError: no signal can be had, or there is no memory or thread for it.
            FileAccessError: the record cannot be created.
        """
        from machtrace.cpython.layout import HEAD_SIZE
        from machtrace.targets.inprocess.series import SnapshotMaker
        from machtrace.targets.inprocess.watchdog import OwnWatchdog
        from machtrace.targets.inprocess.watchdog_file import stated_process

        head = b""
        with self._open_memory() as memory:
            gathered = self._facts.gather(read_mappings(self._directory), memory)
            runtime = self.python_runtime()
            if runtime is not None:
                head = bytes(memory.read(Avma(runtime.address), HEAD_SIZE))
            snapshots = SnapshotMaker(self._directory, self._process, memory, gathered, self._name)
        return OwnWatchdog(
            limit_ns,
            interval_ns,
            snapshots,
            layout=None if runtime is None else runtime.layout,
            native_layout=b"" if runtime is None else runtime.layout.native(runtime.address),
            record=record,
            info=stated_process(self._process, limit_ns, sys.hexversion, head),
        )

    def process_polls(self) -> ProcessPolls:
        """Return polls of this process, which the caller closes."""
        from machtrace.targets.linux.process_polls import ProcessPolls

        return ProcessPolls(self._directory)

    def _own_snapshot(
        self, threads: Collection[ThreadId] | None = None, *, stack_limit: int
    ) -> Snapshot:
        return self.snapshot(threads, stack_limit=stack_limit)

    def _thread_ids(self) -> Sequence[int]:
        return self._directory.thread_ids()

    def _name(self, thread: int) -> str:
        known = python_name(thread)
        return super()._name(thread) if known is None else known

    def python_runtime(self) -> PythonRuntime | None:
        """Return this process's CPython; None if it cannot be found, or is of an unknown kind."""
        with suppress(MachtraceError), self._open_memory() as memory:
            images = self._images.find(read_mappings(self._directory), memory)
            return self._python_runtime(images, memory)
        return None

    def name_of(self, thread: int) -> str | None:
        """Return the name of a thread; None if it has none, or is gone."""
        return self._name(thread) or None

    def _left_out(self) -> int:
        return threading.get_native_id()


_CPU_CLOCK_OF_THREAD = 0b110
"""``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`` (``include/linux/posix-timers_types.h``)."""


class _OwnActivity(ActivityReader):
    """The activity of this process's threads."""

    def __init__(self, directory: ProcessDirectory) -> None:
        super().__init__(directory)
        self._states = OwnStates()

    def end(self, thread: int) -> Activity:
        state, cpu_ns = super().end(thread)
        return self._states.state(thread, state, cpu_ns, time.monotonic_ns()), cpu_ns

    def _up_to_now(self, thread: int, use: ThreadUse) -> ThreadUse:
        # A signal handler does not end a thread's turn, but the thread's clock shows all of it.
        try:
            return use._replace(cpu_ns=time.clock_gettime_ns(~thread << 3 | _CPU_CLOCK_OF_THREAD))
        except OSError:
            return use
