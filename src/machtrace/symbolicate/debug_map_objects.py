"""Opening the object files of a debug map, on their own or in static libraries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.macho.contents import FileContents
from machtrace.macho.fat import parse_slices
from machtrace.macho.static_archive import (
    ArchiveMember,
    archive_members,
    is_static_archive,
    part_for,
)
from machtrace.macho.symtab import parse_symbols
from machtrace.symbolicate.debug_map import DebugMap, LinkedObject
from machtrace.symbolicate.image_file import open_image_file
from machtrace.symbolicate.search_record import Outcome, SearchRecord


def open_object(
    linked: LinkedObject,
    debug_map: DebugMap,
    record: SearchRecord,
    names: Callable[[], frozenset[str]],
) -> FileContents | None:
    """The object file, as it was when it was linked; None where it is not there or was changed.

    Args:
        linked: which.
        debug_map: that it is of.
        record: takes why there is none.
        names: gives the linkage names that the image has from it, which tell it from others of
            its name in an archive.
    """
    is_there = False
    for path in debug_map.paths(linked):
        try:
            data = open_image_file(path)
            modified = int(os.stat(path).st_mtime)  # noqa: PTH116
        except (FileAccessError, OSError):
            continue
        is_there = True
        try:
            found = _in_file(_File(path, data, modified), linked, debug_map, record, names)
        except (FormatError, MemoryReadError) as error:
            record.add(str(linked), Outcome.MALFORMED, str(error))
            continue
        if found is not None:
            return found
    if not is_there:
        record.add(str(linked), Outcome.NO_FILE, "an object file of the debug map")
    return None


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    data: memoryview
    modified: int


def _in_file(
    file: _File,
    linked: LinkedObject,
    debug_map: DebugMap,
    record: SearchRecord,
    names: Callable[[], frozenset[str]],
) -> FileContents | None:
    if linked.member is None:
        if linked.modified not in (0, file.modified):
            record.add(file.path, Outcome.CHANGED, _times(linked.modified, file.modified))
            return None
        if linked.modified == 0 and _is_newer(file.modified, debug_map):
            record.add(file.path, Outcome.CHANGED, "it is newer than the image")
            return None
        return _thin(file.data, debug_map, file.path)
    part = part_for(file.data, debug_map.arch, file.path)
    if not is_static_archive(part):
        record.add(file.path, Outcome.OTHER_FORMAT, "not a static library")
        return None
    if linked.modified == 0 and _is_newer(file.modified, debug_map):
        record.add(file.path, Outcome.CHANGED, "it is newer than the image")
        return None
    named = [one for one in archive_members(part, file.path) if _is_called(one, linked.member)]
    # Linkers write down when the member was changed, or the archive.
    fitting = [one for one in named if linked.modified in (0, one.modified, file.modified)]
    if not named:
        record.add(str(linked), Outcome.NO_FILE, "the library has no such member")
    elif not fitting:
        record.add(str(linked), Outcome.CHANGED, _times(linked.modified, named[0].modified))
    opened = [_member(one, linked, debug_map, file.path, record) for one in fitting]
    return _defining([one for one in opened if one is not None], names)


def _member(
    member: ArchiveMember,
    linked: LinkedObject,
    debug_map: DebugMap,
    path: str,
    record: SearchRecord,
) -> FileContents | None:
    if member.data is not None:
        return _thin(member.data, debug_map, f"{path}({member.name})")
    outside = os.path.join(os.path.dirname(path), member.name)  # noqa: PTH118, PTH120
    try:
        data = open_image_file(outside)
    except FileAccessError as error:
        record.add(outside, Outcome.NO_FILE, error.reason)
        return None
    modified = int(os.stat(outside).st_mtime)  # noqa: PTH116
    if linked.modified not in (0, modified, member.modified):
        record.add(outside, Outcome.CHANGED, _times(linked.modified, modified))
        return None
    return _thin(data, debug_map, outside)


def _is_newer(modified: int, debug_map: DebugMap) -> bool:
    """Whether an object file was changed after the image, where the linker kept no time."""
    try:
        return modified > int(os.stat(debug_map.path).st_mtime)  # noqa: PTH116
    except OSError:
        return False


def _thin(data: memoryview, debug_map: DebugMap, source: str) -> FileContents:
    for part in parse_slices(data, source):
        if part.arch is debug_map.arch:
            return FileContents(part.data, source)
    return FileContents(data, source)


def _defining(
    opened: list[FileContents], names: Callable[[], frozenset[str]]
) -> FileContents | None:
    """Of several members of one name, the first that defines what the image has from it."""
    if len(opened) > 1:
        wanted = names()
        for one in opened:
            symbols = parse_symbols(one)
            if wanted <= set(symbols.names(np.flatnonzero(symbols.is_in_section).tolist())):
                return one
    return opened[0] if opened else None


def _is_called(member: ArchiveMember, name: str) -> bool:
    return member.name == name or os.path.basename(member.name) == name  # noqa: PTH119


def _times(recorded: int, found: int) -> str:
    return f"linked at {_time(recorded)}, is of {_time(found)}"


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # whatever a file may claim
        return str(seconds)
