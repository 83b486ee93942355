"""A process, copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from machtrace.errors import MachtraceError
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.linux import LinuxFacts
from machtrace.model.memory import MemoryReader, RegionMemory
from machtrace.model.shared_cache import SharedCache
from machtrace.model.thread import ThreadId, ThreadSnapshot

KeptImages = Literal["used", "none"]
"""What a saved core holds of images: what walks and names take, or where they are and no more."""


class FilePath(Protocol):
    """A path of any class, such as ``pathlib.Path``."""

    def __fspath__(self) -> str:
        """As the system takes it."""
        ...


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
    shared_cache: SharedCache | None = None
    """The one of a Darwin process; None where it has none, or nothing tells of it."""
    linux: LinuxFacts | None = None
    """What Linux keeps of the process; None where the system is another."""

    def __repr__(self) -> str:
        """Which process, and how much of it there is."""
        pid = "" if self.process.pid is None else f" {self.process.pid}"
        counts = (
            (len(self.threads), "thread"),
            (len(self.images), "image"),
            (len(self.problems), "problem"),
        )
        parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count]
        name = self.process.name or "a process"
        return f"<Snapshot of {name}{pid} ({self.process.arch.value}): {', '.join(parts)}>"

    def save(self, path: str | FilePath, *, images: KeptImages = "used") -> None:
        """Write a small core that :func:`machtrace.open_target` reads back, and debuggers open.

        It is a Mach-O core, or an ELF core of a process that runs ELF images. The stacks walked
        from it have the addresses and names that they have now. A file of that name is replaced
        once all is written, and never half written.

        Args:
            path: where to write; it is for the owner's eyes only, as cores are.
            images: ``used`` also keeps the bytes of images that walking takes, and names where no
                file has them; with ``none`` both take the images' files then.

        Raises:
            FileAccessError: the file cannot be written.
            CoreFileError: the process cannot be put into a core.
        """
        # By its public name: the model is below all that a core is written with.
        from machtrace import save_snapshot

        save_snapshot(self, path, images=images)
