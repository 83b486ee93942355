"""The indices of an image's object files as one, at the addresses of their linked code."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import flattened
from machtrace.frozen import dataclass
from machtrace.lines.symcache import NONE, SymCache

_Offsets = npt.NDArray[np.uint64]
_Indices = npt.NDArray[np.int32]
_Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MovedFunctions:
    """Functions of one object file that are in the image; one entry a function in each column."""

    linked: _Offsets
    """The :data:`ImageOffset` of each in the image; none overlap."""
    sizes: _Offsets
    """In bytes."""
    stated: _Offsets
    """The address of each in the object file's index."""


class MergedTables:
    """Many SymCaches as one, which grows: it has the attributes that lookups read of one.

    Numbers of locations, functions and files stay as they are when more is added. A file that
    several object files include has a number for each.
    """

    def __init__(self, source: str) -> None:
        """``source`` is the name in errors; no range exists yet."""
        self.source = source
        self.range_starts: _Numbers = np.zeros(0, np.uint32)
        self.range_locations: _Indices = np.zeros(0, np.int32)
        self.location_file: _Indices = np.zeros(0, np.int32)
        self.location_line: _Numbers = np.zeros(0, np.uint32)
        self.location_function: _Indices = np.zeros(0, np.int32)
        self.location_parent: _Indices = np.zeros(0, np.int32)
        self.function_entries: _Numbers = np.zeros(0, np.uint32)
        self._pieces: list[SymCache] = []
        self._function_bases: list[int] = []
        self._file_bases: list[int] = []

    def with_more(self, added: list[tuple[SymCache, MovedFunctions]]) -> MergedTables:
        """Return these tables and those of more object files."""
        grown = MergedTables(self.source)
        grown._pieces = [*self._pieces, *(cache for cache, _ in added)]
        grown._function_bases = list(self._function_bases)
        grown._file_bases = list(self._file_bases)
        columns: list[list[npt.NDArray[np.generic]]] = [
            [self.range_starts],
            [self.range_locations],
            [self.location_file],
            [self.location_line],
            [self.location_function],
            [self.location_parent],
            [self.function_entries],
        ]
        location_base, function_base = len(self.location_file), len(self.function_entries)
        file_base = 0
        if self._pieces:
            file_base = self._file_bases[-1] + self._pieces[-1].file_count
        for cache, moved in added:
            starts, locations = moved_ranges(cache, moved)
            tables = cache.columns
            rows = (
                starts,
                _above(locations, location_base),
                _above(tables.location_file, file_base),
                tables.location_line,
                _above(tables.location_function, function_base),
                _above(tables.location_parent, location_base),
                moved_entries(cache, moved),
            )
            for column, part in zip(columns, rows, strict=True):
                column.append(part)
            grown._function_bases.append(function_base)
            grown._file_bases.append(file_base)
            location_base += cache.location_count
            function_base += cache.function_count
            file_base += cache.file_count
        return grown._filled(columns)

    def _filled(self, columns: list[list[npt.NDArray[np.generic]]]) -> MergedTables:
        starts, locations, *rest = (np.concatenate(column) for column in columns)
        # Where a function ends another may begin: what is known comes last, and stays.
        order = np.lexsort((locations >= 0, starts))
        starts, locations = starts[order], locations[order]
        last = np.append(starts[1:] != starts[:-1], np.True_)[: len(starts)]
        self.range_starts, self.range_locations = starts[last], locations[last]
        self.location_file, self.location_line, self.location_function = rest[:3]
        self.location_parent, self.function_entries = rest[3:]
        return self

    @property
    def columns(self) -> MergedTables:
        """These tables, which are columns."""
        return self

    def location_at(self, offset: int) -> int:
        """Return the source location of the range that holds ``offset``; -1 if unknown."""
        row = int(self.range_starts.searchsorted(np.uint32(offset), side="right")) - 1
        return int(self.range_locations[row]) if row >= 0 else -1

    def location(self, row: int) -> tuple[int, int, int, int]:
        """Return file, line, function and the call's location of a source location."""
        return (
            int(self.location_file[row]),
            int(self.location_line[row]),
            int(self.location_function[row]),
            int(self.location_parent[row]),
        )

    def function_entry(self, number: int) -> int:
        """Return the start of a function; :data:`NONE` for an inlined one."""
        return int(self.function_entries[number])

    def function_name(self, number: int) -> str:
        """Return a function's linkage name, else its plain one; may be empty."""
        piece = bisect_right(self._function_bases, number) - 1
        return self._pieces[piece].function_name(number - self._function_bases[piece])

    def file_path(self, number: int) -> str:
        """Return a file's path as recorded."""
        piece = bisect_right(self._file_bases, number) - 1
        return self._pieces[piece].file_path(number - self._file_bases[piece])


def moved_ranges(cache: SymCache, moved: MovedFunctions) -> tuple[_Numbers, _Indices]:
    """Return the ranges of an object file's functions in the image, and their locations.

    After each function comes a range of which nothing is known.
    """
    tables = cache.columns
    starts = tables.range_starts.astype(np.uint64)
    stated_ends = moved.stated + moved.sizes
    first = starts.searchsorted(moved.stated, side="right").astype(np.int64) - 1
    end = starts.searchsorted(stated_ends, side="left").astype(np.int64)
    first = np.maximum(first, 0)
    counts = np.maximum(end - first, 0)
    which, index = flattened(counts)
    rows = first[which] + index
    begins = np.maximum(starts[rows], moved.stated[which]) - moved.stated[which]
    placed = begins + moved.linked[which]
    ends = moved.linked + moved.sizes
    both = np.concatenate([placed, ends])
    locations = np.concatenate([tables.range_locations[rows], np.full(len(ends), -1, np.int32)])
    fits = both < np.uint64(NONE)
    return both[fits].astype(np.uint32), locations[fits]


def moved_entries(cache: SymCache, moved: MovedFunctions) -> _Numbers:
    """Return where the image has an index's functions; NONE of those left out."""
    if not len(moved.stated):
        return np.full(cache.function_count, NONE, np.uint32)
    order = np.argsort(moved.stated, kind="stable")
    stated, linked, sizes = moved.stated[order], moved.linked[order], moved.sizes[order]
    function_entry = cache.columns.function_entry
    entries = function_entry.astype(np.uint64)
    row = stated.searchsorted(entries, side="right").astype(np.int64) - 1
    at = np.maximum(row, 0)
    distance = entries - stated[at]
    is_in = (row >= 0) & (distance < sizes[at]) & (function_entry != NONE)
    placed = np.where(is_in, linked[at] + distance, np.uint64(NONE))
    return np.minimum(placed, np.uint64(NONE)).astype(np.uint32)


def _above(column: _Indices, base: int) -> _Indices:
    """Return numbers of one object file as those of all; -1 stays."""
    return np.where(column >= 0, column + np.int32(base), np.int32(-1)).astype(np.int32)
