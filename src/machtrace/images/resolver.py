"""Finding an image's bytes: in files that the user named, where the target had it, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import FileContents, MemoryContents
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus
from machtrace.images.candidates import Candidate, given, indexed, on_this_machine, stored
from machtrace.images.debug_file import DebugFile
from machtrace.images.debug_files import search_debug_files
from machtrace.images.debug_map import DebugMap
from machtrace.images.identified_file import IdentifiedFile, open_identified
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.images.store_layout import FileKind

ContentsOrStatus = FileContents | MemoryContents | ElfFileContents | ElfMemoryContents | FrameStatus
"""An image's bytes, or why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageFiles:
    """The files of an image: the best of each kind, all of the same identifier."""

    binary: FileContents | ElfFileContents | FrameStatus
    """What was mapped: code, function starts, stubs, unwind tables; or why there is none."""
    symbols: DebugFile | None
    """A file with more symbols than the binary: its dSYM, an unstripped twin."""
    lines: DebugFile | DebugMap | FrameStatus
    """What has source lines and inlined calls, or why nothing has."""
    looked_at: tuple[Attempt, ...]
    """Every place that was looked at for the three, in that order."""

    @property
    def status(self) -> FrameStatus:
        """SYMBOLICATED where there is any file; else why there is none."""
        if not isinstance(self.binary, FrameStatus):
            return FrameStatus.SYMBOLICATED
        if self.symbols is not None or not isinstance(self.lines, FrameStatus):
            return FrameStatus.SYMBOLICATED
        return self.binary if self.binary is not FrameStatus.MISSING_FILE else self.lines


@dataclass(frozen=True, slots=True, eq=False)
class ImageResolver:
    """Opens images by identity: a file with another UUID is never used.

    Of an image whose UUID is not known, only a file is used that the user pointed to by the
    image's name, or that the target found to be the one that is mapped.
    """

    places: SearchPath = field(default_factory=SearchPath)

    @classmethod
    def of(cls, search: str | Path | Sequence[str | Path] = ()) -> ImageResolver:
        """From paths as a user gives them: one, or several. See :class:`SearchPath`."""
        return cls(SearchPath.of(search))

    def file(self, image: BinaryImage) -> ContentsOrStatus:
        """The image's file with its code, or why none will do. Raises nothing."""
        record = SearchRecord()
        found = self._binary(image, record)
        return record.status if found is None else found.contents

    def files(self, image: BinaryImage, *, unusable: Collection[str] = ()) -> ImageFiles:
        """The image's file with its code, and those with its symbols and its debug information.

        Raises nothing.

        Args:
            image: what is wanted.
            unusable: paths of files whose debug information turned out to be unreadable: others
                are looked for.
        """
        record = SearchRecord()
        binary = self._binary(image, record)
        search = search_debug_files(image, self.places, binary, unusable=unusable)
        return ImageFiles(
            binary=record.status if binary is None else binary.contents,
            symbols=search.symbols,
            lines=search.lines,
            looked_at=tuple(dict.fromkeys((*record.looked_at, *search.looked_at))),
        )

    def _binary(self, image: BinaryImage, record: SearchRecord) -> IdentifiedFile | None:
        for candidate in self._candidates(image, record):
            found = open_identified(candidate.path, image, record, is_proven=candidate.is_proven)
            if found is not None and found.has_code:
                return found
            if found is not None:
                record.add(candidate.path, Outcome.NO_CODE)
        return None

    def _candidates(self, image: BinaryImage, record: SearchRecord) -> Iterator[Candidate]:
        places = self.places
        return chain(
            given(image, places, record),
            stored(image, places, FileKind.EXECUTABLE),
            on_this_machine(image),
            indexed(image, places, record, FileKind.EXECUTABLE),
        )


def in_memory(image: BinaryImage, memory: MemoryReader) -> ContentsOrStatus:
    """The image as the target has it loaded, or why its bytes cannot be had. Raises nothing."""
    source = image.path or f"image at {image.load_address:#x}"
    try:
        if image.format is ImageFormat.ELF:
            return ElfMemoryContents(memory, image.load_address, source)
        return MemoryContents(memory, image.load_address, source)
    except MemoryReadError:
        return FrameStatus.MISSING_FILE
    except FormatError:
        return FrameStatus.MALFORMED_FILE
