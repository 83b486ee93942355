"""Source lines of an image whose DWARF is in object files, which are read on demand."""

from __future__ import annotations

import numpy as np

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.object_rebasing import rebased_object
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.search_record import Outcome
from machtrace.lines.debug_map.functions import MappedFunctions, mapped_functions
from machtrace.lines.debug_map.objects import LinkedObjects, are_as_linked
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.merged_tables import MovedFunctions
from machtrace.lines.parts_index import OpenedPart, PartsIndex

_BASE = 0x1000
"""The address where object files' code is moved: readers of DWARF take address 0 for removed code.
"""
_MOST = 1 << 32
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
        if values[row] < _MOST:
            stated.setdefault(name, int(values[row]))
    found = [stated.get(functions.linkage_name(int(entry)), -1) for entry in entries]
    places = np.array(found, np.int64)
    there = places >= 0
    return MovedFunctions(
        linked=functions.starts[entries][there],
        sizes=functions.sizes[entries][there],
        stated=places[there].astype(np.uint64) + np.uint64(_BASE),
    )
