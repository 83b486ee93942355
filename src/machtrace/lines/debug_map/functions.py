"""The functions of a debug map, as columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.segments import S_SYMBOL_STUBS
from machtrace.formats.macho.tables.symtab import parse_debug_map, parse_symbols
from machtrace.frozen import dataclass


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
