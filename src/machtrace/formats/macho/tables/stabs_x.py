"""The debug map that linkers leave in a symbol table, as columns (``mach-o/stab.h``).

A linker that leaves DWARF in the object files writes stabs that say where those are and what it
took from each: N_OSO with an object file's path and when that was changed, then for each of its
functions N_FUN with the name and the address, and N_FUN without a name and with the size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.tables.stabs import N_OSO
from machtrace.formats.macho.tables.symtab import SymbolRows

N_FUN = 0x24


@dataclass(frozen=True, slots=True, eq=False)
class DebugMapRows:
    """A debug map: functions in the symbol table's order, one entry a function in each column."""

    starts: npt.NDArray[np.uint64]
    """Each an :data:`Svma`; of Thumb functions without the lowest bit."""
    sizes: npt.NDArray[np.uint64]
    """In bytes; 0 where it is not said."""
    object_ids: npt.NDArray[np.int32]
    """Which object file each function is from, by its place among the N_OSO."""
    name_rows: npt.NDArray[np.intp]
    """For each function, the symbol with its name."""


def parse_debug_map(symbols: SymbolRows, *, has_thumb: bool = False) -> DebugMapRows:
    """The debug map in a symbol table; empty where there is none.

    Functions that stand before the first object file belong to none, and are left out.

    Args:
        symbols: the whole symbol table.
        has_thumb: whether the lowest bit of a function's address is no part of it.
    """
    kinds = symbols.n_type
    objects = np.flatnonzero(kinds == N_OSO)
    functions = np.flatnonzero(kinds == N_FUN)
    values = symbols.n_value[functions]
    begins = symbols.is_named[functions]
    # Whose next N_FUN has no name: that one's value is the size.
    is_sized = np.append(~begins[1:], np.False_)[: len(begins)]
    following = np.append(values[1:], np.zeros(1, np.uint64))[: len(values)]
    object_ids = objects.searchsorted(functions, side="right").astype(np.int32) - np.int32(1)
    kept = np.flatnonzero(begins & (object_ids >= 0))
    starts = values[kept]
    if has_thumb:
        starts &= ~np.uint64(1)
    return DebugMapRows(
        starts=starts,
        sizes=np.where(is_sized, following, np.uint64(0))[kept],
        object_ids=object_ids[kept],
        name_rows=functions[kept],
    )
