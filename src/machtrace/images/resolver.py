"""The files of an image: its binary, its symbols, its debug information. Searched for once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeAlias
from uuid import UUID

from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.images.candidates import (
    Candidate,
    bundles,
    given,
    indexed,
    on_this_machine,
    spotlighted,
    stored,
)
from machtrace.images.debug_file import NOT_MOVED, DebugFile, FoundBy
from machtrace.images.debug_map import DebugMap, usable_debug_map
from machtrace.images.dsym import dsym_source_paths
from machtrace.images.open_file import IdentifiedFile, open_identified
from machtrace.images.search_path import SearchPath
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.images.store_layout import FileKind
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus
from machtrace.model.text import counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageFiles:
    """The files of an image: the best of each kind, all with the image's identifier."""

    binary: ObjectFile | FrameStatus
    """The mapped file: code, function starts, stubs, unwind tables; or why there is none."""
    symbols: DebugFile | None
    """A file with more symbols than the binary: its dSYM, an unstripped twin."""
    lines: DebugFile | DebugMap | FrameStatus
    """The source of lines and inlined calls, or why there is none."""
    attempts: tuple[Attempt, ...]
    """Every location that was tried for the three, in that order."""

    @property
    def status(self) -> FrameStatus:
        """SYMBOLICATED if any file was found; else why none was."""
        if not isinstance(self.binary, FrameStatus):
            return FrameStatus.SYMBOLICATED
        if self.symbols is not None or not isinstance(self.lines, FrameStatus):
            return FrameStatus.SYMBOLICATED
        return self.binary if self.binary is not FrameStatus.MISSING_FILE else self.lines

    def twins(self, source: str | None) -> list[ObjectFile]:
        """Return the files that may have more symbols than the one called ``source``."""
        files = [
            file.contents for file in (self.symbols, self.lines) if isinstance(file, DebugFile)
        ]
        return list({file.source: file for file in files if file.source != source}.values())


class ImageResolver:
    """Opens the files of images by identity, each image's once: another image's are never used.

    For an image without an identifier, a file is used only if the user gave it and it has the
    image's name, or if the target identified it as the mapped file.

    Answers are cached as long as the resolver lives: files that appear later are found by a new
    resolver. Several threads may use it.
    """

    def __init__(self, path: SearchPath | None = None) -> None:
        """Open nothing yet; ``path`` is where to search besides the usual locations."""
        self.path = SearchPath() if path is None else path
        self._lock = Lock()
        self._adopted: set[Hashable] = set()
        self._resolutions: dict[Hashable, _Resolution] = {}

    @classmethod
    def of(cls, search: Search = ()) -> ImageResolver:
        """Return ``search`` itself if it is a resolver; else one for the paths that a user gave."""
        return search if isinstance(search, ImageResolver) else cls(SearchPath.of(search))

    def binary(self, image: BinaryImage) -> ObjectFile | FrameStatus:
        """Return the image's file with its code, or why there is none. Raises nothing."""
        return self._resolution(image).binary()

    def files(self, image: BinaryImage) -> ImageFiles:
        """Return the image's binary, symbols and debug information. Raises nothing."""
        return self._resolution(image).files()

    def reject(self, image: BinaryImage, path: str) -> ImageFiles:
        """Return the next best files, since the debug information at ``path`` is unreadable."""
        return self._resolution(image).reject(path)

    def adopt(self, image: BinaryImage, file: IdentifiedFile) -> None:
        """Use a file that the caller opened as the file of ``image``, whose path is the file's."""
        self.path.add_opened(file.file)
        key = _path_key(image)
        with self._lock:
            if key not in self._adopted:
                self._adopted.add(key)
                self._resolutions[key] = _Resolution(image, self.path, file)

    def key(self, image: BinaryImage) -> Hashable:
        """Return a key that images share if they share their files."""
        path_key = _path_key(image)
        if path_key in self._adopted:
            return path_key
        if image.uuid is None:
            return path_key, image.local_path, _file_state(image.local_path or image.path)
        return image.uuid, image.arch, image.format

    def _resolution(self, image: BinaryImage) -> _Resolution:
        key = self.key(image)
        with self._lock:
            resolution = self._resolutions.get(key)
            if resolution is None:
                resolution = self._resolutions[key] = _Resolution(image, self.path)
            elif resolution.is_of_other_path(image):
                # Another process may have the same image where its file can be read.
                key = key, image.path, image.local_path
                resolution = self._resolutions.get(key)
                if resolution is None:
                    resolution = self._resolutions[key] = _Resolution(image, self.path)
            return resolution


