"""Threads of a target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet

ThreadId = NewType("ThreadId", int)
"""``thread_identifier_info.thread_id`` on Darwin, the kernel's tid on Linux: unique system-wide,
unlike a Mach port name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """What is known of a thread without stopping it."""

    id: ThreadId
    index: int
    """1-based, in the kernel's order: the number that lldb shows."""
    name: str | None = None
    queue: str | None = None
    """Label of the dispatch queue that the thread is serving."""
    is_main: bool = False
    crashed: bool = False
    """Whether it is the thread that ended the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSnapshot:
    """All that a walk needs of one thread, copied while it stood still."""

    info: ThreadInfo
    registers: RegisterSet
    stack: MemoryRegion
    """From the stack pointer (less the red zone) towards the stack's base."""
    taken_at_ns: int | None = None
    """Nanoseconds of the system's monotonic clock; None in a core that does not say."""
    stopped_for_ns: int | None = None
    """How long the thread was kept from running for this; None where nothing was stopped."""
    native_registers: bytes = field(default=b"", repr=False)
    """The general registers as Linux gives them (``NT_PRSTATUS``), those that no walk has a use for
    included; empty where the system is another, or did not give them."""
