"""Targets that can be watched, as the watcher drives them, and how one is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import TargetSpecError
from machtrace.model.polls import (
    IdleRequest,
    IdleWait,
    MemoryLimit,
    ProcessPoll,
    ThreadCount,
    ThreadPoll,
)
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo
from machtrace.targets.open import System, this_system

if TYPE_CHECKING:
    from machtrace.targets.linux.locks import LinuxLocks
    from machtrace.watching.thresholds import WatchOptions

_GDB, _DEVICE, _FRIDA = "gdb://", "device://", "frida://"
REMOTE = (_GDB, _DEVICE, _FRIDA)
"""Prefixes of specs other than processes of this machine."""


class PolledProcess(Protocol):
    """The polls of a process as a whole. Facts that a system hides are None, 0 or empty."""

    def poll(self, *, with_threads: bool) -> ProcessPoll:
        """Poll it, and its threads' counts if they are requested.

        Raises:
            TargetGoneError: it has exited.
        """
        ...

    def counts(self, threads: Iterable[int]) -> Mapping[int, ThreadCount]:
        """Return the counts of those of ``threads`` that have not exited."""
        ...

    def limit(self) -> MemoryLimit | None:
        """Return the limit of its memory; None if it has none, or it is unknown."""
        ...

    def oom_kills(self) -> int | None:
        """Return how many processes of its control group the kernel killed for memory."""
        ...

    def memory_details(self) -> Mapping[str, int]:
        """Return the kinds of its memory in bytes."""
        ...

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        ...


class WatchedTarget(Protocol):
    """A running process that can be polled, and whose threads can be copied.

    Every method may raise :class:`~machtrace.errors.TargetGoneError`: the process has exited.
    """

    @property
    def process(self) -> ProcessInfo:
        """The process's id and architecture."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, whose load is its own."""
        ...

    @property
    def least_poll_ns(self) -> int:
        """The least time between two polls of a thread, where a poll costs a stop; else 0."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that polls cannot determine, and why; a sentence each."""
        ...

    @property
    def has_python(self) -> bool:
        """Whether Python functions can be read; valid after a copy."""
        ...

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads."""
        ...

    def thread_ids(self) -> tuple[int, ...]:
        """Return the ids of its threads."""
        ...

    def thread_info(self, thread: int) -> ThreadInfo:
        """Describe a thread."""
        ...

    def poll_thread(self, thread: int, *, with_status: bool) -> ThreadPoll:
        """Poll a thread without a stop.

        Raises:
            ThreadGoneError: it has exited.
        """
        ...

    def wait_idle(
        self, idle: dict[int, ThreadPoll], request: IdleRequest
    ) -> tuple[IdleWait, Mapping[int, ThreadPoll]] | None:
        """Poll threads until one is elsewhere than at its poll in ``idle``.

        Returns:
            The outcome, and the last poll of each thread at which all were idle; None if the target
            has no cheaper way than :meth:`poll_thread`.
        """
        ...

    def wake(self) -> None:
        """End :meth:`wait_idle`; for other threads."""
        ...

    def forget(self, thread: int) -> None:
        """Release what polls of a thread retain."""
        ...

    def process_polls(self) -> PolledProcess:
        """Return polls of the whole process, which the caller closes."""
        ...

    def copy_waiting(
        self, threads: Iterable[int], /
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Copy those of ``threads`` that wait, without a stop; others are left out.

        A target that can only stop leaves out all.
        """
        ...

    def copy_stopped(
        self, threads: Collection[ThreadId], /, *, is_traced: bool = False
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Copy ``threads``, which are stopped for that time.

        Args:
            threads: the threads.
            is_traced: whether the calling OS thread traces all threads of a process.
        """
        ...

    def program_start(self) -> bytes:
        """Return what changes when the process executes another program; empty if unreadable."""
        ...

    def started_ns(self) -> int:
        """Return when the process was started (``CLOCK_MONOTONIC``); now if that is hidden."""
        ...

    def locks(self) -> LinuxLocks | None:
        """Return the source of lock surveys, which the caller closes; None if there is none."""
        ...

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        ...


def interrupts(spec: int | str) -> bool:
    """Whether polls of the threads of a target interrupt it."""
    return isinstance(spec, str) and spec.startswith((_GDB, _DEVICE))


def can_trace(spec: int | str) -> bool:
    """Whether a target is a process that this system traces for crashes."""
    is_process = not isinstance(spec, str) or spec.isdecimal()
    return is_process and this_system() is System.LINUX


def open_watched(spec: int | str, options: WatchOptions) -> WatchedTarget:
    """Open what a spec names: the id of a process, or a ``gdb://``, ``device://`` or ``frida://``.

    Args:
        spec: the target.
        options: what is watched; for hangs some targets have to be interrupted.

    Raises:
        TargetError: it cannot be watched, or not as requested.
    """
    has_hangs = options.hang_ns is not None
    if options.crash and not (can_trace(spec) or interrupts(spec)):
        raise TargetSpecError(f"crashes of {spec} are not watched", remedy="leave out --crash")
    has_crashes = interrupts(spec) and options.crash is None
    if options.has_only_deadlocks and not (can_trace(spec) or has_crashes):
        raise TargetSpecError(
            f"deadlocks of {spec} are not watched", remedy="watch another condition, such as --cpu"
        )
    if not isinstance(spec, str) or spec.isdecimal():
        if this_system() is System.DARWIN:
            from machtrace.targets.darwin.watched import WatchedTask

            return WatchedTask(int(spec))
        from machtrace.targets.linux.watched import WatchedProcess

        return WatchedProcess(int(spec))
    if spec.startswith(_DEVICE):
        from machtrace.targets.ios.target import watched_app

        return watched_app(spec, interrupts=has_hangs)
    if spec.startswith(_GDB):
        from machtrace.targets.gdbremote.watched import WatchedStub

        return WatchedStub(spec, interrupts=has_hangs)
    if spec.startswith(_FRIDA):
        from machtrace.targets.frida.watched import WatchedFrida

        return WatchedFrida(spec)
    raise TargetSpecError(
        f"{spec} cannot be watched", remedy="pass the id or the name of a process, or a stub"
    )