Search: TypeAlias = str | Path | Sequence[str | Path] | ImageResolver
"""Files and folders to search for images and debug files, or a resolver that has them."""


def _path_key(image: BinaryImage) -> Hashable:
    return image.path, image.uuid, image.arch, image.format


def _file_state(path: str) -> Hashable:
    """Return what changes if a file without an identifier is replaced."""
    try:
        status = os.stat(path)  # noqa: PTH116 - paths are text here
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Resolution:
    """The search for one image's files: the binary first, the others if they are wanted."""

    def __init__(
        self, image: BinaryImage, path: SearchPath, binary: IdentifiedFile | None = None
    ) -> None:
        self._image = image
        self._path = path
        self._lock = Lock()
        self._record = SearchRecord()
        self._opened: dict[str, IdentifiedFile] = {}
        self._refused: dict[tuple[str, bool, int | None], list[Attempt]] = {}
        self._unusable: set[str] = set()
        self._files: ImageFiles | None = None
        self._binary: IdentifiedFile | None = None
        self._is_searched = False
        if binary is not None:
            self._opened[binary.path] = binary
            if binary.has_code:
                self._binary, self._is_searched = binary, True

    def binary(self) -> ObjectFile | FrameStatus:
        with self._lock:
            binary = self._search_binary()
            return self._record.status if binary is None else binary.contents

    def files(self) -> ImageFiles:
        with self._lock:
            if self._files is None:
                self._files = self._search()
            return self._files

    def reject(self, path: str) -> ImageFiles:
        with self._lock:
            self._unusable.add(path)
            self._files = self._search()
            return self._files

    def is_of_other_path(self, image: BinaryImage) -> bool:
        """Whether nothing was found, and ``image`` is stated to be elsewhere."""
        if (image.path, image.local_path) == (self._image.path, self._image.local_path):
            return False
        return self._is_searched and self._binary is None

    def _search_binary(self) -> IdentifiedFile | None:
        if self._is_searched:
            return self._binary
        self._is_searched = True
        image, path, record = self._image, self._path, self._record
        for candidate in chain(
            given(image, path, record),
            stored(image, path, FileKind.EXECUTABLE),
            on_this_machine(image),
            indexed(image, path, record, FileKind.EXECUTABLE),
        ):
            file = self._open(candidate, record)
            if file is not None and file.has_code:
                self._binary = file
                break
            if file is not None:
                record.add(candidate.path, Outcome.NO_CODE)
        return self._binary

    def _open(self, candidate: Candidate, record: SearchRecord) -> IdentifiedFile | None:
        """Return a candidate if it is the image's; each is opened once in all searches."""
        path, key = candidate.path, (candidate.path, candidate.is_proven, candidate.crc)
        file = self._opened.get(path)
        if file is None and key not in self._refused:
            attempts = SearchRecord()
            file = open_identified(
                path,
                self._image,
                attempts,
                is_proven=candidate.is_proven,
                crc=candidate.crc,
                opened=self._path.opened(path),
            )
            if file is None:
                self._refused[key] = attempts.attempts
            else:
                self._opened[path] = file
        if file is None:
            record.attempts.extend(self._refused[key])
        return file

    def _search(self) -> ImageFiles:
        binary = self._search_binary()
        search = DebugSearch(self._image, self._path, binary, self._open, self._unusable)
        lines = search.lines()
        return ImageFiles(
            binary=self._record.status if binary is None else binary.contents,
            symbols=search.symbols,
            lines=search.record.status if lines is None else lines,
            attempts=tuple(dict.fromkeys((*self._record.attempts, *search.record.attempts))),
        )


