"""Reading the debug map of a Mach-O from its symbol table."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.macho.contents import FileContents
from machtrace.macho.segments import S_SYMBOL_STUBS
from machtrace.macho.stabs import parse_debug_map
from machtrace.macho.symtab import parse_symbols
from machtrace.symbolicate.debug_map import DebugMap, LinkedObject
from machtrace.symbolicate.debug_map_objects import object_paths
from machtrace.symbolicate.identified_file import IdentifiedFile
from machtrace.symbolicate.search_places import SearchPlaces
from machtrace.symbolicate.search_record import Outcome, SearchRecord

Svmas: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`Svma`."""

_TOLD = 8
"""Object files that are told one by one where they are missing."""


def usable_debug_map(
    binary: IdentifiedFile, places: SearchPlaces, record: SearchRecord
) -> DebugMap | None:
    """The debug map of ``binary`` where it has one and any of its object files is there."""
    if not isinstance(binary.contents, FileContents):
        return None
    try:
        found = read_debug_map(binary.contents, binary.path)
    except (FormatError, MemoryReadError) as error:
        record.add(binary.path, Outcome.MALFORMED, str(error))
        return None
    if found is None:
        return None
    folders = tuple(place for place in places.paths if os.path.isdir(place))  # noqa: PTH112
    found = replace(found, folders=folders)
    missing = [
        one for one in found.objects if not any(map(os.path.isfile, object_paths(one, found)))
    ]
    for one in missing[:_TOLD]:
        record.add(str(one), Outcome.NO_FILE, "an object file of the debug map")
    if len(missing) > _TOLD:
        record.add(f"{len(missing) - _TOLD} more object files", Outcome.NO_FILE)
    there = len(found.objects) - len(missing)
    if not there:
        return None
    record.add(
        binary.path, Outcome.FOUND, f"a debug map; {there} of {len(found.objects)} object files"
    )
    return found


def read_debug_map(contents: FileContents, path: str) -> DebugMap | None:
    """The debug map of a Mach-O; None where it has none.

    Raises:
        MachOError: its symbol table is not in the file.
    """
    image = contents.image
    symbols = parse_symbols(contents)
    rows = parse_debug_map(symbols, has_thumb=image.arch.is_arm)
    if not len(rows.starts):
        return None
    base = np.uint64(image.header_svma)
    # Of functions that were folded into one, the first that the linker names.
    starts, first = np.unique(rows.starts, return_index=True)
    kept = (starts >= base) & _in_functions(contents, starts)
    starts, first = starts[kept], first[kept]
    room = np.append(starts[1:] - starts[:-1], np.full(1, 2**64 - 1, np.uint64))[: len(starts)]
    sizes = rows.sizes[first]
    sizes = np.minimum(np.where(sizes > 0, sizes, room), room)
    names = rows.name_rows[first]
    objects = (symbols.name(int(row)) for row in rows.object_rows)
    return DebugMap(
        path=path,
        contents=contents,
        objects=tuple(map(LinkedObject.parse, objects, rows.object_modified.tolist())),
        starts=starts - base,
        sizes=sizes,
        object_ids=rows.object_ids[first],
        linkage_name=lambda entry: symbols.name(int(names[entry])),
    )


def _in_functions(contents: FileContents, starts: Svmas) -> npt.NDArray[np.bool_]:
    """Which addresses are in code that is no stub: some linkers state those of imported names."""
    kept = np.zeros(len(starts), np.bool_)
    for section in contents.image.code_sections:
        if section.type != S_SYMBOL_STUBS:
            begin, end = np.uint64(section.address), np.uint64(section.end)
            kept |= (starts >= begin) & (starts < end)
    return kept
