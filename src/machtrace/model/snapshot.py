"""A copy of a process: threads, images, memory, and facts of its system."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, NewType
from uuid import UUID

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset, PacMask
from machtrace.model.arch import Arch
from machtrace.model.cause import Cause
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.text import counted, duration, printable

if TYPE_CHECKING:  # incidents have captures, and those have threads
    from machtrace.model.incident.facts import WaitsFor

ThreadId = NewType("ThreadId", int)
"""``thread_identifier_info.thread_id`` on Darwin, the kernel's tid on Linux: unique system-wide,
unlike a Mach port name."""


class ThreadState(Enum):
    """The state of a thread just before it was captured."""

    RUNNING = "running"
    """It ran, or was ready to run and waited for a processor."""
    SLEEPING = "sleeping"
    """It waited."""
    UNINTERRUPTIBLE = "uninterruptible"
    """It waited in the kernel and could not be interrupted, usually for a device."""
    STOPPED = "stopped"
    """Job control or a tracer had stopped it."""


class GilState(Enum):
    """A thread's relation to the interpreter lock (GIL) of its CPython."""

    HOLDS = "holds"
    WAITS = "waits"

    def __str__(self) -> str:
        return "holds the GIL" if self is GilState.HOLDS else "waits for the GIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """A thread's identity, which is available without stopping it."""

    id: ThreadId
    index: int
    """1-based, in the kernel's order: the number that lldb shows."""
    name: str | None = None
    queue: str | None = None
    """The label of the dispatch queue that the thread serves."""
    is_main: bool = False
    crashed: bool = False
    """Whether this thread ended the process, or would have if no debugger had stopped it."""
    cause: Cause | None = None
    """Why it was stopped, if a signal or an exception did it; it may not have crashed."""
    gil: GilState | None = None
    """Whether it holds the interpreter lock or waits for it; None if neither, or unknown."""
    waits_for: WaitsFor | None = None
    """The lock, thread, process or file that it waits for, where its owner is recorded."""

    @property
    def label(self) -> str:
        """The thread's name, or its queue's, and its id, which distinguishes equal names."""
        name = self.name or self.queue or ("main" if self.is_main else "")
        return f"{printable(name)} [{self.id}]" if name else f"thread [{self.id}]"

    def heading(self, stopped_for_ns: int | None = None) -> str:
        """Return the line above the thread's stack."""
        parts = [f"Thread {self.index}"]
        if self.name:
            parts.append(f"“{printable(self.name)}”")
        parts.append(f"id {self.id}")
        if self.queue:
            parts.append(f"queue {printable(self.queue)}")
        if self.crashed:
            parts.append("crashed")
        if self.gil is not None:
            parts.append(str(self.gil))
        if self.waits_for is not None:
            parts.append(f"waits for {self.waits_for}")
        if stopped_for_ns is not None:
            parts.append(f"stopped for {duration(stopped_for_ns)}")
        return "  ".join(parts)

    def __str__(self) -> str:
        return f"thread {self.index}, {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSnapshot:
    """A thread's registers and stack, copied while it was stopped."""

    info: ThreadInfo
    registers: RegisterSet
    stack: MemoryRegion
    """From the stack pointer (less the red zone) towards the stack's base."""
    taken_at_ns: int | None = None
    """Nanoseconds of the system's monotonic clock; None if a core does not state it."""
    stopped_for_ns: int | None = None
    """How long the thread was stopped; None if nothing was stopped."""
    state: ThreadState | None = None
    """Its state before; None if that was not requested, or is unknown."""
    cpu_ns: int | None = None
    """The processor time that it had used, less the time that captures cost it while it slept, as
    far as that is known; None if it was not requested, or is unknown."""
    native_registers: bytes = field(default=b"", repr=False)
    """All general registers in Linux's layout (``NT_PRSTATUS``); empty if unavailable."""
    other_registers: tuple[tuple[str, int], ...] = ()
    """Names and values of registers that unwinding does not use and :attr:`native_registers` lacks:
    flags, and what the processor states of a fault."""

    def with_info(self, info: ThreadInfo) -> ThreadSnapshot:
        """Return the copy with another identity; quicker than :func:`dataclasses.replace`."""
        return ThreadSnapshot(
            info=info,
            registers=self.registers,
            stack=self.stack,
            taken_at_ns=self.taken_at_ns,
            stopped_for_ns=self.stopped_for_ns,
            native_registers=self.native_registers,
            other_registers=self.other_registers,
            state=self.state,
            cpu_ns=self.cpu_ns,
        )

    @property
    def overflowed_stack(self) -> Avma | None:
        """The lowest address of the stack if the stack pointer is below it; else None."""
        sp = self.registers.sp
        is_below = sp is not None and len(self.stack.data) > 0 and sp < self.stack.start
        return self.stack.start if is_below else None

    def __repr__(self) -> str:
        return f"<ThreadSnapshot of {self.info}: {len(self.stack.data):,} bytes of stack>"


