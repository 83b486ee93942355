"""What every source of an image's names yields.

Which of many sorted starts is the last at or before an offset, for one offset or millions.

Whatever divides an image into ranges (functions, lines, inlined calls) is looked up here. Where
the package was built with its extensions that is a map of bits that says where ranges start (see
``native/ranges/index.h``): one cache line an offset, whatever the number of ranges. It is made
when the first large column is asked for; else, and for few offsets, the starts are searched.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
    """In bytes; 0 where the format does not say."""
    preferred: npt.NDArray[np.bool_]
    """Which of several symbols at one address to show: the first preferred one (global before
    local, as dyld chooses)."""
    linkage_name: Callable[[int], str]
    """The name of a row; empty where it turns out to have none."""
    certainty: Certainty
    is_label: Callable[[npt.NDArray[np.intp]], npt.NDArray[np.bool_]] | None = None
    """Which of some rows only the assembler knew, so that in the middle of a function they name a
    place in it and nothing of their own; None where no row is of that kind."""
    leading_underscore: bool = False
    """Whether the names begin with one that people do not read, as those of Mach-O's symbol tables
    do."""

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
        """Symbols of which none is preferred to others; of unknown sizes, unless they are given."""
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
        """Some of the rows, in the order that they are given in."""
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
"""One for each offset; -1 where there is none."""

_FEW = 4096
"""Offsets that are not worth an index."""
_MANY = 1 << 22
"""Offsets that are worth threads nobody asked for: fewer take no longer than a turn of another
program, which one of the threads may have to wait for."""
_PART = 1 << 17
"""Offsets that a thread takes at a time."""
_MOST_THREADS = 8
"""Unless more are asked for: memory serves no more of them at once."""


class RangeIndex:
    """Ranges that begin at ``starts`` and end where the next one begins."""

    __slots__ = ("_index", "_starts", "_values")

    def __init__(self, starts: Starts, values: npt.NDArray[np.int32] | None = None) -> None:
        """Keep the columns, without copying them.

        Args:
            starts: of the ranges, of any address space, ascending.
            values: what to answer for each range, its row unless given. A range of -1 is as good
                as none.
        """
        self._starts = starts
        self._values = values
        self._index: _ranges.RangeIndex | None = None

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> Starts:
        """Where the ranges begin."""
        return self._starts

    @property
    def nbytes(self) -> int:
        """Memory that its columns take, and the index where one was made."""
        columns = self._starts.nbytes + (0 if self._values is None else self._values.nbytes)
        return columns + (0 if self._index is None else self._index.nbytes)

    def find(
        self, offsets: npt.NDArray[np.uint64], *, back: int = 0, threads: int | None = None
    ) -> Answers:
        """For each offset the value of the last range that starts at or before it.

        Args:
            offsets: in any order, of the address space of the starts.
            back: what to subtract from each first; what is then below 0 is in no range.
            threads: how many to share a large column among; None for as many as this process has
                processors if it is very large. They end with the call.
        """
        offsets = np.ascontiguousarray(offsets, np.uint64)
        if self._index is None and len(offsets) > _FEW and len(self._starts):
            self._index = _native_index(self._starts, self._values)
        if self._index is None:
            return self._searched(offsets, back)
        found = np.empty(len(offsets), np.int32)
        if threads is None:
            threads = 1 if len(offsets) < _MANY else _processors()
        if threads > 1 and len(offsets) >= 2 * _PART:
            _find_shared(self._index, offsets, found, back, threads)
        else:
            self._index.find(offsets.data, found.data, back)
        return found

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
    """Those that this process may run on, if there are not too many."""
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count()
    elif sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return min(count or 1, _MOST_THREADS)


def _find_shared(
    index: _ranges.RangeIndex,
    offsets: npt.NDArray[np.uint64],
    found: Answers,
    back: int,
    threads: int,
) -> None:
    """Look offsets up in this thread and others, which all take one part after the other.

    So one that gets no processor holds up only the part that it has begun, and where none can be
    started (as when the interpreter is ending) this one does everything.
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
