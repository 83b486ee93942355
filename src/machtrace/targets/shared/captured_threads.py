"""What one snapshot has of threads: the copies that worked, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field

from machtrace.formats.elf.core.registers import read_registers
from machtrace.errors import FormatError, MachtraceError
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import Problem
from machtrace.model.thread import ThreadInfo, ThreadSnapshot
from machtrace.targets.shared.thread_copy import CopiedThread


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