class FileMapping(NamedTuple):
    """A mapped range of a file (``NT_FILE``)."""

    start: Avma
    end: Avma
    offset: FileOffset
    """The file offset of :attr:`start`."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxFacts:
    """Facts of a Linux process besides threads and memory; its cores have a note for each."""

    auxiliary_vector: bytes = field(default=b"", repr=False)
    """The raw vector: pairs of words of the process's width (``NT_AUXV``)."""
    file_mappings: tuple[FileMapping, ...] = field(default=(), repr=False)
    """By address."""
    name: str = ""
    """The process's name, at most 15 bytes (``pr_fname``)."""
    arguments: str = ""
    """The command line as one string (``pr_psargs``)."""
    parent: int = 0
    """The parent's process id."""
    user: int = 0
    """User id."""
    group: int = 0
    """Group id."""
    signal: int = 0
    """The signal that ended the process; 0 if none did."""


@dataclass(frozen=True, slots=True)
class SharedCache:
    """dyld's shared cache of system images, as mapped into a Darwin process."""

    base: Avma
    """The address of the header."""
    uuid: UUID | None
    """The identifier of the contents, which differ with each build of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process and its architecture."""

    pid: int | None
    """None if a core does not state it."""
    path: str
    """The path of the program in the target; empty if unknown."""
    arch: Arch
    pointer_mask: PacMask = PacMask()

    @property
    def name(self) -> str:
        """The last component of :attr:`path`."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        pid = "" if self.pid is None else f" [{self.pid}]"
        return f"{printable(self.name) or 'process'}{pid}  {self.arch.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part of a target that could not be read."""

    thread: ThreadId | None
    """The thread concerned; None for the whole process."""
    error: MachtraceError

    def __str__(self) -> str:
        return str(self.error) if self.thread is None else f"thread {self.thread}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A process as captured; it can be unwound and symbolicated later, on any system."""

    process: ProcessInfo
    threads: tuple[ThreadSnapshot, ...]
    images: ImageList
    memory: MemoryReader = field(default_factory=RegionMemory)
    """Memory besides the stacks: images' bytes, and heap if it was captured."""
    problems: tuple[Problem, ...] = ()
    """Parts that are missing, and why."""
    shared_cache: SharedCache | None = None
    """The shared cache of a Darwin process, if known."""
    linux: LinuxFacts | None = None
    """Facts of a Linux process."""

    def __str__(self) -> str:
        """Return the process, a line for each thread, and the problems."""
        lines = [f"{self.process}  {self._counts}"]
        for thread in self.threads:
            size = f"{len(thread.stack.data):,} bytes of stack"
            lines.append(f"  {thread.info.heading(thread.stopped_for_ns)}  {size}")
            if thread.info.cause is not None and thread.info.cause.is_shown:
                lines.append(f"    {printable(str(thread.info.cause))}")
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)

    def __repr__(self) -> str:
        pid = "" if self.process.pid is None else f" {self.process.pid}"
        name = printable(self.process.name) or "a process"
        return f"<Snapshot of {name}{pid} ({self.process.arch.value}): {self._counts}>"

    @property
    def _counts(self) -> str:
        counts = (
            (len(self.threads), "thread"),
            (len(self.images), "image"),
            (len(self.problems), "problem"),
        )
        return ", ".join(counted(count, noun) for count, noun in counts if count) or "nothing"
