"""The names in one image: one sorted table, in which every name has an end.

A symbol names the addresses from its start up to the next symbol, the next function start or the
end of its section, whichever is first, or as far as its own stated size. An address that is in no
such range has no name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty, Symbol

Offsets: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`ImageOffset`."""

_LAST = np.uint64(2**64 - 1)
_CERTAINTIES = tuple(Certainty)


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
    """The name of a row."""
    certainty: Certainty
    leading_underscore: bool = False
    """Whether the names begin with one that people do not read, as those of Mach-O's symbol tables
    do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeBounds:
    """What ends a name besides the next name."""

    section_starts: Offsets
    section_ends: Offsets
    """Of the sections with code; by start, not overlapping."""
    function_starts: Offsets
    """Sorted; empty where the image does not tell."""


class SymbolTable:
    """Names by :data:`ImageOffset`."""

    __slots__ = (
        "_certainty",
        "_ends",
        "_kind",
        "_names",
        "_row",
        "_starts",
        "_symbols",
        "_underscores",
    )

    def __init__(self, kinds: tuple[NamedRanges, ...], bounds: CodeBounds) -> None:
        """``kinds``: the best first; at one address its name is the one to show."""
        self._underscores = tuple(kind.leading_underscore for kind in kinds)
        self._names = tuple(kind.linkage_name for kind in kinds)
        starts = np.concatenate([kind.starts for kind in kinds])
        sizes = np.concatenate([kind.sizes for kind in kinds])
        rows = np.concatenate([np.arange(len(kind.starts), dtype=np.uint32) for kind in kinds])
        which = np.repeat(
            np.arange(len(kinds), dtype=np.uint8), [len(kind.starts) for kind in kinds]
        )
        certainty = np.array([_CERTAINTIES.index(kind.certainty) for kind in kinds], np.uint8)
        avoided = ~np.concatenate([kind.preferred for kind in kinds])

        inside, section_ends = _section_ends(starts, bounds)
        order = np.lexsort((rows, avoided, which, sizes == 0, starts))
        order = order[inside[order]]
        _, firsts = np.unique(starts[order], return_index=True)
        order = order[firsts]
        order = order[~_inside_a_sized_one(starts[order], sizes[order])]

        self._starts: Offsets = starts[order]
        self._row = rows[order]
        self._certainty = certainty[which[order]]
        self._kind = which[order]
        self._ends: Offsets = _ends(self._starts, sizes[order], section_ends[order], bounds)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> Offsets:
        """Where the named functions begin, sorted."""
        return self._starts

    def find(self, offset: ImageOffset) -> Symbol | None:
        """The function that holds ``offset``; None where no name is sure."""
        if not 0 <= offset <= _LAST:
            return None
        # A Python int would turn the whole column into floating point.
        index = int(self._starts.searchsorted(np.uint64(offset), side="right")) - 1
        if index < 0 or offset >= int(self._ends[index]):
            return None
        return self.symbol(index)

    def symbol(self, index: int) -> Symbol:
        """The ``index``-th symbol by address."""
        start = int(self._starts[index])
        kind = int(self._kind[index])
        linkage_name = self._names[kind](int(self._row[index]))
        name = linkage_name
        if self._underscores[kind] and name.startswith("_"):
            name = name[1:]
        return Symbol(
            name=name,
            linkage_name=linkage_name,
            offset=ImageOffset(start),
            size=int(self._ends[index]) - start,
            certainty=_CERTAINTIES[self._certainty[index]],
        )


def _section_ends(starts: Offsets, bounds: CodeBounds) -> tuple[npt.NDArray[np.bool_], Offsets]:
    """For each start: whether it is in a code section, and where that ends."""
    if not len(bounds.section_starts):
        return np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.uint64)
    section = bounds.section_starts.searchsorted(starts, side="right").astype(np.int64) - 1
    ends = bounds.section_ends[np.maximum(section, 0)]
    return (section >= 0) & (starts < ends), ends


def _inside_a_sized_one(starts: Offsets, sizes: Offsets) -> npt.NDArray[np.bool_]:
    """Labels without a size, within a function that has one: its name is the better one."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    reach = np.maximum.accumulate(np.where(sizes > 0, _plus(starts, sizes), np.uint64(0)))
    before = np.concatenate([np.zeros(1, np.uint64), reach[:-1]])
    inside: npt.NDArray[np.bool_] = (sizes == 0) & (starts < before)
    return inside


def _plus(starts: Offsets, sizes: Offsets) -> Offsets:
    """The sum, held at the end of the address space: sizes come from files."""
    ends: Offsets = starts + np.minimum(sizes, _LAST - starts)
    return ends


def _ends(starts: Offsets, sizes: Offsets, section_ends: Offsets, bounds: CodeBounds) -> Offsets:
    following = np.concatenate([starts[1:], np.full(1, _LAST, np.uint64)])[: len(starts)]
    functions = np.concatenate([bounds.function_starts, np.full(1, _LAST, np.uint64)])
    next_function = functions[
        functions.searchsorted(starts, side="right").clip(max=len(functions) - 1)
    ]
    sized = np.minimum(_plus(starts, sizes), following)
    unsized = np.minimum(following, next_function)
    ends: Offsets = np.minimum(np.where(sizes > 0, sized, unsized), section_ends)
    return ends
