"""A process of macOS that is watched: its threads are polled without a stop.

Never run on a Mac. A waiting thread's registers are read by ``thread_get_state``, and its stack
copied, while it is not suspended; both count only if it did not run meanwhile: its state and its
processor time, in microseconds, are the same before and after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from errno import ESRCH

from machtrace.clocks import boot_ns
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import (
    MachtraceError,
    TargetAccessError,
    TargetGoneError,
    ThreadGoneError,
)
from machtrace.formats.macho.thread_state import (
    ARM_THREAD_STATE64,
    X86_THREAD_STATE64,
    read_native_state,
)
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.polls import (
    UNKNOWN_CALL,
    IdleRequest,
    MemoryLimit,
    ProcessPoll,
    SystemCall,
    ThreadCount,
    ThreadPoll,
)
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadInfo, ThreadState
from machtrace.targets.darwin.copier import DarwinCopies
from machtrace.targets.darwin.extension import TaskExtension
from machtrace.targets.darwin.libproc import (
    PIDT_SHORTBSDINFO,
    PIDTHREADID64INFO,
    PIDTHREADINFO,
    SHORT_INFO_SIZE,
    THREAD_INFO_SIZE,
    Libproc,
    ProcessState,
    ThreadFacts,
    Usage,
    list_handles,
    parse_process,
    parse_thread,
    parse_usage,
)
from machtrace.targets.darwin.task import DarwinTaskTarget
from machtrace.targets.shared.thread_copy import (
    CaptureFailure,
    CopiedThread,
    ThreadCopy,
    UncopiedThread,
)

_ARM64_STATE_SIZE, _X86_64_STATE_SIZE = 272, 168
_RED_ZONE = 128
_WAITS = (ThreadState.SLEEPING, ThreadState.UNINTERRUPTIBLE)


class WatchedTask(DarwinTaskTarget):
    """A process by its id whose threads are polled.

    Without the right to its task port it is only polled: copies raise TargetAccessError, and
    threads have the ids that libproc lists.

    Args:
        pid: its id.
        extension: what talks to the kernel; by default the one that is installed.
        libproc: what polls; by default this Mac's.

    Raises:
        TargetSpecError, TargetGoneError, TargetAccessError: see
            :class:`~machtrace.targets.darwin.task.DarwinTaskTarget`.
    """

    is_local = True
    has_python = False
    least_poll_ns = 0

    def __init__(
        self, pid: int, *, extension: TaskExtension | None = None, libproc: Libproc | None = None
    ) -> None:
        self._refusal: TargetAccessError | None = None
        self._libproc = Libproc() if libproc is None else libproc
        self._ports: dict[int, int] = {}
        self._waits: dict[int, tuple[ThreadFacts, SystemCall]] = {}
        """The last wait of a thread."""
        try:
            super().__init__(pid, extension=extension)
        except TargetAccessError as error:
            list_handles(self._libproc, pid)  # raises if nothing can be polled
            self._refusal = error

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        self._release_ports()
        super().close()

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        sentences = (
            "deadlocks and crashes of processes of macOS are not watched",
            "hangs are likely, never certain: macOS counts no context switches of a thread",
        )
        if self._refusal is None:
            return sentences
        return (
            *sentences,
            f"stacks cannot be captured: {self._refusal}",
            "blocked threads are not reported: their waits cannot be distinguished",
        )

    # --- polls ---

    def poll_thread(self, thread: int, *, with_status: bool) -> ThreadPoll:
        """Poll a thread.

        Raises:
            TargetGoneError, ThreadGoneError: it has exited.
        """
        at_ns, now_ns = time.monotonic_ns(), boot_ns()
        facts = self.thread_facts(thread)
        is_running: bool | None = facts.state is ThreadState.RUNNING
        call = self._call(thread, facts)
        if call is None and not is_running and self._refusal is not None:
            is_running = None
        poll = ThreadPoll(at_ns, now_ns, is_running, call, facts.cpu_ns, state=facts.letter)
        if not with_status:
            return poll
        process = self._process_state()
        letter = facts.letter
        if process.is_stopped:
            letter = "T"
        if letter == "T" and process.is_traced:
            letter = "t"
        return poll._replace(state=letter, tracer=process.parent if process.is_traced else 0)

    def thread_facts(self, thread: int) -> ThreadFacts:
        """Read a thread's facts. Raises as :meth:`poll_thread` does."""
        flavor = PIDTHREADID64INFO if self._refusal is None else PIDTHREADINFO
        try:
            data = self._libproc.pid_info(self._pid, flavor, thread, THREAD_INFO_SIZE)
        except OSError:
            self._process_state()  # raises if the process has exited
            raise ThreadGoneError(f"thread {thread} has exited", thread=thread) from None
        return parse_thread(data)

    def _call(self, thread: int, facts: ThreadFacts) -> SystemCall | None:
        """Return the wait of a thread; None if it runs, is stopped, or did not stay there."""
        if facts.state not in _WAITS or self._refusal is not None:
            self._waits.pop(thread, None)
            return None
        last = self._waits.get(thread)
        if last is not None and last[0] == facts:
            return last[1]  # it did not run
        state = self.read_registers(thread)
        if not state or self.thread_facts(thread) != facts:
            return None
        registers = read_native_state(
            state, self.process.arch, self.process.pointer_mask, f"thread {thread}"
        )
        call = SystemCall(UNKNOWN_CALL, (), Avma(registers.sp or 0), registers.pc)
        self._waits[thread] = facts, call
        return call

    def read_registers(self, thread: int) -> bytes:
        """Read the registers of a thread that waits; empty if it has exited."""
        port = self._ports.get(thread)
        if port is None:
            self._release_ports()
            self._ports = self._libproc.thread_ports(self._port)
            port = self._ports.get(thread)
        if port is None:
            return b""
        if self.process.arch.is_arm64:
            return self._libproc.registers(port, ARM_THREAD_STATE64, _ARM64_STATE_SIZE)
        return self._libproc.registers(port, X86_THREAD_STATE64, _X86_64_STATE_SIZE)

    def _release_ports(self) -> None:
        for port in self._ports.values():
            self._libproc.release(port)
        self._ports = {}

    def _process_state(self) -> ProcessState:
        try:
            data = self._libproc.pid_info(self._pid, PIDT_SHORTBSDINFO, 0, SHORT_INFO_SIZE)
        except OSError as error:
            if error.errno == ESRCH:
                raise self._gone() from None
            return ProcessState(0, is_stopped=False, is_zombie=False, is_traced=False)
        state = parse_process(data)
        if state.is_zombie:
            raise self._gone()
        return state

    def _gone(self) -> TargetGoneError:
        return TargetGoneError(f"process {self._pid} has exited", pid=self._pid)

    def wait_idle(self, idle: dict[int, ThreadPoll], request: IdleRequest) -> None:
        """Return None: there is no wait of this kind."""

    def wake(self) -> None:
        """Do nothing: nothing waits."""

    def forget(self, thread: int) -> None:
        """Drop what is known of a thread that has exited."""
        self._waits.pop(thread, None)

    def usage(self) -> Usage:
        """Read what the process has used so far.

        Raises:
            TargetGoneError: it has exited.
        """
        try:
            data = self._libproc.usage(self._pid)
        except OSError as error:
            self._process_state()
            raise TargetAccessError(
                f"the usage of process {self._pid} is hidden",
                pid=self._pid,
                errno=error.errno or ESRCH,
                remedy="run as its user, or as root",
            ) from None
        return parse_usage(data, self._libproc.timebase)

    def process_polls(self) -> TaskPolls:
        """Return polls of the whole process."""
        return TaskPolls(self)

    def locks(self) -> None:
        """Return no source of lock surveys."""

    def program_start(self) -> bytes:
        """Return the program's UUID, which changes when the process executes another one."""
        return self.usage().program

    def started_ns(self) -> int:
        """Return when the process was started (``CLOCK_MONOTONIC``)."""
        return self.usage().started_ns

    # --- threads and copies ---

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads."""
        if self._refusal is None:
            return super().threads()
        self._process_state()
        infos: list[ThreadInfo] = []
        for index, thread in enumerate(list_handles(self._libproc, self._pid), 1):
            try:
                name = self.thread_facts(thread).name or None
            except ThreadGoneError:
                continue
            infos.append(
                ThreadInfo(id=ThreadId(thread), index=index, name=name, is_main=index == 1)
            )
        return tuple(infos)

    def thread_ids(self) -> tuple[int, ...]:
        """Return the ids of its threads, the main thread's first."""
        infos = sorted(self.threads(), key=lambda info: not info.is_main)
        return tuple(info.id for info in infos)

    def thread_info(self, thread: int) -> ThreadInfo:
        """Describe a thread."""
        unknown = ThreadInfo(id=ThreadId(thread), index=0)
        return next((info for info in self.threads() if info.id == thread), unknown)

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`."""
        if self._refusal is not None:
            raise self._refusal
        return super().snapshot(threads, stack_limit=stack_limit)

    def copy_stopped(
        self,
        threads: Collection[ThreadId],
        /,
        *,
        is_traced: bool = False,  # noqa: ARG002 - by this watcher, on Linux
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Copy threads, which are suspended for that time; Python functions are not read."""
        return self.snapshot(threads), {}

    def copy_waiting(
        self, threads: Iterable[int], /
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Copy those of ``threads`` that wait, without a stop."""
        wanted = [ThreadId(thread) for thread in threads]
        copier, self._copier = self._copier, _WaitingCopier(self)
        try:
            return self.snapshot(wanted), {}
        finally:
            self._copier = copier

    def read_stack(self, sp: int, limit: int) -> MemoryRegion:
        """Read the stack that a stack pointer is in, up to ``limit`` bytes."""
        result, start, size, *_ = self._extension.find_region(self._port, sp)
        below = max(start, sp - _RED_ZONE)
        if result or not start <= sp < start + size:
            return MemoryRegion(Avma(sp), b"")
        count = min(start + size - below, limit + sp - below)
        (data,) = self._extension.read_memory(self._port, [(below, count)])
        return MemoryRegion(Avma(below), data)


class _WaitingCopier:
    """Copies threads that wait, and do not run meanwhile; see :class:`DarwinCopier`."""

    def __init__(self, task: WatchedTask) -> None:
        self._task = task

    def copy(self, threads: Collection[int], *, stack_limit: int) -> DarwinCopies:
        return DarwinCopies([self._copied(thread, stack_limit) for thread in threads], {})

    def _copied(self, thread: int, limit: int) -> ThreadCopy:
        task = self._task
        try:
            facts = task.thread_facts(thread)
            state = task.read_registers(thread) if facts.state in _WAITS else b""
            if state:
                process = task.process
                registers = read_native_state(state, process.arch, process.pointer_mask, "thread")
                stack = task.read_stack(registers.sp or 0, limit)
                if task.thread_facts(thread) == facts:
                    return CopiedThread(
                        id=thread,
                        registers=state,
                        stacks=(stack,),
                        taken_at_ns=time.monotonic_ns(),
                        stopped_for_ns=0,
                    )
        except ThreadGoneError:
            return UncopiedThread(id=thread, why=CaptureFailure.GONE, errno=0)
        return UncopiedThread(id=thread, why=CaptureFailure.REFUSED, errno=0)


class TaskPolls:
    """Polls of a process as a whole.

    Args:
        task: the process's; its owner closes it.
    """

    def __init__(self, task: WatchedTask) -> None:
        self._task = task

    def poll(self, *, with_threads: bool) -> ProcessPoll:
        """Poll the process, and its threads' counts if they are requested.

        Raises:
            TargetGoneError: it has exited.
        """
        at_ns, now_ns, usage = time.monotonic_ns(), boot_ns(), self._task.usage()
        poll = ProcessPoll(at_ns, now_ns, usage.footprint, None, usage.cpu_ns)
        return poll._replace(threads=self.counts(self._task.thread_ids())) if with_threads else poll

    def counts(self, threads: Iterable[int]) -> dict[int, ThreadCount]:
        """Return the counts of those of ``threads`` that have not exited."""
        counts: dict[int, ThreadCount] = {}
        for thread in threads:
            try:
                counts[thread] = ThreadCount(self._task.thread_facts(thread).cpu_ns, None)
            except MachtraceError:
                continue
        return counts

    def limit(self) -> MemoryLimit:
        """Return the machine's memory: macOS has no limit of a process's footprint."""
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return MemoryLimit(size, "physical memory")

    def oom_kills(self) -> None:
        """Return None: macOS has no such count."""

    def memory_details(self) -> dict[str, int]:
        """Return the kinds of its memory in bytes."""
        usage = self._task.usage()
        return {"resident_bytes": usage.resident, "most_footprint_bytes": usage.most_footprint}

    def close(self) -> None:
        """Do nothing: the task is closed by its owner."""
