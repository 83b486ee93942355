"""The debug map of an executable whose DWARF is still in its object files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from machtrace.errors import FormatError, MemoryReadError
from machtrace.frozen import dataclass
from machtrace.images.open_file import IdentifiedFile
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.formats.macho.contents import MachOFileContents


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """An object file as the linker recorded it."""

    path: str
    """The path of the object file, or of the archive that it is in."""
    member: str | None
    """Its name in the archive; None if it is a file of its own."""
    modified: int
    """Its modification time in seconds since 1970; 0 if the linker left that out."""

    @classmethod
    def parse(cls, text: str, modified: int) -> LinkedObject:
        """Parse the linker's ``archive(member)`` or path."""
        archive, bracket, member = text.rpartition("(")
        if bracket and archive and member.endswith(")"):
            return cls(archive, member[:-1], modified)
        return cls(text, None, modified)

    def __str__(self) -> str:
        """Return the linker's spelling."""
        return self.path if self.member is None else f"{self.path}({self.member})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DebugMap:
    """The object files with an image's DWARF, of which some exist.

    :class:`~machtrace.lines.debug_map.DebugMapIndex` reads them.
    """

    path: str
    """The image's file."""
    contents: MachOFileContents
    """Its contents."""
    objects: tuple[LinkedObject, ...]
    """In the order of the symbol table."""
    folders: tuple[str, ...] = ()
    """Folders to search for object files that were moved."""

    @property
    def arch(self) -> Arch:
        """The image's, and that of its object files."""
        return self.contents.image.arch

    def paths(self, linked: LinkedObject) -> Iterator[str]:
        """Yield paths of the file of ``linked``: where it was linked from, and in given folders."""
        # A relative path stays one; it counts from the image.
        yield os.path.join(os.path.dirname(self.path), linked.path)  # noqa: PTH118, PTH120
        for folder in self.folders:
            yield os.path.join(folder, linked.path.lstrip("/"))  # noqa: PTH118
            yield os.path.join(folder, os.path.basename(linked.path))  # noqa: PTH118, PTH119


_LISTED = 8
"""Object files that are listed one by one if all are missing."""


def usable_debug_map(
    binary: IdentifiedFile, search_path: SearchPath, record: SearchRecord
) -> DebugMap | None:
    """Return the debug map of ``binary`` if it has one and any of its object files exists."""
    if binary.contents.format is not ImageFormat.MACHO:
        return None
    from machtrace.formats.macho.tables.stabs import object_stabs

    try:
        stabs = object_stabs(binary.contents)
    except (FormatError, MemoryReadError) as error:
        record.add(binary.path, Outcome.MALFORMED, str(error))
        return None
    if not stabs:
        return None
    debug_map = DebugMap(
        path=binary.path,
        contents=binary.contents,
        objects=tuple(LinkedObject.parse(*stab) for stab in stabs),
        folders=tuple(root for root in search_path.paths if os.path.isdir(root)),  # noqa: PTH112
    )
    if _any_exists(debug_map):
        record.add(
            binary.path, Outcome.FOUND, f"a debug map of {counted(len(stabs), 'object file')}"
        )
        return debug_map
    for object_ in debug_map.objects[:_LISTED]:
        record.add(str(object_), Outcome.NO_FILE, "an object file of the debug map")
    if len(stabs) > _LISTED:
        record.add(counted(len(stabs) - _LISTED, "more object file"), Outcome.NO_FILE)
    return None


def _any_exists(debug_map: DebugMap) -> bool:
    """Whether any object file or archive exists; most are in few folders, or in none."""
    folders: dict[str, bool] = {}
    for path in dict.fromkeys(
        path for object_ in debug_map.objects for path in debug_map.paths(object_)
    ):
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in folders:
            folders[folder] = os.path.isdir(folder)  # noqa: PTH112
        if folders[folder] and os.path.isfile(path):  # noqa: PTH113
            return True
    return False
