"""Copies of threads, the interface of copiers, and the threads and problems of one snapshot."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import Protocol, TypeAlias

from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.elf.core.registers import read_registers
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import Problem, ThreadInfo, ThreadSnapshot, ThreadState

RED_ZONE = 128
"""Bytes below the stack pointer that a leaf function may use (System V psABI for x86-64, 3.2.2).
Other architectures have none, and lose nothing by it."""

STACK_GAP = 1 << 20
"""Bytes below a stack that hold its stack pointer if it has overflowed: ``stack_guard_gap``, 256
pages below a growing stack. Other stacks have smaller guards."""

STOP_LIMIT_NS = 1_000_000_000
"""Time limit for a stop; a runnable thread needs its turn on a CPU first."""

SLEEP_LIMIT_NS = 20_000_000
"""Time limit for uninterruptible sleep, from which a thread stops only when its wait ends."""


BEGIN_REMEDY = "lower the stack limit, or raise this process's limits of memory and threads"
"""Remedy if copying cannot begin."""


class CaptureFailure(Enum):
    """Why a thread was not copied: ``machtrace_outcome`` of ``native/common/thread.h``."""

    GONE = 1
    """It exited."""
    REFUSED = 2
    """The kernel refused to let it be seized."""
    NOT_STOPPED = 3
    """It did not stop in time; it continues."""
    FAILED = 4
    """It stopped, but could not be copied; it was resumed."""
    BLOCKED = 5
    """It belongs to this process and blocks the signal that would stop it."""
    LEFT_STOPPED = 6
    """It belongs to this process, on Darwin, and the kernel failed to resume it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedThread:
    """The registers and stacks of a stopped thread."""

    id: int
    registers: bytes
    """``NT_PRSTATUS``; see :mod:`machtrace.formats.elf.core.registers`."""
    stacks: tuple[MemoryRegion, ...]
    """The current stack, empty if unreadable; in a handler on the alternate signal stack also the
    interrupted stack."""
    taken_at_ns: int
    """``CLOCK_MONOTONIC``."""
    stopped_for_ns: int
    """From before its stop was requested until after it was resumed: an upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncopiedThread:
    """A thread that could not be copied."""

    id: int
    why: CaptureFailure
    errno: int
    """0 if unknown."""
    is_uninterruptible: bool = False
    """Whether it was in uninterruptible sleep."""


ThreadCopy = CopiedThread | UncopiedThread

CopiedRow: TypeAlias = tuple[
    int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int, int
]
"""A thread's row from an extension: id, outcome (0, or a :class:`CaptureFailure`'s value), errno,
whether it was in uninterruptible sleep, registers, stacks; when its stop was requested, seen and
ended; ``pthread_self()`` of a thread of this process, the dispatch queue of another task's, or
0."""


def copy_of_row(row: CopiedRow, *, since_ns: int) -> ThreadCopy:
    """Convert a row; the thread was stopped from ``since_ns`` on at the earliest."""
    thread, outcome, errno, uninterruptible, registers, stacks, _, stopped, resumed, _ = row
    if outcome:
        return UncopiedThread(
            id=thread,
            why=CaptureFailure(outcome),
            errno=errno,
            is_uninterruptible=bool(uninterruptible),
        )
    return CopiedThread(
        id=thread,
        registers=registers,
        stacks=tuple(MemoryRegion(Avma(start), data) for start, data in stacks),
        taken_at_ns=stopped,
        stopped_for_ns=resumed - since_ns,
    )


class ThreadCopier(Protocol):
    """Stops and copies threads of a process."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """Copy threads; one result for each id, in their order.

        Args:
            threads: ids of threads, none of them of this process.
            stack_ranges: start and end (Avma) of readable ranges in turn, by address; a stack is
                copied to the end of its range.
            stack_limit: bytes copied of each stack at most, its red zone not counted.

        Raises:
            TargetError: this machine lacks the memory or the right to begin.
        """
        ...


Activity: TypeAlias = tuple[ThreadState | None, int | None]
""":attr:`ThreadSnapshot.state` and :attr:`ThreadSnapshot.cpu_ns`."""


def unknown_activity(_thread: int) -> Activity:
    """Return the activity of a thread of which nothing was observed."""
    return None, None


@dataclass(slots=True)
class CapturedThreads:
    """The copied threads of one snapshot, and its problems."""

    activity: Callable[[int], Activity] = unknown_activity
    """Returns a thread's activity, after it was copied."""
    threads: list[ThreadSnapshot] = field(default_factory=list)
    interrupted_stacks: list[MemoryRegion] = field(default_factory=list)
    """Stacks interrupted by a signal whose handler runs on the alternate stack."""
    problems: list[Problem] = field(default_factory=list)

    def keep(self, info: ThreadInfo, copy: CopiedThread) -> None:
        """Add a copied thread."""
        try:
            registers = read_registers(copy.registers, f"thread {info.id}")
        except FormatError as error:
            self.miss(info, error)
            return
        state, cpu_ns = self.activity(info.id)
        self.threads.append(
            ThreadSnapshot(
                info=info,
                registers=registers,
                stack=copy.stacks[0],
                taken_at_ns=copy.taken_at_ns,
                stopped_for_ns=copy.stopped_for_ns,
                native_registers=copy.registers,
                state=state,
                cpu_ns=cpu_ns,
            )
        )
        self.interrupted_stacks.extend(copy.stacks[1:])

    def miss(self, info: ThreadInfo, error: MachtraceError) -> None:
        """Record why a thread is missing."""
        self.problems.append(Problem(thread=info.id, error=error))


def has_red_zone(arch: Arch) -> bool:
    """Whether a leaf may use memory below its stack pointer."""
    return arch.is_arm64 or arch in (Arch.X86_64, Arch.X86_64H)
