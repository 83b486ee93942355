"""Source lines and inlined calls for offsets in an image: for one at a time, or in columns.

Debug information of today's compilers has columns of lines, too; a SymCache has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from machtrace.demangler import demangle
from machtrace.errors import FormatError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.lines.symcache import NONE, REMEDY, Indices, Numbers, SymCache
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame, SourceLocation
from machtrace.symbols.ranges import RangeIndex


class DebugTables(Protocol):
    """Ranges of code, their source locations, and the calls that those are inlined into.

    See :class:`~machtrace.lines.symcache.SymCache`, which is one file's.
    """

    @property
    def source(self) -> str:
        """The name in errors."""
        ...

    @property
    def range_starts(self) -> npt.NDArray[np.uint32]:
        """The start of each range, an :data:`ImageOffset`; ascending."""
        ...

    @property
    def range_locations(self) -> npt.NDArray[np.int32]:
        """The source location of each range; -1 if unknown."""
        ...

    @property
    def location_file(self) -> npt.NDArray[np.int32]:
        """The file of each source location; -1 if unknown."""
        ...

    @property
    def location_line(self) -> npt.NDArray[np.uint32]:
        """1-based; 0 if unknown."""
        ...

    @property
    def location_function(self) -> npt.NDArray[np.int32]:
        """The function of each source location; -1 if unknown."""
        ...

    @property
    def location_parent(self) -> npt.NDArray[np.int32]:
        """The location of the call that this one is inlined into; -1 if it is not inlined."""
        ...

    @property
    def function_entry(self) -> npt.NDArray[np.uint32]:
        """The start of each function; 2**32 - 1 if unknown."""
        ...

    def function_name(self, number: int) -> str:
        """Return a function's linkage name, else its plain one; may be empty."""
        ...

    def file_path(self, number: int) -> str:
        """Return a file's path as recorded."""
        ...


_LAST = 2**32 - 1
"""The largest offset that a SymCache can hold."""
_NOTHING = (-1, 0, -1, -1)
"""A row of unknown values: file, line, function, and the location of the call."""
_PARENT = 3
MOST_CALLS = 4096
"""The deepest inlining; no compiler reaches it."""


@dataclass(frozen=True, slots=True, eq=False)
class DebugColumns:
    """The debug information at many offsets: one entry an offset in each column.

    If nothing is known, every column but ``line`` and ``depth`` holds -1; these hold 0.
    """

    location: Indices
    """The source location; equal ones have equal chains of inlined calls."""
    file: Indices
    """The innermost call's file, for :meth:`DebugIndex.file_path`; -1 if unknown."""
    line: Numbers
    """The innermost call's line, 1-based; 0 for code of no line."""
    function: Indices
    """The innermost call's function, inlined or not, for :meth:`DebugIndex.function_name`."""
    depth: Indices
    """The number of calls that are inlined into one another."""


@dataclass(frozen=True, slots=True, eq=False)
class DebugChains:
    """All calls at many source locations: those of the i-th are rows ``first[i]:first[i + 1]``.

    The innermost call comes first; the last is the function that the others are inlined into.
    """

    first: npt.NDArray[np.int64]
    file: Indices
    line: Numbers
    function: Indices


