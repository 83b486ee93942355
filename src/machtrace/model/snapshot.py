"""A process, copied."""

from __future__ import annotations

from dataclasses import dataclass, field

from machtrace.errors import MachtraceError
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryReader, RegionMemory
from machtrace.model.thread import ThreadId, ThreadSnapshot


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part of a target that could not be read; the rest was."""

    thread: ThreadId | None
    """Whose part it was; None where it belongs to the whole process."""
    error: MachtraceError


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
