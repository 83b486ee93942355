"""The bounds of an ELF image's functions, from its symbols, and from code that none names."""

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

BoundsBetween = Callable[[Svma, int, int], tuple[Svma, Svma] | None]
"""Returns the (start, end) of the function that holds an address, between the last function with a
name before it and the next one."""


class ElfFunctionBounds:
    """Starts and ends of functions; the symbols are read on the first query."""

    __slots__ = ("_contents", "_table", "_unnamed")

    def __init__(self, contents: ElfContents, unnamed: BoundsBetween | None = None) -> None:
        """``unnamed``: returns the bounds of functions outside of symbols."""
        self._contents = contents
        self._table: tuple[Addresses, Addresses] | None = None
        self._unnamed = unnamed

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """Return the (start, end) of the function that holds ``address``.

        None outside of functions.

        A symbol without a size, as in assembly, ends where the next begins. See
        :mod:`machtrace.unwinder.arch.unnamed_functions` for code outside of symbols.
        """
        if self._table is None:
            self._table = _bounds(self._contents)
        starts, ends = self._table
        if not 0 <= address < 1 << 64:
            return None
        index = int(starts.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address >= int(ends[index]):
            return self._unnamed_at(address, starts, ends, index)
        return Svma(int(starts[index])), Svma(int(ends[index]))

    def _unnamed_at(
        self, address: Svma, starts: Addresses, ends: Addresses, before: int
    ) -> tuple[Svma, Svma] | None:
        """Return the bounds of a function behind the symbol ``before``, an index or -1."""
        image = self._contents.image
        section = next(
            (range_ for range_ in image.code_ranges if range_[0] <= address < range_[1]), None
        )
        if section is None or self._unnamed is None:
            return None
        low, high = section
        if before >= 0:
            low = max(low, int(ends[before]))
        if before + 1 < len(starts):
            high = min(high, int(starts[before + 1]))
        return self._unnamed(address, low, high)


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
