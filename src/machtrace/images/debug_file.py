"""A file that holds an image's debug information, or more of its symbols than the image has.

Where source files are now: replacing the beginnings of paths that a compiler recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import FileContents
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BuildId, ImageFormat


@dataclass(frozen=True, slots=True)
class SourcePaths:
    """Prefixes of recorded paths, and what to put in their places."""

    replacements: tuple[tuple[str, str], ...] = ()
    """(recorded folder, folder now); without a ``/`` at the end."""

    def now(self, path: str) -> str:
        """``path`` with the longest recorded folder that it is in replaced; else as it is."""
        best = ""
        there = path
        for recorded, current in self.replacements:
            if len(recorded) > len(best) and path.startswith(recorded):
                rest = path[len(recorded) :]
                if not rest or rest.startswith("/"):
                    best, there = recorded, current + rest
        return there


NOT_MOVED = SourcePaths()
"""Every path as it was recorded."""


class FoundBy(Enum):
    """What led to a file; the value is how people are told."""

    GIVEN = "given by its path"
    NAME = "by its name in a given folder"
    IDENTIFIER = "by its identifier in a given folder"
    STORE = "in a symbol store"
    BESIDE = "beside the binary"
    ITSELF = "in the binary itself"
    BUILD_ID = "by its build-id among the system's debug files"
    DEBUG_LINK = "by the binary's .gnu_debuglink"
    SPOTLIGHT = "by Spotlight"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DebugFile:
    """A file, or a slice of a fat one, that belongs to an image: its identifier says so.

    Its stated addresses count from its own header, which need not be where the image's is:
    ``svma - debug_file.header_svma`` is the :data:`ImageOffset` of both.
    """

    contents: FileContents | ElfFileContents
    data: memoryview
    """The bytes of ``contents``: of a fat file, only the slice."""
    slice_offset: FileOffset = FileOffset(0)  # noqa: RUF009 (a NewType of int)
    """Where in the file at :attr:`path` ``data`` begins."""
    path: str
    found_by: FoundBy
    source_paths: SourcePaths = NOT_MOVED
    """Where sources are now that were elsewhere when they were compiled."""

    @property
    def uuid(self) -> UUID | BuildId | None:
        """What it says that it belongs to; None of an ELF file that only a checksum vouches for."""
        if isinstance(self.contents, FileContents):
            return self.contents.image.uuid
        return self.contents.image.build_id

    @property
    def arch(self) -> Arch:
        """Its architecture."""
        return self.contents.image.arch

    @property
    def format(self) -> ImageFormat:
        """Which kind of file it is."""
        return ImageFormat.MACHO if isinstance(self.contents, FileContents) else ImageFormat.ELF

    @property
    def header_svma(self) -> Svma:
        """The stated address of its header, which its DWARF's addresses count from."""
        return self.contents.image.header_svma

    @property
    def has_dwarf(self) -> bool:
        """Whether it has source lines and inlined calls, not only symbols."""
        return has_dwarf(self.contents)


def has_dwarf(contents: FileContents | ElfFileContents) -> bool:
    """Whether a file has a ``.debug_info`` that is not empty, compressed or not."""
    if isinstance(contents, FileContents):
        macho = (contents.image.section("__DWARF", name) for name in _MACHO_SECTIONS)
        return any(section is not None and section.size for section in macho)
    elf = (contents.image.section(name) for name in _ELF_SECTIONS)
    return any(section is not None and section.has_bytes and section.size for section in elf)


_MACHO_SECTIONS = ("__debug_info", "__zdebug_info")
_ELF_SECTIONS = (".debug_info", ".zdebug_info")


def symbol_count(contents: FileContents | ElfFileContents) -> int:
    """How many entries a file's symbol table has; of an ELF file, of its ``.symtab``."""
    if isinstance(contents, FileContents):
        return 0 if contents.image.symtab is None else contents.image.symtab.nsyms
    section = contents.image.section(".symtab")
    if section is None or not section.has_bytes or not section.entry_size:
        return 0
    return section.size // section.entry_size
