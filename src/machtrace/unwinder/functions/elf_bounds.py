"""The bounds of an ELF image's functions, from its symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import Svma

Addresses: TypeAlias = npt.NDArray[np.uint64]
"""Svmas."""


class ElfFunctionBounds:
    """Starts and ends of functions; the symbols are read on the first query."""

    __slots__ = ("_contents", "_table")

    def __init__(self, contents: ElfContents) -> None:
        self._contents = contents
        self._table: tuple[Addresses, Addresses] | None = None

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """Return the (start, end) of the function that holds ``address``.

        None outside of functions.

        A symbol without a size, as in assembly, ends where the next begins. Code outside of symbols
        may be any function's and has no bounds.
        """
        if self._table is None:
            self._table = _bounds(self._contents)
        starts, ends = self._table
        if not 0 <= address < 1 << 64:
            return None
        index = int(starts.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address >= int(ends[index]):
            return None
        return Svma(int(starts[index])), Svma(int(ends[index]))


def _bounds(contents: ElfContents) -> tuple[Addresses, Addresses]:
    sections = contents.image.code_ranges
    tables = [_functions(parse, contents) for parse in (parse_symbols, parse_dynamic_symbols)]
    starts = np.concatenate([table[0] for table in tables])
    sizes = np.concatenate([table[1] for table in tables])
    lows = np.array([low for low, _ in sections], np.uint64)
    highs = np.array([high for _, high in sections], np.uint64)
    # The section that each symbol is in, if it is inside of it, limits its size.
    section = lows.searchsorted(starts, "right").astype(np.int64) - 1
    inside = section >= 0
    inside[inside] = starts[inside] < highs[section[inside]]
    starts, sizes, limits = starts[inside], sizes[inside], highs[section[inside]]
    # The longest symbol at an address counts: an alias may have no size.
    order = np.lexsort((sizes, starts))
    starts, sizes, limits = starts[order], sizes[order], limits[order]
    is_last = np.ones(len(starts), np.bool_)
    is_last[:-1] = starts[1:] != starts[:-1]
    starts, sizes, limits = starts[is_last], sizes[is_last], limits[is_last]
    limits[:-1] = np.minimum(limits[:-1], starts[1:])
    sizes = np.where(sizes == 0, limits - starts, np.minimum(sizes, limits - starts))
    return starts, starts + sizes


def _functions(
    parse: Callable[[ElfContents], SymbolRows], contents: ElfContents
) -> tuple[Addresses, Addresses]:
    try:
        rows = parse(contents)
    except (FormatError, MemoryReadError):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    functions = rows.is_function
    return rows.addresses[functions], rows.sizes[functions]
