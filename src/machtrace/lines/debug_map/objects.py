"""The object files of a debug map, on their own or in static libraries.

Some linkers do not record when an object file was changed. Then its functions' instructions are
compared with the image's. A linker changes instructions only at relocations, and beside them where
it found shorter ways to reach something.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.static_archive import (
    ArchiveMember,
    archive_members,
    part_for,
)
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.frozen import dataclass
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.open_file import open_image_file
from machtrace.images.search_record import Outcome, SearchRecord
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