class DebugSearch:
    """One search for the file with the image's DWARF, until one is found."""

    def __init__(
        self,
        image: BinaryImage,
        path: SearchPath,
        binary: IdentifiedFile | None,
        open_candidate: Callable[[Candidate, SearchRecord], IdentifiedFile | None],
        unusable: Collection[str],
    ) -> None:
        self.record = SearchRecord()
        self.symbols: DebugFile | None = None
        self._image = image
        self._path = path
        self._open = open_candidate
        self._unusable = unusable
        # The image's own files may hold the DWARF themselves, link to it, or have a debug map.
        self._binaries = [] if binary is None else [binary]
        self._most = 0 if binary is None else binary.contents.image.symbol_count

    def lines(self) -> DebugFile | DebugMap | None:
        """Return the source of lines; the largest symbol table seen is in :attr:`symbols`."""
        return self._dwarf_file() or self._debug_map()

    def _dwarf_file(self) -> DebugFile | None:
        tried: set[str] = set()
        for candidate in self._candidates():
            if candidate.path in tried:
                continue
            tried.add(candidate.path)
            opened = self._open(candidate, self.record)
            if opened is None:
                continue
            file = self._debug_file(opened, candidate)
            count = file.contents.image.symbol_count
            if count > self._most:
                self.symbols, self._most = file, count
            is_unusable = candidate.path in self._unusable
            if file.has_dwarf and not is_unusable:
                self.record.add(candidate.path, Outcome.FOUND, candidate.found_by.value)
                self._note_alternate_file(file)
                return file
            if file.has_dwarf:
                self.record.add(candidate.path, Outcome.MALFORMED, "its debug information")
            else:
                symbols = counted(count, "symbol") if count else ""
                self.record.add(candidate.path, Outcome.NO_DWARF, symbols)
            if opened.has_code and opened not in self._binaries:
                self._binaries.append(opened)
        return None

    def _candidates(self) -> Iterator[Candidate]:
        image, path, record = self._image, self._path, self.record
        yield from given(image, path, record)
        yield from stored(image, path, FileKind.DEBUGINFO)
        yield from (Candidate(binary.path, FoundBy.ITSELF) for binary in tuple(self._binaries))
        yield from on_this_machine(image)
        if image.format is ImageFormat.ELF:
            from machtrace.images.candidates import elf_debug_files, linked_debug_files

            yield from elf_debug_files(image, path, record)
            for binary in tuple(self._binaries):
                yield from linked_debug_files(binary, path, record)
        else:
            yield from bundles(image, path, [binary.path for binary in self._binaries], record)
        yield from indexed(image, path, record, FileKind.DEBUGINFO)
        yield from spotlighted(image, path, record)

    def _debug_file(self, opened: IdentifiedFile, candidate: Candidate) -> DebugFile:
        uuid = self._image.uuid
        return DebugFile(
            contents=opened.contents,
            data=opened.data,
            slice_offset=opened.slice_offset,
            path=candidate.path,
            found_by=candidate.found_by,
            source_paths=dsym_source_paths(candidate.path, uuid, self.record)
            if isinstance(uuid, UUID)
            else NOT_MOVED,
        )

    def _note_alternate_file(self, file: DebugFile) -> None:
        if file.contents.format is ImageFormat.ELF:
            from machtrace.images.elf_debug import alternate_file

            alternate = alternate_file(file.contents)
            if alternate is not None:
                name, build_id = alternate
                self.record.add(
                    name, Outcome.NOT_READ, f"dwz moved names there; build-id {build_id}"
                )

    def _debug_map(self) -> DebugMap | None:
        maps = (usable_debug_map(binary, self._path, self.record) for binary in self._binaries)
        return next((map_ for map_ in maps if map_ is not None), None)