class DebugIndex:
    """The debug information of one image, by :data:`~machtrace.model.address.ImageOffset`."""

    __slots__ = ("_cache", "_depth", "_moved", "_name", "_ranges")

    problems: ClassVar[Sequence[MachtraceError]] = ()
    """Why lines are missing: none is, since the index is of one file."""

    def __init__(
        self,
        cache: DebugTables,
        *,
        name: Callable[[str], str] = demangle,
        moved: Callable[[str], str] = str,
    ) -> None:
        """Take the tables from ``cache``.

        Args:
            cache: checked tables.
            name: makes the name for users from a linkage name.
            moved: returns the path where a source file is now, for the recorded path.
        """
        self._cache = cache
        self._name = name
        self._moved = moved
        self._ranges = RangeIndex(cache.range_starts, cache.range_locations)
        self._depth: Indices | None = None

    def columns(self, offsets: npt.NDArray[np.uint64]) -> DebugColumns:
        """Return the debug information at each of ``offsets``.

        Raises:
            FormatError: the index holds a chain of calls that no compiler makes.
        """
        location = self._locations(offsets)
        there = location >= 0
        if not bool(there.any()):
            none, zero = location, np.zeros(len(location), np.uint32)
            return DebugColumns(none, none, zero, none, zero.view(np.int32))
        rows = self._rows_of(location)
        depth = self._depths()[location]
        missing = np.flatnonzero(~there)
        rows[missing], depth[missing] = _NOTHING, 0
        return DebugColumns(location, *_columns(rows), depth)

    def chains(self, locations: Indices) -> DebugChains:
        """Return the calls at each of ``locations``; none at one that is -1.

        Raises:
            FormatError: the index holds a chain of calls that no compiler makes.
        """
        known = np.flatnonzero(locations >= 0)
        row = locations[known]
        sizes = np.zeros(len(locations), np.int64)
        sizes[known] = self._depths()[row] + 1
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        rows = np.empty((first[-1], len(_NOTHING)), np.int32)
        at = first[known]
        while len(row):
            found = self._rows_of(row)
            rows[at] = found
            more = np.flatnonzero(found[:, _PARENT] >= 0)
            at, row = at[more] + 1, found[more, _PARENT]
        return DebugChains(first, *_columns(rows))

    def inlined(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """Return the calls at ``offset``, innermost first; the function that holds it is the last.

        Empty if nothing is known. At most :data:`MOST_CALLS`.
        """
        return tuple(map(self._frame, self._rows(offset)))

    def function_start(self, offset: ImageOffset) -> ImageOffset | None:
        """Where the function that holds ``offset`` begins; of one in pieces, that piece of it."""
        cache = self._cache
        rows = self._rows(offset)
        function = int(cache.location_function[rows[-1]]) if rows else -1
        entry = NONE if function < 0 else int(cache.function_entry[function])
        return None if entry == NONE else ImageOffset(entry)

    def function_name(self, function: int) -> str:
        """Return the linkage name of a function of a column, else its plain name; may be empty."""
        return self._cache.function_name(function)

    def file_path(self, file: int) -> str:
        """Return the path of a file of a column."""
        return self._moved(self._cache.file_path(file))

    def _rows(self, offset: ImageOffset) -> list[int]:
        if not 0 <= offset <= _LAST:
            return []
        cache = self._cache
        found = int(cache.range_starts.searchsorted(np.uint32(offset), side="right")) - 1
        row = int(cache.range_locations[found]) if found >= 0 else -1
        rows: list[int] = []
        while row >= 0 and len(rows) < MOST_CALLS:
            rows.append(row)
            row = int(cache.location_parent[row])
        return rows

    def _frame(self, row: int) -> InlineFrame:
        cache = self._cache
        file, line = int(cache.location_file[row]), int(cache.location_line[row])
        function = int(cache.location_function[row])
        linkage_name = "" if function < 0 else cache.function_name(function)
        location = SourceLocation(self.file_path(file), line or None) if file >= 0 else None
        return InlineFrame(self._name(linkage_name), location, linkage_name)

    def _locations(self, offsets: npt.NDArray[np.uint64]) -> Indices:
        located: Indices = self._ranges.find(offsets)
        located[offsets > np.uint64(_LAST)] = -1
        return located

    def _rows_of(self, locations: Indices) -> Indices:
        """Return file, line, function and parent of each, in one block of memory."""
        cache = self._cache
        if isinstance(cache, SymCache):
            return cache.location_rows.take(locations, axis=0, mode="wrap")
        columns = (cache.location_file, cache.location_line.view(np.int32))
        more = (cache.location_function, cache.location_parent)
        return np.stack([column[locations] for column in (*columns, *more)], axis=1)

    def _depths(self) -> Indices:
        """Return for each source location how many calls it is inlined into.

        Each step doubles the distance, so that hostile chains take few steps, too.
        """
        if self._depth is None:
            parent = self._cache.location_parent
            depth = (parent >= 0).astype(np.int32)
            above = parent.copy()
            rows = np.flatnonzero(parent >= 0)
            while len(rows):
                depth[rows] += depth[above[rows]]
                above[rows] = above[above[rows]]
                rows = rows[above[rows] >= 0]
            if len(depth) and int(depth.max()) >= MOST_CALLS:
                raise FormatError(
                    f"{int(depth.max())} calls are inlined into one another",
                    source=self._cache.source,
                    offset=0,
                    remedy=REMEDY,
                )
            self._depth = depth
        return self._depth


def _columns(rows: Indices) -> tuple[Indices, Numbers, Indices]:
    """Return file, line and function of rows."""
    file, line, function = (np.ascontiguousarray(rows[:, number]) for number in range(_PARENT))
    return file, line.view(np.uint32), function
