"""What copying the threads of another Linux process takes and yields, whoever does it.

What one snapshot has of threads: the copies that worked, and what is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.elf.core.registers import read_registers
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import Problem, ThreadInfo, ThreadSnapshot

RED_ZONE = 128
"""Bytes below the stack pointer that a leaf function may use (System V psABI for x86-64, 3.2.2).
Other architectures have none, and lose nothing by it."""

STOP_LIMIT_NS = 1_000_000_000
"""How long a thread may take to stop. A running one needs its turn on a CPU for it."""

SLEEP_LIMIT_NS = 20_000_000
"""How long one may stay in uninterruptible sleep; it stops only when what it waits for is done."""


BEGIN_REMEDY = "lower the stack limit, or raise this process's limits of memory and threads"
"""Where copying cannot even begin."""


class CaptureFailure(Enum):
    """Why a thread was not copied: the values of ``ptrace.h`` and ``capture.h`` in ``native/``."""

    GONE = 1
    """It exited."""
    REFUSED = 2
    """The kernel did not let it be seized."""
    NOT_STOPPED = 3
    """It did not stop in time; it runs on."""
    FAILED = 4
    """It stopped, but could not be copied; it runs on."""
    BLOCKED = 5
    """Of this process: it blocks the signal that would stop it."""
    LEFT_STOPPED = 6
    """Of this process, on Darwin: it was stopped, and the kernel did not let it go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedThread:
    """A thread as it stood."""

    id: int
    registers: bytes
    """``NT_PRSTATUS``; see :mod:`machtrace.formats.elf.core.registers`."""
    stacks: tuple[MemoryRegion, ...]
    """The one that it is on, empty if it could not be read; in a signal handler on the alternate
    stack also the one that the signal interrupted."""
    taken_at_ns: int
    """``CLOCK_MONOTONIC``."""
    stopped_for_ns: int
    """From before it was asked to stop to after it was let go: it was kept from running for no
    longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncopiedThread:
    """A thread that could not be copied."""

    id: int
    why: CaptureFailure
    errno: int
    """0 where the kernel gave none."""
    is_uninterruptible: bool = False
    """Whether it was in uninterruptible sleep."""


ThreadCopy = CopiedThread | UncopiedThread

CopiedRow: TypeAlias = tuple[
    int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int
]
"""What the extensions say of a thread: id, outcome (0, or a :class:`CaptureFailure`'s value),
errno,
whether it was in uninterruptible sleep, registers, stacks; when it was asked, stopped, resumed."""


def copy_of_row(row: CopiedRow, *, since_ns: int) -> ThreadCopy:
    """What a row says; the thread was kept from running from ``since_ns`` on."""
    thread, outcome, errno, uninterruptible, registers, stacks, _, stopped, resumed = row
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
    """Stops threads of another process one at a time, copies each and lets it go."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """One copy for each id, in their order.

        Args:
            threads: ids of threads, none of them of this process.
            stack_ranges: start and end (Avma) of readable ranges in turn, by address; a stack is
                copied to the end of its range.
            stack_limit: bytes copied of each stack at most, its red zone not counted.

        Raises:
            TargetError: this machine lacks the memory or the right to begin.
        """
        ...


@dataclass(slots=True)
class CapturedThreads:
    """Threads as far as they were copied."""

    threads: list[ThreadSnapshot] = field(default_factory=list)
    interrupted_stacks: list[MemoryRegion] = field(default_factory=list)
    """Below the alternate stacks of threads that handle a signal."""
    problems: list[Problem] = field(default_factory=list)

    def keep(self, info: ThreadInfo, copy: CopiedThread) -> None:
        """Take in a thread that was copied."""
        try:
            registers = read_registers(copy.registers, f"thread {info.id}")
        except FormatError as error:
            self.miss(info, error)
            return
        self.threads.append(
            ThreadSnapshot(
                info=info,
                registers=registers,
                stack=copy.stacks[0],
                taken_at_ns=copy.taken_at_ns,
                stopped_for_ns=copy.stopped_for_ns,
                native_registers=copy.registers,
            )
        )
        self.interrupted_stacks.extend(copy.stacks[1:])

    def miss(self, info: ThreadInfo, error: MachtraceError) -> None:
        """Say what is missing of a thread."""
        self.problems.append(Problem(thread=info.id, error=error))


def has_red_zone(arch: Arch) -> bool:
    """Whether a leaf may use memory below its stack pointer."""
    return arch.is_arm64 or arch in (Arch.X86_64, Arch.X86_64H)
