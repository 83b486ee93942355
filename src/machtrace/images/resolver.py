"""Finding an image's bytes: in files that the user named, where the target had it, in memory.

Finding the file with an image's debug information, by identity: never another image's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from uuid import UUID

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.macho.contents import FileContents, MemoryContents
from machtrace.images.candidates import (
    Candidate,
    bundles,
    given,
    indexed,
    on_this_machine,
    spotlighted,
    stored,
)
from machtrace.images.debug_file import NOT_MOVED, DebugFile, FoundBy, symbol_count
from machtrace.images.debug_map import DebugMap, usable_debug_map
from machtrace.images.dsym import dsym_source_paths
from machtrace.images.open_file import IdentifiedFile, open_identified
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.images.store_layout import FileKind
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DebugSearch:
    """What was found for an image besides its binary, and what was looked at for that."""

    lines: DebugFile | DebugMap | FrameStatus
    """What has source lines and inlined calls, or why nothing has."""
    symbols: DebugFile | None
    """A file with more symbols than the binary: its dSYM, an unstripped twin."""
    looked_at: tuple[Attempt, ...]
    """Every place that was looked at, in that order."""


def search_debug_files(
    image: BinaryImage,
    places: SearchPath,
    binary: IdentifiedFile | None = None,
    *,
    unusable: Collection[str] = (),
) -> DebugSearch:
    """Look for the file that has the image's DWARF, until there is one. Raises nothing.

    Args:
        image: what is wanted.
        places: where to look.
        binary: the image's own file where it was found: it may have the DWARF itself, say where
            that is, or have a debug map.
        unusable: paths of files whose DWARF cannot be read: the next best is looked for.
    """
    return _Search(image, places, binary, unusable).run()


class _Search:
    """One search."""

    def __init__(
        self,
        image: BinaryImage,
        places: SearchPath,
        binary: IdentifiedFile | None,
        unusable: Collection[str],
    ) -> None:
        self._image = image
        self._places = places
        self._unusable = unusable
        self._record = SearchRecord()
        self._binaries = [] if binary is None else [binary]
        self._symbols: DebugFile | None = None
        self._most = 0 if binary is None else symbol_count(binary.contents)

    def run(self) -> DebugSearch:
        lines: DebugFile | DebugMap | None = self._dwarf_file() or self._debug_map()
        return DebugSearch(
            lines=self._record.status if lines is None else lines,
            symbols=self._symbols,
            looked_at=tuple(self._record.looked_at),
        )

    def _dwarf_file(self) -> DebugFile | None:
        tried: set[str] = set()
        for candidate in self._candidates():
            if candidate.path in tried:
                continue
            tried.add(candidate.path)
            opened = self._open(candidate)
            if opened is None:
                continue
            found = self._debug_file(opened, candidate)
            count = symbol_count(found.contents)
            if count > self._most:
                self._symbols, self._most = found, count
            is_unusable = found.has_dwarf and candidate.path in self._unusable
            if found.has_dwarf and not is_unusable:
                self._record.add(candidate.path, Outcome.FOUND, candidate.found_by.value)
                self._say_what_is_elsewhere(found)
                return found
            if is_unusable:
                self._record.add(candidate.path, Outcome.MALFORMED, "its debug information")
            else:
                symbols = f"{count} symbols" if count else ""
                self._record.add(candidate.path, Outcome.NO_DWARF, symbols)
            if opened.has_code and opened not in self._binaries:
                self._binaries.append(opened)
        return None

    def _candidates(self) -> Iterator[Candidate]:
        image, places, record = self._image, self._places, self._record
        yield from given(image, places, record)
        yield from stored(image, places, FileKind.DEBUGINFO)
        yield from (Candidate(one.path, FoundBy.ITSELF) for one in tuple(self._binaries))
        yield from on_this_machine(image)
        if image.format is ImageFormat.ELF:
            from machtrace.images.candidates import elf_debug_files, linked_debug_files

            yield from elf_debug_files(image, places, record)
            for binary in tuple(self._binaries):
                yield from linked_debug_files(binary, places, record)
        else:
            yield from bundles(image, places, [one.path for one in self._binaries], record)
        yield from indexed(image, places, record, FileKind.DEBUGINFO)
        yield from spotlighted(image, places, record)

    def _open(self, candidate: Candidate) -> IdentifiedFile | None:
        for binary in self._binaries:
            if binary.path == candidate.path:
                return binary
        return open_identified(
            candidate.path,
            self._image,
            self._record,
            is_proven=candidate.is_proven,
            crc=candidate.crc,
        )

    def _debug_file(self, opened: IdentifiedFile, candidate: Candidate) -> DebugFile:
        uuid = self._image.uuid
        return DebugFile(
            contents=opened.contents,
            data=opened.data,
            slice_offset=opened.slice_offset,
            path=opened.path,
            found_by=candidate.found_by,
            source_paths=dsym_source_paths(opened.path, uuid, self._record)
            if isinstance(uuid, UUID)
            else NOT_MOVED,
        )

    def _say_what_is_elsewhere(self, found: DebugFile) -> None:
        if isinstance(found.contents, ElfFileContents):
            from machtrace.images.elf_debug import alternate_file

            alternate = alternate_file(found.contents)
            if alternate is not None:
                name, build_id = alternate
                self._record.add(
                    name, Outcome.NOT_READ, f"dwz moved names there; build-id {build_id}"
                )

    def _debug_map(self) -> DebugMap | None:
        maps = (usable_debug_map(one, self._places, self._record) for one in self._binaries)
        return next((found for found in maps if found is not None), None)


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
