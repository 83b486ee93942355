"""Vtables of C++ classes, by the type information that they point to.

Source: Itanium C++ ABI, section 2.5.2 "Virtual Table Components and Order": the offset to the top
of the object, the pointer to ``type_info``, then the virtual functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.flattened_lists import flattened
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.metadata.rtti import TYPE_INFO_SYMBOL, TypeInfos
from machtrace.formats.macho.scattered_records import ScatteredRecords
from machtrace.model.address import Svma

_DATA_SYMBOLS = ("__ZTI", "__ZTV", "__ZTS", "__ZTT")
_FARTHEST = 1 << 32
"""Bytes of an object that are believed."""
_POINTER_SECTIONS = frozenset({"__got", "__auth_got", "__la_symbol_ptr", "__nl_symbol_ptr"})


@dataclass(frozen=True, slots=True, eq=False)
class Vtables:
    """Vtables, ascending by address; of a class with several bases there are several."""

    owners: npt.NDArray[np.int64]
    """Whose each is: a row of the :class:`~machtrace.formats.macho.metadata.rtti.TypeInfos`."""
    tops: npt.NDArray[np.int64]
    """Bytes from the part of the object that the vtable is for to the object's top: 0 or less."""
    firsts: npt.NDArray[np.int64]
    """Where in :attr:`functions` each one's begin, and at the end how many there are."""
    functions: Addresses
    """What the slots lead to (Svma); 0 for a function in another image."""

    def __len__(self) -> int:
        return len(self.owners)


def parse_vtables(
    contents: MachOContents,
    pointers: Pointers,
    type_infos: TypeInfos,
    definitions: Mapping[str, Svma],
    function_starts: Addresses,
) -> Vtables:
    """The vtables of the classes in ``type_infos``; a slot is a pointer to a function's start.

    Args:
        contents: the image, in a file.
        pointers: where its pointers lead.
        type_infos: its classes.
        definitions: where the image has symbols that its pointers are bound to by name.
        function_starts: where functions begin (Svma), sorted.
    """
    size = 8 if contents.image.header.is_64 else 4
    columns = _columns(pointers, type_infos, definitions, function_starts)
    heads = np.flatnonzero((columns.owners >= 0) & ~_in_pointer_sections(contents, columns.places))
    tops, plausible = _offsets_to_top(contents, columns.places, heads, size)
    # A slot follows at once, and slots follow one another.
    follows = np.zeros(len(columns.places) + 1, np.bool_)
    follows[1:-1] = (np.diff(columns.places) == np.uint64(size)) & columns.is_slot[1:]
    breaks = np.flatnonzero(~follows)
    ends = breaks[breaks.searchsorted(heads, side="right")]
    counts = ends - heads - 1
    kept = np.flatnonzero(plausible & (counts > 0))
    heads, counts = heads[kept], counts[kept]
    firsts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    of_table, slots = flattened(counts)
    rows = heads[of_table] + 1 + slots
    return Vtables(columns.owners[heads], tops[kept], firsts, columns.targets[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """All pointers of the image, in order."""

    places: Addresses
    targets: Addresses
    owners: npt.NDArray[np.int64]
    """Which ``type_info`` each leads to; -1: none."""
    is_slot: npt.NDArray[np.bool_]


def _columns(
    pointers: Pointers,
    type_infos: TypeInfos,
    definitions: Mapping[str, Svma],
    function_starts: Addresses,
) -> _Columns:
    rebases, binds = pointers.rebases, pointers.binds
    own = np.array([definitions.get(name, 0) for name in binds.names] or [0], np.uint64)
    is_data = np.array([name.startswith(_DATA_SYMBOLS) for name in binds.names] or [False])
    is_type = np.array([name.startswith(TYPE_INFO_SYMBOL) for name in binds.names] or [False])
    symbols = binds.symbols
    places = np.concatenate([rebases.places, binds.places])
    # Opcodes state a weak pointer twice, where it leads and its name: the name counts less.
    order = np.argsort(places, kind="stable")
    order = order[np.concatenate([[True], np.diff(places[order]) > 0])] if len(order) else order
    targets = np.concatenate([rebases.targets, np.where(is_type[symbols], own[symbols], 0)])
    bound_function = np.concatenate([np.zeros(len(rebases), np.bool_), ~is_data[symbols]])
    targets, bound_function = targets[order], bound_function[order]
    is_function = np.zeros(len(order), np.bool_)
    if len(function_starts):
        at = function_starts.searchsorted(targets).clip(max=len(function_starts) - 1)
        is_function = function_starts[at] == targets
    return _Columns(
        places[order], targets, type_infos.rows_at(targets), is_function | bound_function
    )


def _in_pointer_sections(contents: MachOContents, places: Addresses) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(places), np.bool_)
    for section in contents.image.sections:
        if section.name in _POINTER_SECTIONS:
            found |= places - np.uint64(section.address) < np.uint64(section.size)
    return found


def _offsets_to_top(
    contents: MachOContents, places: Addresses, heads: npt.NDArray[np.int64], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The number before each head, and whether it is one: no pointer, and not beyond belief."""
    order = "<" if contents.image.header.little_endian else ">"
    before = places[heads] - np.uint64(size)
    words, known = ScatteredRecords(contents).read(before, f"{order}i{size}")
    tops = words.astype(np.int64)
    previous = places[np.maximum(heads - 1, 0)]
    is_pointer = (heads > 0) & (previous == before)
    return tops, known & ~is_pointer & (tops <= 0) & (tops > -_FARTHEST)
