"""A Linux process that is watched: its waiting threads are copied without a stop."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import FormatError, MachtraceError, TargetAccessError, TargetGoneError
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.polls import IdleRequest, IdleWait, ThreadPoll
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.targets.linux.blocked import copy_waiting
from machtrace.targets.linux.capture import PtraceCopier, ThreadCapture
from machtrace.targets.linux.identity import read_mappings
from machtrace.targets.linux.images import LoadedImages
from machtrace.targets.linux.locks import LinuxLocks
from machtrace.targets.linux.polls import LinuxPolls
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.linux.process_polls import ProcessPolls
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping
from machtrace.targets.shared.thread_copy import ThreadCopier

if TYPE_CHECKING:
    from machtrace.targets.linux.freeze import FreezingCopier

_START_FIELD = 22 - 3
"""``starttime`` in ``stat``, counted from the state (proc(5))."""
_SWITCHES = "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"


class WatchedProcess(LinuxProcessTarget):
    """A process whose threads are polled, and copied without a stop while they wait.

    Raises as :class:`~machtrace.targets.linux.process.LinuxProcessTarget` does, but that a process
    whose memory may not be read is only polled: copies raise TargetAccessError.
    """

    is_local = True
    least_poll_ns = 0

    def __init__(self, pid: int) -> None:
        self._refusal: TargetAccessError | None = None
        try:
            self._own_copier = PtraceCopier()
            super().__init__(pid, copier=self._own_copier)
            read_mappings(self._directory)
        except TargetAccessError as error:
            self._refusal = error
            self._directory = ProcessDirectory(pid)
            arch = Arch.X86_64 if os.uname().machine == "x86_64" else Arch.ARM64
            self._process = ProcessInfo(pid=pid, path="", arch=arch, pointer_mask=PacMask())
            self._freezing = None
        self._polls = LinuxPolls(self._directory, has_calls=self._refusal is None)

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        self._polls.close()
        super().close()

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        if self._refusal is not None:
            return (*self._polls.missing, f"stacks cannot be captured: {self._refusal}")
        if self._freezing is not None and isinstance(self._freezing[1], FormatError):
            return (*self._polls.missing, f"Python functions cannot be read: {self._freezing[1]}")
        return self._polls.missing

    def _snapshot(
        self,
        stack_limit: int,
        choose_copier: Callable[[LoadedImages, MemoryReader], ThreadCopier],
        copy: Callable[[ThreadCapture, Sequence[Mapping]], None],
    ) -> Snapshot:
        if self._refusal is not None:
            raise self._refusal
        return super()._snapshot(stack_limit, choose_copier, copy)

    def poll_thread(self, thread: int, *, with_status: bool) -> ThreadPoll:
        """Poll a thread.

        Raises:
            TargetGoneError, ThreadGoneError: it has exited.
        """
        return self._polls.poll(thread, with_status=with_status)

    def wait_idle(
        self, idle: dict[int, ThreadPoll], request: IdleRequest
    ) -> tuple[IdleWait, dict[int, ThreadPoll]] | None:
        """See :meth:`LinuxPolls.wait_idle`."""
        return self._polls.wait_idle(idle, request)

    def wake(self) -> None:
        """End :meth:`wait_idle`; for other threads."""
        self._polls.wake()

    def forget(self, thread: int) -> None:
        """Close the files of a thread."""
        self._polls.forget(thread)

    def locks(self) -> LinuxLocks:
        """Return the source of lock surveys, which the caller closes."""
        return LinuxLocks()

    @property
    def has_python(self) -> bool:
        """Whether it runs a CPython whose functions can be read; valid after a copy."""
        return self._freezing is not None and not isinstance(self._freezing[1], MachtraceError)

    def program_start(self) -> bytes:
        """Return what changes when the process executes another program; empty if unreadable."""
        try:
            text = self._directory.read(f"task/{self._directory.live_thread()}/auxv")
        except OSError:
            return b""
        return text.encode(errors="surrogateescape")

    def started_ns(self) -> int:
        """Return when the process was started (``CLOCK_MONOTONIC``); now if that is hidden."""
        now_ns, boot_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            text = self._directory.read("stat")
            ticks = int(text[text.rindex(")") + 2 :].split(None, _START_FIELD + 1)[_START_FIELD])
        except (OSError, ValueError):
            return now_ns
        return now_ns - boot_ns + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def process_polls(self) -> ProcessPolls:
        """Return polls of the whole process, which the caller closes."""
        return ProcessPolls(self._directory)

    def thread_ids(self) -> tuple[int, ...]:
        """Return the ids of its threads, the main thread's first.

        Raises:
            TargetGoneError: it has exited.
        """
        return self._directory.thread_ids()

    def thread_info(self, thread: int) -> ThreadInfo:
        """Describe a thread; its index is that in the kernel's list."""
        ids = self._directory.thread_ids()
        index = ids.index(thread) + 1 if thread in ids else 0
        return ThreadInfo(
            id=ThreadId(thread),
            index=index,
            name=self._name(thread) or None,
            is_main=thread == self._directory.pid,
        )

    def copy_stopped(
        self, threads: Collection[ThreadId], /, *, is_traced: bool = False
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Copy ``threads``, which are stopped for that time, and their Python functions.

        Args:
            threads: the threads.
            is_traced: whether the calling OS thread traces all threads of the process; it then has
                to handle the events of those that something else stops meanwhile.

        Raises:
            TargetGoneError, TargetAccessError: see :meth:`snapshot`.
        """
        self._own_copier.is_traced = is_traced
        freezing: FreezingCopier | None = None

        def choose(images: LoadedImages, memory: MemoryReader) -> ThreadCopier:
            # At each copy: a thread that never waits has no other, and CPython may be loaded late.
            nonlocal freezing
            copier = self._freezing_copier(images, memory)
            if isinstance(copier, MachtraceError):
                return self._copier
            freezing = copier
            copier.begin()
            return copier

        snapshot = self._snapshot(
            DEFAULT_STACK_LIMIT,
            choose,
            lambda capture, mappings: self._copy(capture, mappings, threads),
        )
        return (snapshot, {}) if freezing is None else freezing.completed(snapshot)

    def copy_waiting(
        self, threads: Iterable[int], *, stack_limit: int = DEFAULT_STACK_LIMIT
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Copy those of ``threads`` that wait in the kernel, and their Python functions.

        Nothing is stopped. A thread that ran meanwhile is left out: its system call and its number
        of context switches must be the same before and after.

        Raises:
            TargetGoneError: the process exited.
        """
        loaded = LoadedImages()
        runs: dict[ThreadId, PythonRuns] = {}

        def choose(images: LoadedImages, _memory: MemoryReader) -> ThreadCopier:
            nonlocal loaded
            loaded = images
            return self._copier

        def copy(capture: ThreadCapture, mappings: Sequence[Mapping]) -> None:
            for thread in threads:
                waiting = self._waiting(thread, capture, loaded, mappings)
                if waiting is not None:
                    snapshot, functions = waiting
                    capture.found.threads.append(snapshot)
                    if functions:
                        runs[snapshot.info.id] = functions

        return self._snapshot(stack_limit, choose, copy), runs

    def _waiting(
        self,
        thread: int,
        capture: ThreadCapture,
        images: LoadedImages,
        mappings: Sequence[Mapping],
    ) -> tuple[ThreadSnapshot, PythonRuns] | None:
        source, info = capture.source, self.thread_info(thread)
        ends = list(self._ranges_of(mappings)[1::2])

        def range_end(sp: int) -> int:
            upto = bisect_right(ends, sp)
            return ends[upto] if upto < len(ends) else sp

        def read_call() -> str:
            return self._directory.read(f"task/{thread}/syscall")

        try:
            before = read_call(), self._switches(thread)
            copied = copy_waiting(
                info, source.arch, read_call, source.memory, range_end, source.stack_limit
            )
            if copied is None:
                return None
            functions = self._functions(thread, images, source.memory)
            if (read_call(), self._switches(thread)) != before:
                return None
        except TargetGoneError:
            self._directory.live_thread()
            return None
        except OSError:
            return None
        return copied, functions

    def _freezing_copier(
        self, images: LoadedImages, memory: MemoryReader
    ) -> FreezingCopier | MachtraceError:
        copier = super()._freezing_copier(images, memory)
        if not isinstance(copier, MachtraceError):
            copier.is_traced = self._own_copier.is_traced
        return copier

    def _switches(self, thread: int) -> tuple[str, ...]:
        status = self._directory.status(thread)
        return tuple(status.get(name, "") for name in _SWITCHES)

    def _functions(self, thread: int, images: LoadedImages, memory: MemoryReader) -> PythonRuns:
        """Return the Python functions of a thread that does not run; None if it has none."""
        copier = self._freezing_copier(images, memory)
        if isinstance(copier, MachtraceError):
            return None
        from machtrace.cpython.threads import read_threads

        runtime = copier.runtime
        own = self._directory.namespace_ids(thread)[-1]
        # Other threads run, so lists of all threads may change; the chain of this one does not.
        python = read_threads(memory, runtime.address, runtime.layout, only={own})
        return python.functions.get(own)
