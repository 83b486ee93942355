"""The debug map of an executable whose DWARF is still in the object files that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.macho.contents import FileContents
from machtrace.model.arch import Arch


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """An object file as the linker recorded it."""

    path: str
    """Of the object file, or of the archive that it is in."""
    member: str | None
    """Its name in the archive; None where it is a file of its own."""
    modified: int
    """When it was last changed, in seconds since 1970; 0 where the linker left that out."""

    @classmethod
    def parse(cls, text: str, modified: int) -> LinkedObject:
        """From the linker's ``archive(member)`` or path."""
        archive, bracket, member = text.rpartition("(")
        if bracket and archive and member.endswith(")"):
            return cls(archive, member[:-1], modified)
        return cls(text, None, modified)

    def __str__(self) -> str:
        """As the linker spells it."""
        return self.path if self.member is None else f"{self.path}({self.member})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DebugMap:
    """Which function of an image came from which object file: one entry a function, by address."""

    path: str
    """The image's file."""
    contents: FileContents
    """Its bytes."""
    objects: tuple[LinkedObject, ...]
    starts: npt.NDArray[np.uint64]
    """Each an :data:`ImageOffset`; ascending, no two are equal."""
    sizes: npt.NDArray[np.uint64]
    """In bytes: up to the next function at most."""
    object_ids: npt.NDArray[np.int32]
    """Which of :attr:`objects` each is from."""
    linkage_name: Callable[[int], str]
    """The name of an entry, which is that of its symbol in the object file, too."""
    folders: tuple[str, ...] = ()
    """Where object files are looked for that are not where they were linked from."""

    @property
    def arch(self) -> Arch:
        """The image's, and that of its object files."""
        return self.contents.image.arch

    def __len__(self) -> int:
        return len(self.starts)

    def functions_of(self, object_id: int) -> npt.NDArray[np.intp]:
        """The entries that came from one object file."""
        return np.flatnonzero(self.object_ids == object_id)
