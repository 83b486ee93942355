"""Polls: what a system shows of a thread and its process at one time, without stopping them.

Classifiers are functions of these values; ``targets`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from machtrace.model.address import Avma

UNKNOWN_CALL = 1 << 16
"""The number of a system call whose number a target does not know."""


class SystemCall(NamedTuple):
    """The system call in which a thread waits (``/proc/PID/task/TID/syscall``, proc(5))."""

    number: int
    arguments: tuple[int, ...]
    sp: Avma
    pc: Avma

    @property
    def place(self) -> CallPlace:
        """The call without its arguments."""
        return CallPlace(self.number, self.sp, self.pc)


class CallPlace(NamedTuple):
    """A call of a certain frame: equal places at two polls are the same wait of the same loop."""

    number: int
    sp: Avma
    pc: Avma
    argument: int | None = None
    """The first argument, where another one has shown another wait of the same frame."""


class ThreadPoll(NamedTuple):
    """A thread at one time. Facts that the system hides, or that were not read, are None."""

    at_ns: int
    """``CLOCK_MONOTONIC``."""
    boot_ns: int
    """``CLOCK_BOOTTIME``: it counts system sleep, too."""
    is_running: bool | None = None
    """Whether it runs or is ready to; None if that was not read, or is hidden."""
    call: SystemCall | None = None
    """The call in which it waits; None if it runs."""
    run_ns: int | None = None
    """The time that it ran (schedstat, first field)."""
    delay_ns: int | None = None
    """The time that it was ready to run and did not (schedstat, second field)."""
    switches: tuple[int, int] | None = None
    """Voluntary and involuntary context switches. Read before the call at the first poll of a pair,
    and after it at the second: equal ones then exclude a run between."""
    state: str | None = None
    """The state's letter in ``status``."""
    throttled_ns: int | None = None
    """The time that the control group's quota took (``cpu.stat``)."""
    is_frozen: bool = False
    """Whether its control group is frozen."""
    tracer: int | None = None
    """The process that traces it; 0 for none, or this one."""
    is_own_stop: bool = False
    """Whether a tracer of this process has stopped it."""
    busy_since_ns: int | None = None
    """The thread's own statement: ``CLOCK_MONOTONIC`` at its return from the idle wait, 0 in it.
    None if it states nothing."""
    task: int | None = None
    """The number of tasks that it stated to have begun."""
    late_ns: int = 0
    """The delay of this poll: the watcher itself was not scheduled."""


class ProcessPoll(NamedTuple):
    """A process at one time."""

    at_ns: int
    boot_ns: int
    resident: int | None = None
    """Bytes of memory (statm)."""
    virtual: int | None = None
    """Bytes of address space (statm)."""
    cpu_ns: int | None = None
    """The processor time of all threads, including those that have exited."""
    threads: Mapping[int, ThreadCount] | None = None
    """The counts of each thread, by id; None at polls that do not read them."""
    unread: int = 0
    """Threads that were not read, because there are too many."""


class ThreadCount(NamedTuple):
    """The use of a thread since it started."""

    run_ns: int
    """The time that it ran (schedstat)."""
    faults: int | None
    """Its page faults (stat); None if the target does not count them."""


class MemoryLimit(NamedTuple):
    """The limit of a process's memory."""

    size: int
    source: str
    """Such as ``control group``, ``RLIMIT_AS``, ``physical memory``."""
    is_virtual: bool = False
    """Whether it limits the address space."""


class IdleRequest(NamedTuple):
    """A request to poll idle threads until something happens."""

    interval_ns: int
    """From poll to poll."""
    due_ns: int
    """When the next poll is due (``CLOCK_MONOTONIC``)."""
    check_ns: int
    """When to return if the process used processor time."""
    until_ns: int
    """When to return at the latest."""
    cpu_ns: int
    """The processor time that the process had used when this was determined."""
    most_cpu_ns: int
    """Further processor time after which to return."""
    is_traced: bool
    """Whether to return on events of traced threads (``SIGCHLD``, which is blocked)."""


class IdleWait(NamedTuple):
    """The outcome of such a request."""

    due_ns: int
    """When the next poll is due."""
    polls: int
    late_polls: int
    latest_ns: int
    """The longest delay of a poll."""
