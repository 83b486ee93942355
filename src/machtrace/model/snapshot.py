"""A process, copied.

Threads of a target.

What Linux keeps of a process besides threads and memory; its cores have a note for each.

Where a Darwin process has the cache that the system's images are in.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple, NewType
from uuid import UUID

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.text import counted, duration, printable

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
        if stopped_for_ns is not None:
            parts.append(f"stopped for {duration(stopped_for_ns)}")
        return "  ".join(parts)

    def __str__(self) -> str:
        return f"thread {self.index}, {self.label}"


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

    def __repr__(self) -> str:
        return f"<ThreadSnapshot of {self.info}: {len(self.stack.data):,} bytes of stack>"


class FileMapping(NamedTuple):
    """A range of a file that is mapped (``NT_FILE``)."""

    start: Avma
    end: Avma
    offset: FileOffset
    """Where in the file :attr:`start` is."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxFacts:
    """What debuggers find a process' program and libraries by, and how ``ps`` shows it."""

    auxiliary_vector: bytes = field(default=b"", repr=False)
    """As the kernel made it: pairs of words of the process' own width (``NT_AUXV``)."""
    file_mappings: tuple[FileMapping, ...] = field(default=(), repr=False)
    """By address."""
    name: str = ""
    """Of the process, at most 15 bytes (``pr_fname``)."""
    arguments: str = ""
    """Its command line, in one (``pr_psargs``)."""
    parent: int = 0
    """Process id."""
    user: int = 0
    """User id."""
    group: int = 0
    """Group id."""
    signal: int = 0
    """What ended it; 0 where nothing did."""


@dataclass(frozen=True, slots=True)
class SharedCache:
    """dyld's shared cache, as a process has it mapped."""

    base: Avma
    """Where its header is."""
    uuid: UUID | None
    """Of its contents, which differ with each build of the system; None where it is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Which process, on which system."""

    pid: int | None
    """None where a core does not say."""
    path: str
    """Of the program's file, as the target names it; empty where unknown."""
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
    """A part of a target that could not be read; the rest was."""

    thread: ThreadId | None
    """Whose part it was; None where it belongs to the whole process."""
    error: MachtraceError

    def __str__(self) -> str:
        return str(self.error) if self.thread is None else f"thread {self.thread}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Enough to walk and to name later, elsewhere, on any system."""

    process: ProcessInfo
    threads: tuple[ThreadSnapshot, ...]
    images: ImageList
    memory: MemoryReader = field(default_factory=RegionMemory)
    """What is known of memory besides the stacks: images' bytes, heap where it was captured."""
    problems: tuple[Problem, ...] = ()
    """What is missing, and why."""
    shared_cache: SharedCache | None = None
    """The one of a Darwin process; None where it has none, or nothing tells of it."""
    linux: LinuxFacts | None = None
    """What Linux keeps of the process; None where the system is another."""

    def __str__(self) -> str:
        """Return the process, a line for each thread, and the problems."""
        lines = [f"{self.process}  {self._counts}"]
        for thread in self.threads:
            size = f"{len(thread.stack.data):,} bytes of stack"
            lines.append(f"  {thread.info.heading(thread.stopped_for_ns)}  {size}")
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
