"""Finding the file with an image's debug information, by identity: never another image's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from uuid import UUID

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.images.candidates import (
    Candidate,
    bundles,
    given,
    indexed,
    on_this_machine,
    spotlighted,
    stored,
)
from machtrace.images.debug_file import DebugFile, FoundBy, symbol_count
from machtrace.images.debug_map import DebugMap
from machtrace.images.debug_map_search import usable_debug_map
from machtrace.images.dsym_source_paths import dsym_source_paths
from machtrace.images.identified_file import IdentifiedFile, open_identified
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.images.source_paths import NOT_MOVED
from machtrace.images.store_layout import FileKind


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
            from machtrace.images.elf_candidates import elf_debug_files, linked_debug_files

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
