"""Ranges of an image with names, and the lookup of offsets in them, for one offset or millions.

Everything that divides an image into ranges (functions, lines, inlined calls) is looked up here. If
the package was built with its extensions, that is a bitmap of the starts of ranges (see
``native/ranges/index.h``): one cache line an offset, whatever the number of ranges. It is built for
the first large column; else, and for few offsets, the starts are searched.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.frozen import dataclass
from machtrace.model.symbol import Certainty

if TYPE_CHECKING:
    from concurrent.futures import Future

    from machtrace._native import _ranges

Offsets: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`~machtrace.model.address.ImageOffset`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRanges:
    """Symbols of one kind, in their table's order; one entry a row in each column."""

    starts: Offsets
    sizes: Offsets
    """In bytes; 0 if the format does not state it."""
    preferred: npt.NDArray[np.bool_]
    """Which of several symbols at one address to show: the first preferred one (global before
    local, as dyld chooses)."""
    linkage_name: Callable[[int], str]
    """Returns the name of a row; empty if it turns out to have none."""
    certainty: Certainty
    is_label: Callable[[npt.NDArray[np.intp]], npt.NDArray[np.bool_]] | None = None
    """Which of some rows only the assembler knew: in the middle of a function they name an address
    in it and nothing of their own. None if no row is of that kind."""
    leading_underscore: bool = False
    """Whether the names begin with an underscore that users do not read, as those of Mach-O's
    symbol tables do."""

    @classmethod
    def unranked(
        cls,
        starts: Offsets,
        linkage_name: Callable[[int], str],
        certainty: Certainty,
        *,
        sizes: Offsets | None = None,
        leading_underscore: bool = False,
    ) -> NamedRanges:
        """Return symbols of which none is preferred to others; of unknown sizes, unless given."""
        return cls(
            starts=starts,
            sizes=np.zeros(len(starts), np.uint64) if sizes is None else sizes,
            preferred=np.ones(len(starts), np.bool_),
            linkage_name=linkage_name,
            certainty=certainty,
            leading_underscore=leading_underscore,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, rows: npt.NDArray[np.intp]) -> NamedRanges:
        """Return some of the rows, in the given order."""
        name, is_label = self.linkage_name, self.is_label
        return replace(
            self,
            starts=self.starts[rows],
            sizes=self.sizes[rows],
            preferred=self.preferred[rows],
            linkage_name=lambda row: name(int(rows[row])),
            is_label=None if is_label is None else lambda some: is_label(rows[some]),
        )


Starts: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.uint32]
"""Ascending; several may be equal."""

Answers: TypeAlias = npt.NDArray[np.int32]
"""One for each offset; -1 for none."""

_FEW = 4096
"""Columns too short for an index."""
_MANY = 1 << 22
"""Columns long enough for threads by default: shorter ones take no longer than a turn of another
program, which one of the threads may have to wait for."""
_PART = 1 << 17
"""Offsets that a thread takes at a time."""
_MAX_THREADS = 8
"""By default: memory serves no more of them at once."""


class RangeIndex:
    """Ranges that begin at ``starts`` and end where the next one begins."""

    __slots__ = ("_index", "_starts", "_values")

    def __init__(self, starts: Starts, values: npt.NDArray[np.int32] | None = None) -> None:
        """Keep the columns, without copying them.

        Args:
            starts: the starts of the ranges, of any address space, ascending.
            values: the result for each range, its row by default. A range of -1 is as good as none.
        """
        self._starts = starts
        self._values = values
        self._index: _ranges.RangeIndex | None = None

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> Starts:
        """The starts of the ranges."""
        return self._starts

    @property
    def nbytes(self) -> int:
        """Bytes of its columns, and of the index if it was built."""
        columns = self._starts.nbytes + (0 if self._values is None else self._values.nbytes)
        return columns + (0 if self._index is None else self._index.nbytes)

    def find(
        self, offsets: npt.NDArray[np.uint64], *, back: int = 0, threads: int | None = None
    ) -> Answers:
        """Return for each offset the value of the last range that starts at or before it.

        Args:
            offsets: in any order, of the address space of the starts.
            back: subtracted from each first; below 0 it is in no range.
            threads: how many to share a large column among; None for as many as this process has
                processors if it is very large. They end with the call.
        """
        offsets = np.ascontiguousarray(offsets, np.uint64)
        if self._index is None and len(offsets) > _FEW and len(self._starts):
            self._index = _native_index(self._starts, self._values)
        if self._index is None:
            return self._searched(offsets, back)
        values = np.empty(len(offsets), np.int32)
        if threads is None:
            threads = 1 if len(offsets) < _MANY else _processors()
        if threads > 1 and len(offsets) >= 2 * _PART:
            _find_shared(self._index, offsets, values, back, threads)
        else:
            self._index.find(offsets.data, values.data, back)
        return values

    def _searched(self, offsets: npt.NDArray[np.uint64], back: int) -> Answers:
        starts: npt.NDArray[Any] = self._starts
        sought: npt.NDArray[Any] = offsets - np.uint64(back)
        if starts.dtype != np.uint64:
            # Narrower starts would be widened for each call, and offsets must not be cut.
            limit = np.uint64(np.iinfo(starts.dtype).max)
            sought = np.minimum(sought, limit).astype(starts.dtype)
        rows = starts.searchsorted(sought, side="right").astype(np.int32) - np.int32(1)
        rows[offsets < np.uint64(back)] = -1
        if self._values is None or not len(starts):
            return rows
        values: Answers = np.where(rows >= 0, self._values[np.maximum(rows, 0)], np.int32(-1))
        return values


def _processors() -> int:
    """Return how many processors this process may run on, up to a limit."""
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count()
    elif sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return min(count or 1, _MAX_THREADS)


def _find_shared(
    index: _ranges.RangeIndex,
    offsets: npt.NDArray[np.uint64],
    found: Answers,
    back: int,
    threads: int,
) -> None:
    """Look offsets up in this thread and others, which each take the next part.

    A thread that gets no processor delays only the part that it has begun. If none can be started
    (as when the interpreter is ending) this one does everything.
    """
    from concurrent.futures import ThreadPoolExecutor

    parts = deque(range(0, len(offsets), _PART))

    def find() -> None:
        while True:
            try:
                low = parts.popleft()
            except IndexError:
                return
            index.find(offsets[low : low + _PART].data, found[low : low + _PART].data, back)

    others: list[Future[None]] = []
    with ThreadPoolExecutor(threads - 1) as pool:
        with suppress(RuntimeError):
            others.extend(pool.submit(find) for _ in range(min(threads, len(parts)) - 1))
        find()
    for other in others:
        other.result()  # raises what it raised


def _native_index(
    starts: Starts, values: npt.NDArray[np.int32] | None
) -> _ranges.RangeIndex | None:
    try:
        from machtrace._native import _ranges
    except ImportError:
        return None
    return _ranges.RangeIndex(
        np.ascontiguousarray(starts, np.uint64).data,
        None if values is None else np.ascontiguousarray(values, np.int32).data,
    )
