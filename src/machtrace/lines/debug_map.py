"""Source lines of an image whose DWARF is in object files, which are read on demand."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.fixups.object_rebasing import rebased_object
from machtrace.formats.macho.segments import S_SYMBOL_STUBS, Section
from machtrace.formats.macho.static_archive import (
    ArchiveMember,
    archive_members,
    part_for,
)
from machtrace.formats.macho.tables.symtab import parse_debug_map, parse_symbols
from machtrace.frozen import dataclass
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.open_file import open_image_file
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.merged_tables import MovedFunctions
from machtrace.lines.parts_index import OpenedPart, PartsIndex
from machtrace.model.address import Svma


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    data: memoryview
    modified: int
    """In seconds since 1970."""


class LinkedObjects:
    """The object files of one debug map; each archive is listed once."""

    def __init__(self, debug_map: DebugMap, record: SearchRecord) -> None:
        """Open nothing yet; ``record`` takes why an object file is missing."""
        self._map = debug_map
        self._record = record
        self._archives: dict[str, dict[str, list[ArchiveMember]]] = {}

    def open(
        self, linked: LinkedObject, names: Callable[[], frozenset[str]]
    ) -> MachOFileContents | None:
        """Return the object file as it was linked; None if it is missing or was changed.

        Args:
            linked: the object file in the debug map.
            names: returns the linkage names that the image has from it, which distinguish it from
                others of its name in an archive.
        """
        is_there = False
        for path in self._map.paths(linked):
            try:
                file = _File(path, open_image_file(path), _modified(path))
            except OSError:  # a FileAccessError is one
                continue
            is_there = True
            try:
                contents = self._in_file(file, linked, names)
            except (FormatError, MemoryReadError) as error:
                self._record.add(str(linked), Outcome.MALFORMED, str(error))
                continue
            if contents is not None:
                return contents
        if not is_there:
            self._record.add(str(linked), Outcome.NO_FILE, "an object file of the debug map")
        return None

    def _in_file(
        self, file: _File, linked: LinkedObject, names: Callable[[], frozenset[str]]
    ) -> MachOFileContents | None:
        if linked.modified == 0 and self._is_newer(file):
            self._record.add(file.path, Outcome.CHANGED, "it is newer than the image")
            return None
        if linked.member is None:
            if linked.modified in (0, file.modified):
                return self._thin(file.data, file.path)
            self._changed(file.path, linked, file.modified)
            return None
        named = self._members(file).get(linked.member, [])
        # Linkers write down when the member was changed, or the archive.
        fitting = [
            member for member in named if linked.modified in (0, member.modified, file.modified)
        ]
        if not named:
            self._record.add(str(linked), Outcome.NO_FILE, "the library has no such member")
        elif not fitting:
            self._changed(str(linked), linked, named[0].modified)
        opened = (self._member(member, linked, file.path) for member in fitting)
        return _defining([member for member in opened if member is not None], names)

    def _members(self, file: _File) -> dict[str, list[ArchiveMember]]:
        """Return the members of an archive by their names, and by the last components of those."""
        members = self._archives.get(file.path)
        if members is None:
            members = self._archives[file.path] = {}
            try:
                part = part_for(file.data, self._map.arch, file.path)
                for member in archive_members(part, file.path):
                    for name in {member.name, os.path.basename(member.name)}:  # noqa: PTH119
                        members.setdefault(name, []).append(member)
            except FormatError as error:  # what came before is good
                self._record.add(file.path, Outcome.MALFORMED, str(error))
        return members

    def _member(
        self, member: ArchiveMember, linked: LinkedObject, archive: str
    ) -> MachOFileContents | None:
        if member.data is not None:
            return self._thin(member.data, f"{archive}({member.name})")
        path = os.path.join(os.path.dirname(archive), member.name)  # noqa: PTH118, PTH120
        try:
            data, modified = open_image_file(path), _modified(path)
        except OSError as error:
            self._record.add(path, Outcome.NO_FILE, error.strerror or "")
            return None
        if linked.modified not in (0, modified, member.modified):
            self._changed(path, linked, modified)
            return None
        return self._thin(data, path)

    def _thin(self, data: memoryview, source: str) -> MachOFileContents:
        slices = parse_slices(data, source)
        fitting = (part.data for part in slices if part.arch is self._map.arch)
        return MachOFileContents(next(fitting, data), source)

    def _is_newer(self, file: _File) -> bool:
        try:
            return file.modified > _modified(self._map.path)
        except OSError:
            return False

    def _changed(self, path: str, linked: LinkedObject, modified: int) -> None:
        times = f"linked at {_time(linked.modified)}, is of {_time(modified)}"
        self._record.add(path, Outcome.CHANGED, times)


def _defining(
    opened: list[MachOFileContents], names: Callable[[], frozenset[str]]
) -> MachOFileContents | None:
    """Return the first of several members of one name that defines the image's functions."""
    if len(opened) > 1:
        wanted = names()
        for one in opened:
            symbols = parse_symbols(one)
            if wanted <= set(symbols.names(np.flatnonzero(symbols.is_in_section).tolist())):
                return one
    return opened[0] if opened else None


