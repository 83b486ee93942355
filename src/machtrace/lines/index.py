"""Source lines and inlined calls for offsets in an image: for one at a time, or in columns.

Debug information of today's compilers has columns of lines, too; a SymCache has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from machtrace.demangler import demangle
from machtrace.errors import FormatError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.lines.symcache import NO_LOCATION, NONE, REMEDY
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame, SourceLocation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from machtrace.lines.merged_tables import MergedTables
    from machtrace.lines.symcache import SymCache
    from machtrace.lines.symcache_columns import Indices, Numbers
    from machtrace.symbols.ranges import RangeIndex


_LAST = 2**32 - 1
"""The largest offset that a SymCache can hold."""
_PARENT = 3
MAX_CALLS = 4096
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

    problems: ClassVar[Sequence[MachtraceError]] = ()
    """Why lines are missing: none is, since the index is of one file."""

    def __init__(
        self,
        cache: SymCache | MergedTables,
        *,
        name: Callable[[str], str] = demangle,
        moved: Callable[[str], str] = str,
    ) -> None:
        """Take the tables from ``cache``.

        Args:
            cache: checked tables: of one file, or of an image's object files.
            name: makes the name for users from a linkage name.
            moved: returns the path where a source file is now, for the recorded path.
        """
        self._cache = cache
        self._name = name
        self._moved = moved
        self._ranges: RangeIndex | None = None
        self._depth: Indices | None = None

    def columns(self, offsets: npt.NDArray[np.uint64]) -> DebugColumns:
        """Return the debug information at each of ``offsets``.

        Raises:
            FormatError: the index holds a chain of calls that no compiler makes.
        """
        import numpy as np

        location = self._locations(offsets)
        there = location >= 0
        if not bool(there.any()):
            none, zero = location, np.zeros(len(location), np.uint32)
            return DebugColumns(none, none, zero, none, zero.view(np.int32))
        rows = self._rows_of(location)
        depth = self._depths()[location]
        missing = np.flatnonzero(~there)
        rows[missing], depth[missing] = NO_LOCATION, 0
        return DebugColumns(location, *_columns(rows), depth)

    def chains(self, locations: Indices) -> DebugChains:
        """Return the calls at each of ``locations``; none at one that is -1.

        Raises:
            FormatError: the index holds a chain of calls that no compiler makes.
        """
        import numpy as np

        known = np.flatnonzero(locations >= 0)
        row = locations[known]
        sizes = np.zeros(len(locations), np.int64)
        sizes[known] = self._depths()[row] + 1
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        rows = np.empty((first[-1], len(NO_LOCATION)), np.int32)
        at = first[known]
        while len(row):
            calls = self._rows_of(row)
            rows[at] = calls
            more = np.flatnonzero(calls[:, _PARENT] >= 0)
            at, row = at[more] + 1, calls[more, _PARENT]
        return DebugChains(first, *_columns(rows))

    def inlined(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """Return the calls at ``offset``, innermost first; the function that holds it is the last.

        Empty if nothing is known. At most :data:`MAX_CALLS`.
        """
        return tuple(map(self._frame, self._rows(offset)))

    def function_start(self, offset: ImageOffset) -> ImageOffset | None:
        """Where the function that holds ``offset`` begins; of one in pieces, that piece of it."""
        rows = self._rows(offset)
        function = self._cache.location(rows[-1])[2] if rows else -1
        entry = NONE if function < 0 else self._cache.function_entry(function)
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
        row = cache.location_at(offset)
        rows: list[int] = []
        while row >= 0 and len(rows) < MAX_CALLS:
            rows.append(row)
            row = cache.location(row)[_PARENT]
        return rows

    def _frame(self, row: int) -> InlineFrame:
        cache = self._cache
        file, line, function, _ = cache.location(row)
        linkage_name = "" if function < 0 else cache.function_name(function)
        location = SourceLocation(self.file_path(file), line or None) if file >= 0 else None
        return InlineFrame(self._name(linkage_name), location, linkage_name)

    def _locations(self, offsets: npt.NDArray[np.uint64]) -> Indices:
        import numpy as np

        from machtrace.symbols.ranges import RangeIndex

        if self._ranges is None:
            columns = self._cache.columns
            self._ranges = RangeIndex(columns.range_starts, columns.range_locations)
        located: Indices = self._ranges.find(offsets)
        located[offsets > np.uint64(_LAST)] = -1
        return located

    def _rows_of(self, locations: Indices) -> Indices:
        """Return file, line, function and parent of each, in one block of memory."""
        import numpy as np

        from machtrace.lines.symcache_columns import SymCacheColumns

        tables = self._cache.columns
        if isinstance(tables, SymCacheColumns):
            return tables.location_rows.take(locations, axis=0, mode="wrap")
        columns = (tables.location_file, tables.location_line.view(np.int32))
        more = (tables.location_function, tables.location_parent)
        return np.stack([column[locations] for column in (*columns, *more)], axis=1)

    def _depths(self) -> Indices:
        """Return for each source location how many calls it is inlined into.

        Each step doubles the distance, so that hostile chains take few steps, too.
        """
        import numpy as np

        if self._depth is None:
            parent = self._cache.columns.location_parent
            depth = (parent >= 0).astype(np.int32)
            above = parent.copy()
            rows = np.flatnonzero(parent >= 0)
            while len(rows):
                depth[rows] += depth[above[rows]]
                above[rows] = above[above[rows]]
                rows = rows[above[rows] >= 0]
            if len(depth) and int(depth.max()) >= MAX_CALLS:
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
    import numpy as np

    file, line, function = (np.ascontiguousarray(rows[:, number]) for number in range(_PARENT))
    return file, line.view(np.uint32), function
