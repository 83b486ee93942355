"""A SymCache's tables as columns straight over its bytes, for many offsets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from machtrace.lines.symcache import SymCache

Indices: TypeAlias = npt.NDArray[np.int32]
"""A column of row numbers; -1 is none."""
Numbers: TypeAlias = npt.NDArray[np.uint32]

_NONE = np.iinfo(np.uint32).max
"""No string, no address, no language."""
_LENGTH_BITS = 35
"""Bits of a string's length, in at most five bytes."""
_LEB128_MORE = 0x80
_WORDS = (6, 4, 4, 1)
"""Words of 4 bytes in a row of each table: files, functions, source locations, ranges."""


class SymCacheColumns:
    """The tables of a SymCache. All references between them were checked."""

    __slots__ = (
        "function_entry",
        "location_file",
        "location_function",
        "location_line",
        "location_parent",
        "location_rows",
        "range_locations",
        "range_starts",
    )

    def __init__(self, cache: SymCache) -> None:
        """Check all references of ``cache``.

        Raises:
            FormatError: a reference is out of bounds or cyclic.
        """
        locations, ranges = cache.location_count, cache.range_count
        counts = (cache.file_count, cache.function_count, locations, ranges)
        file_table, function_table, location_table, range_table = (
            np.frombuffer(cache.data, "<u4", count * words, at).reshape(count, words)
            for at, count, words in zip(cache.tables, counts, _WORDS, strict=True)
        )
        self.range_starts: Numbers = range_table[:, 0]
        """The start of each range, ascending."""
        self.location_rows: Indices = location_table.view("<i4")
        """The four columns below as rows, as they are in the file."""
        signed = self.location_rows
        self.location_file: Indices = signed[:, 0]
        """The file of each source location; -1 if unknown."""
        self.location_line: Numbers = location_table[:, 1]
        """1-based; 0 if unknown. A SymCache has no columns of lines."""
        self.location_function: Indices = signed[:, 2]
        self.location_parent: Indices = signed[:, 3]
        """The source location of the call that this one is inlined into; -1 if it is not inlined.
        """
        self.function_entry: Numbers = function_table[:, 2]
        """The start of a function; 2**32 - 1 for an inlined one."""
        self.range_locations: Indices = np.arange(locations - ranges, locations, dtype=np.int32)
        """The source location of each range; -1 if no function of the debug information holds it.
        """
        self._check(cache)
        # Functions of the symbol table reach too far: nothing is known of where they end.
        known = np.append(function_table[:, 3] != _NONE, np.False_)
        self.range_locations[~known[self.location_function[locations - ranges :]]] = -1
        _check_strings(cache, function_table[:, 0])
        _check_strings(cache, file_table[:, :3].ravel())

    def _check(self, cache: SymCache) -> None:
        """Refuse references that are out of bounds or cyclic."""
        if not bool((self.range_starts[1:] > self.range_starts[:-1]).all()):
            raise cache.fail("ranges are not in order", 0)
        rows = np.arange(len(self.location_parent), dtype=np.uint32)
        columns = (
            ("file", self.location_file, cache.file_count),
            ("function", self.location_function, cache.function_count),
            # A location is written after the call that it is inlined into: so chains end.
            ("call", self.location_parent, rows),
        )
        for what, column, limit in columns:
            following = column.view(np.uint32) + np.uint32(1)  # of none, 0
            if not bool((following <= limit).all()):
                raise cache.fail(f"a source location has a {what} that is not there", 0)


def _check_strings(cache: SymCache, offsets: Numbers) -> None:
    """Refuse strings that are not within the strings' bounds."""
    start, end = cache.strings
    strings = np.frombuffer(cache.data, np.uint8, end - start, start)
    there = offsets != _NONE
    at = np.where(there, offsets, 0).astype(np.int64)
    size = np.zeros(len(at), np.int64)
    more = there
    for shift in range(0, _LENGTH_BITS, 7):
        if not bool((at[more] < len(strings)).all()):
            raise cache.fail("a name is not within the strings", start)
        byte = np.zeros(len(at), np.int64)
        byte[more] = strings[at[more]]
        size |= (byte & 0x7F) << shift
        at += more
        more = more & (byte >= _LEB128_MORE)
        if not bool(more.any()):
            break
    if bool(more.any()) or not bool(((at + size)[there] <= len(strings)).all()):
        raise cache.fail("a name is not within the strings", start)