def _modified(path: str) -> int:
    return int(os.stat(path).st_mtime)  # noqa: PTH116 - of thousands of object files


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # whatever a file may claim
        return str(seconds)


_RELOCATION_SIZE = 8
_SCATTERED = 0x80000000
_BEFORE = 3
"""Bytes before a relocation that may differ: on x86 the operation, if an address that was loaded is
computed."""
_PLACE = 4
_INSTRUCTION = 4


def are_as_linked(
    image: MachOFileContents,
    linked_object: MachOFileContents,
    *,
    linked: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
    stated: npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    """Mark the functions with the same instructions in the image and in the object file.

    Args:
        image: the image's file, with its code.
        linked_object: the object file.
        linked: the :data:`Svma` of each function in the image.
        sizes: in bytes.
        stated: the :data:`Svma` of each in the object file.
    """
    places = {
        section.address: _relocated(linked_object, section)
        for section in linked_object.image.sections
        if section.is_code
    }
    rows = zip(linked.tolist(), sizes.tolist(), stated.tolist(), strict=True)
    return np.array([_is_same(image, linked_object, places, *row) for row in rows], np.bool_)


def _is_same(
    image: MachOFileContents,
    linked_object: MachOFileContents,
    places: dict[Svma, npt.NDArray[np.bool_]],
    linked: int,
    size: int,
    stated: int,
) -> bool:
    section = linked_object.image.section_at(Svma(stated))
    if section is None or section.address not in places or stated + size > section.end:
        return False
    try:
        here = np.frombuffer(image.read_svma(Svma(linked), size), np.uint8)
        there = np.frombuffer(linked_object.read_svma(Svma(stated), size), np.uint8)
    except MemoryReadError:
        return False
    begin = stated - section.address
    relocated = places[section.address][begin : begin + size]
    differing = np.flatnonzero((here != there) & ~relocated)
    # What is loaded through an address may be loaded otherwise when that is known.
    return len(np.unique(differing // _INSTRUCTION)) <= int(relocated.sum()) // _INSTRUCTION


def _relocated(linked_object: MachOFileContents, section: Section) -> npt.NDArray[np.bool_]:
    """Mark the bytes of a section that a linker may have changed."""
    # A size beyond the file is invalid.
    length = section.size if section.size <= len(linked_object.data) else 0
    changes = np.zeros(length + 1, np.int64)
    size = section.nreloc * _RELOCATION_SIZE
    if section.reloff + size <= len(linked_object.data):
        order = "<" if linked_object.image.header.little_endian else ">"
        table = np.frombuffer(linked_object.data, f"{order}u4", 2 * section.nreloc, section.reloff)
        at = table[::2].astype(np.int64)
        at = np.where(at >= _SCATTERED, at & 0xFFFFFF, at)
        at = at[at < len(changes) - 1]
        before = 0 if linked_object.image.arch.is_arm64 else _BEFORE
        np.add.at(changes, np.maximum(at - before, 0), 1)
        np.add.at(changes, np.minimum(at + _PLACE, len(changes) - 1), -1)
    mask: npt.NDArray[np.bool_] = np.cumsum(changes)[:-1] > 0
    return mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappedFunctions:
    """The object file of each function: one entry a function, by address."""

    starts: npt.NDArray[np.uint64]
    """Each an :data:`ImageOffset`; ascending, no two are equal."""
    sizes: npt.NDArray[np.uint64]
    """In bytes: up to the next function at most."""
    object_ids: npt.NDArray[np.int32]
    """The index in :attr:`DebugMap.objects` of each."""
    linkage_name: Callable[[int], str]
    """Returns the name of an entry, which is that of its symbol in the object file, too."""

    def __len__(self) -> int:
        return len(self.starts)

    def of_object(self, number: int) -> npt.NDArray[np.intp]:
        """Return the entries of one object file."""
        return np.flatnonzero(self.object_ids == number)

    def names_of(self, number: int) -> frozenset[str]:
        """Return the linkage names of one object file's entries."""
        return frozenset(self.linkage_name(int(entry)) for entry in self.of_object(number))


def mapped_functions(contents: MachOFileContents) -> MappedFunctions:
    """Return the functions in the debug map of a Mach-O; none if it has no debug map.

    Raises:
        MachOError: its symbol table is not in the file.
    """
    image = contents.image
    symbols = parse_symbols(contents)
    rows = parse_debug_map(symbols, has_thumb=image.arch.is_arm)
    base = np.uint64(image.header_svma)
    # Of functions that were folded into one, the first that the linker names.
    starts, first = np.unique(rows.starts, return_index=True)
    is_code = (starts >= base) & _in_functions(contents, starts)
    starts, first = starts[is_code], first[is_code]
    last = np.full(1, 2**64 - 1, np.uint64)
    room = np.append(starts[1:] - starts[:-1], last)[: len(starts)]
    sizes = rows.sizes[first]
    names = rows.name_rows[first]
    return MappedFunctions(
        starts=starts - base,
        sizes=np.minimum(np.where(sizes > 0, sizes, room), room),
        object_ids=rows.object_ids[first],
        linkage_name=lambda entry: symbols.name(int(names[entry])),
    )


def _in_functions(
    contents: MachOFileContents, starts: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Mark the Svmas in code that is no stub: some linkers state those of imported names."""
    is_inside = np.zeros(len(starts), np.bool_)
    for section in contents.image.code_sections:
        if section.type != S_SYMBOL_STUBS:
            begin, end = np.uint64(section.address), np.uint64(section.end)
            is_inside |= (starts >= begin) & (starts < end)
    return is_inside


_BASE = 0x1000
"""The address where object files' code is moved: readers of DWARF take address 0 for removed code.
"""
_MAX_BYTES = 1 << 32
"""More bytes than any object file has."""


class DebugMapIndex(PartsIndex):
    """The index of a debug map, over its object files."""

    missing = "source lines of an object file are missing"
    remedy = (
        "keep object files as they were linked, or make a dSYM of them with dsymutil at that time"
    )

    def __init__(self, debug_map: DebugMap, cache: IndexCache) -> None:
        """Read the functions, and no object file yet.

        Raises:
            MachOError: the image's symbol table is not in its file.
        """
        self._map = debug_map
        self._functions = mapped_functions(debug_map.contents)
        starts, numbers = self._functions.starts, self._functions.object_ids
        super().__init__(debug_map.path, cache, starts, numbers, len(debug_map.objects))
        self._files = LinkedObjects(debug_map, self.record)

    def _open(self, number: int) -> OpenedPart | None:
        linked = self._map.objects[number]
        contents = self._files.open(linked, lambda: self._functions.names_of(number))
        if contents is None:
            return None
        if not contents.image.has_dwarf:
            self.record.add(str(linked), Outcome.NO_DWARF)
            return None
        try:
            moved = moved_functions(self._functions, number, contents)
            if linked.modified == 0:
                moved = self._unchanged(linked, contents, moved)
            return ObjectBytes(str(linked), rebased_object(contents, _BASE)), moved
        except (FormatError, MemoryReadError) as error:
            self.record.add(str(linked), Outcome.MALFORMED, str(error))
            return None

    def _unchanged(
        self, linked: LinkedObject, contents: MachOFileContents, moved: MovedFunctions
    ) -> MovedFunctions:
        """Return those functions that have the same code in the image and in the object file."""
        image = self._map.contents
        same = are_as_linked(
            image,
            contents,
            linked=moved.linked + np.uint64(image.image.header_svma),
            sizes=moved.sizes,
            stated=moved.stated - np.uint64(_BASE),
        )
        if not bool(same.all()):
            other = int(np.count_nonzero(~same))
            self.record.add(
                str(linked), Outcome.CHANGED, f"{other} of {len(same)} functions are other ones"
            )
        return MovedFunctions(
            linked=moved.linked[same], sizes=moved.sizes[same], stated=moved.stated[same]
        )


def moved_functions(
    functions: MappedFunctions, number: int, contents: MachOFileContents
) -> MovedFunctions:
    """Return the functions of the object file ``number``, with their offsets in its index.

    Raises:
        MachOError, MemoryReadError: its symbol table is not in the file, or its names overlap.
    """
    entries = functions.of_object(number)
    symbols = parse_symbols(contents)
    rows = np.flatnonzero(symbols.is_in_section)
    values = symbols.n_value
    stated: dict[str, int] = {}
    for name, row in zip(symbols.names(rows.tolist()), rows.tolist(), strict=True):
        if values[row] < _MAX_BYTES:
            stated.setdefault(name, int(values[row]))
    names = map(functions.linkage_name, entries.tolist())
    places = np.array([stated.get(name, -1) for name in names], np.int64)
    there = places >= 0
    return MovedFunctions(
        linked=functions.starts[entries][there],
        sizes=functions.sizes[entries][there],
        stated=places[there].astype(np.uint64) + np.uint64(_BASE),
    )
