"""Files with an image's debug information, or with more of its symbols than the image has."""

from __future__ import annotations

from enum import Enum
from uuid import UUID

from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BuildId, ImageFormat


@dataclass(frozen=True, slots=True)
class SourcePaths:
    """Prefixes of recorded source paths, and the folders where these sources are now."""

    replacements: tuple[tuple[str, str], ...] = ()
    """(recorded folder, folder now); without a ``/`` at the end."""

    def now(self, path: str) -> str:
        """Return ``path`` with the longest recorded folder that it is in replaced."""
        best = ""
        there = path
        for recorded, current in self.replacements:
            if len(recorded) > len(best) and path.startswith(recorded):
                rest = path[len(recorded) :]
                if not rest or rest.startswith("/"):
                    best, there = recorded, current + rest
        return there


NOT_MOVED = SourcePaths()
"""Every path as recorded."""


class FoundBy(Enum):
    """How a file was found; the value is shown to users."""

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
    """A file, or a slice of a fat one, with the identifier of an image.

    Its stated addresses count from its own header, which need not be at the image's address: ``svma
    - debug_file.header_svma`` is the :data:`ImageOffset` of both.
    """

    contents: ObjectFile
    data: memoryview
    """The bytes of ``contents``: of a fat file, only the slice."""
    slice_offset: FileOffset = FileOffset(0)
    """The offset of ``data`` in the file at :attr:`path`."""
    path: str
    found_by: FoundBy
    source_paths: SourcePaths = NOT_MOVED
    """Where sources are now, if they were moved since they were compiled."""

    @property
    def uuid(self) -> UUID | BuildId | None:
        """Its identifier; None of an ELF file that only a checksum identifies."""
        return self.contents.image.identifier

    @property
    def arch(self) -> Arch:
        """Its architecture."""
        return self.contents.image.arch

    @property
    def format(self) -> ImageFormat:
        """The file's format."""
        return self.contents.format

    @property
    def header_svma(self) -> Svma:
        """The stated address of its header, from which its DWARF's addresses count."""
        return self.contents.image.header_svma

    @property
    def has_dwarf(self) -> bool:
        """Whether it has source lines and inlined calls, not only symbols."""
        return self.contents.image.has_dwarf
