"""The functions of one image in one sorted table, with bounds, and with names if they are certain.

A symbol names the addresses from its start up to the next symbol, the next function start or the
end of its section, whichever is first, or as far as its own stated size. A function that starts at
no symbol has no name, but bounds; an address in no function has neither. ELF files bound functions
further: see :mod:`machtrace.symbols.elf`.

Function starts are seldom complete: of a file of assembly code linkers list the first, of a C++
file not the initialisers. So a symbol in the middle of a function is another function, and names
the code after it. One that only the assembler knew is a label, and the function's name is the
better one, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty, Symbol
from machtrace.symbols.names import (
    REDACTED,
    Spelt,
    best_first,
    human_name,
    symbol_of,
)
from machtrace.symbols.ranges import Answers, NamedRanges, Offsets, RangeIndex

_Kind = TypeVar("_Kind", bound=np.generic)
_ROW_BITS = 26
_KIND_BITS = 4
"""Bits of a sort key, which has 32 bits for the start and two for what is preferred."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Symbols of all kinds by address, the best first: one entry a row in each column."""

    starts: Offsets
    kinds: npt.NDArray[np.uint8]
    """The index of each one's source."""
    rows: npt.NDArray[np.uint32]
    """The row in its source."""
    sizes: Offsets | None
    """In bytes, 0 if unknown; None if no source knows any."""
    avoided: npt.NDArray[np.bool_]
    """Whether each is not preferred."""

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, marked: npt.NDArray[np.bool_]) -> Entries:
        """Return the marked entries."""
        if marked.all():
            return self
        return Entries(
            self.starts[marked],
            self.kinds[marked],
            self.rows[marked],
            None if self.sizes is None else self.sizes[marked],
            self.avoided[marked],
        )


def sorted_entries(sources: tuple[NamedRanges, ...]) -> Entries:
    """Sort by start; at one address by source, those with a size first, preferred ones first."""
    starts = _joined([source.starts for source in sources], np.uint64)
    sizes = None
    if any(source.sizes.any() for source in sources):
        sizes = _joined([source.sizes for source in sources], np.uint64)
    avoided = ~_joined([source.preferred for source in sources], np.bool_)
    counts = [len(source) for source in sources]
    kinds = np.repeat(np.arange(len(sources), dtype=np.uint8), counts)
    rows = _joined([np.arange(count, dtype=np.uint32) for count in counts], np.uint32)
    if (
        len(sources) <= 1 << _KIND_BITS
        and len(starts)
        and max(counts) <= 1 << _ROW_BITS
        and int(starts.max()) < 1 << 32
    ):
        return _sorted_by_key(starts, kinds, rows, sizes, avoided)
    sizeless = np.zeros(len(starts), np.bool_) if sizes is None else sizes == 0
    order = np.lexsort((rows, avoided, sizeless, kinds, starts))
    return Entries(
        starts[order],
        kinds[order],
        rows[order],
        None if sizes is None else sizes[order],
        avoided[order],
    )


def _joined(columns: Sequence[npt.NDArray[_Kind]], kind: type[_Kind]) -> npt.NDArray[_Kind]:
    return np.concatenate(columns).astype(kind, copy=False) if columns else np.zeros(0, kind)


def _sorted_by_key(
    starts: Offsets,
    kinds: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.uint32],
    sizes: Offsets | None,
    avoided: npt.NDArray[np.bool_],
) -> Entries:
    """Sort by one number an entry: sorting numbers takes a fifth of sorting their order."""
    key = starts << np.uint64(32)
    key |= kinds.astype(np.uint64) << np.uint64(_ROW_BITS + 2)
    if sizes is not None:
        key |= (sizes == 0).astype(np.uint64) << np.uint64(_ROW_BITS + 1)
    key |= avoided.astype(np.uint64) << np.uint64(_ROW_BITS)
    key |= rows
    key.sort()
    rows = (key & np.uint64((1 << _ROW_BITS) - 1)).astype(np.uint32)
    kinds = (key >> np.uint64(_ROW_BITS + 2) & np.uint64((1 << _KIND_BITS) - 1)).astype(np.uint8)
    avoided = (key >> np.uint64(_ROW_BITS) & np.uint64(1)).astype(np.bool_)
    starts = key >> np.uint64(32)
    if sizes is None:
        return Entries(starts, kinds, rows, None, avoided)
    counts = np.bincount(kinds)
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Entries(starts, kinds, rows, sizes[firsts[kinds] + rows], avoided)


__all__ = ["CERTAINTIES", "CodeBounds", "NamedRanges", "Offsets", "SymbolTable"]

_LAST = np.uint64(2**64 - 1)
CERTAINTIES = tuple(Certainty)
"""The meanings of numbers in columns of certainty."""
_NONE = CERTAINTIES.index(Certainty.NONE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeBounds:
    """The bounds of names besides the next name."""

    section_starts: Offsets
    section_ends: Offsets
    """The ends of the sections with code; by start, not overlapping."""
    function_starts: Offsets
    """Sorted; empty if the image has no list."""
    starts_are_listed: bool = False
    """Whether a linker listed these, so that a label after one is in the middle of a function."""
    described_ends: Callable[[npt.NDArray[np.intp]], Offsets] | None = None
    """Returns where the functions of some rows of :attr:`function_starts` end; the last number if
    that is unknown. None if the next start ends each."""
    own_ends: Callable[[Offsets, Offsets], Offsets] | None = None
    """Returns where the code of symbols without a size ends, from their starts and limits. None if
    only the next symbol or start ends it."""


class SymbolTable:
    """Functions by :data:`ImageOffset`; each has a number, its id, in the order of addresses."""

    def __init__(
        self,
        kinds: tuple[NamedRanges, ...],
        bounds: CodeBounds,
        problems: tuple[MachtraceError, ...] = (),
    ) -> None:
        """Sort everything.

        Args:
            kinds: the best first; at one address its name is the one to show.
            bounds: the sections with code, and the starts of functions.
            problems: why names may be missing.
        """
        self.problems = problems
        """Errors of parts of the image that could not be read, and so gave no names."""
        self._kinds = kinds
        functions = _inside(bounds.function_starts, bounds)
        entries = sorted_entries(kinds)
        entries = entries.only(_section_ends(entries.starts, bounds)[0])
        entries = entries.only(~_inside_a_sized_one(entries))
        entries = entries.only(~_labels(entries, kinds, functions, bounds))
        starts = _merged(entries, functions)
        self._entry_kinds, self._entry_rows = entries.kinds, entries.rows
        self._starts: Offsets = starts
        # Where the entries of each begin, and after the last where they end.
        self._firsts = np.empty(len(starts) + 1, np.int32)
        self._firsts[:-1] = entries.starts.searchsorted(starts, "left")
        self._firsts[-1] = len(entries)
        self._bounds = bounds
        self._ends, self._unbounded = _ends(starts, self._firsts[:-1], entries, bounds)
        self._index: RangeIndex | None = None

    def __len__(self) -> int:
        return len(self._starts)

    # --- columns, one row a function ---

    @property
    def starts(self) -> Offsets:
        """The starts of the functions, sorted."""
        return self._starts

    @property
    def ends(self) -> Offsets:
        """The offset after each one's last byte."""
        if len(self._unbounded):
            # Only now, since decoders are loaded for it, and most lookups are of other functions.
            rows = self._unbounded
            if self._bounds.own_ends is not None:
                self._ends[rows] = self._bounds.own_ends(self._starts[rows], self._ends[rows])
            self._unbounded = rows[:0]
        return self._ends

    @property
    def is_named(self) -> npt.NDArray[np.bool_]:
        """Which functions have a symbol at their start."""
        mask: npt.NDArray[np.bool_] = self._firsts[:-1] < self._firsts[1:]
        return mask

    @property
    def certainties(self) -> npt.NDArray[np.uint8]:
        """The certainty of each name: an index into :data:`CERTAINTIES`."""
        of_kind = np.array([CERTAINTIES.index(kind.certainty) for kind in self._kinds], np.uint8)
        column = np.full(len(self), _NONE, np.uint8)
        named = self.is_named
        column[named] = of_kind[self._entry_kinds[self._firsts[:-1][named]]]
        return column

    @property
    def nbytes(self) -> int:
        """Bytes of the table; names are in the image's file."""
        columns = (self._starts, self._ends, self._firsts, self._entry_kinds, self._entry_rows)
        return sum(column.nbytes for column in columns) + (
            0 if self._index is None else self._index.nbytes
        )

    # --- lookups ---

    def find(self, offset: ImageOffset) -> Symbol | None:
        """Return the function that holds ``offset``, with or without a name; None if none does."""
        if not 0 <= offset <= _LAST:
            return None
        # A Python int would turn the whole column into floating point.
        index = int(self._starts.searchsorted(np.uint64(offset), side="right")) - 1
        if index < 0 or offset >= self._end(index):
            return None
        return self.symbol(index)

    def ids(self, offsets: Offsets, *, back: int = 0, threads: int | None = None) -> Answers:
        """Return the id of the function that holds each offset; -1 for none.

        Args:
            offsets: in any order.
            back: subtracted from each first.
            threads: see :meth:`RangeIndex.find`.
        """
        if self._index is None:
            self._index = _index(self._starts, self.ends)
        return self._index.find(offsets, back=back, threads=threads)

    def symbol(self, index: int) -> Symbol:
        """Return the function with an id."""
        start = int(self._starts[index])
        names = best_first(self._spelt(index))
        return symbol_of(names, ImageOffset(start), self._end(index) - start)

    def _end(self, index: int) -> int:
        is_bounded = not len(self._unbounded) or index not in self._unbounded
        return int((self._ends if is_bounded else self.ends)[index])

    def name(self, index: int) -> str:
        """Return the name of the function with an id, as :attr:`Symbol.name` is."""
        spelt = self._only(index)
        if spelt is None:
            return self.symbol(index).name
        return human_name(spelt[0], leading_underscore=spelt[1])

    def linkage_name(self, index: int) -> str:
        """Return its :attr:`Symbol.linkage_name`, without demangling anything."""
        spelt = self._only(index)
        if spelt is None:
            names = best_first(self._spelt(index))
            return names[0][0] if names else ""
        return spelt[0]

    def _only(self, index: int) -> tuple[str, bool] | None:
        """Return the only name of a function; None if it has several or none."""
        first, last = self._firsts[index : index + 2]
        if last - first != 1:
            return None
        kind = self._kinds[self._entry_kinds[first]]
        spelt = kind.linkage_name(int(self._entry_rows[first]))
        return None if not spelt or spelt == REDACTED else (spelt, kind.leading_underscore)

    def _spelt(self, index: int) -> Iterator[Spelt]:
        for at in range(int(self._firsts[index]), int(self._firsts[index + 1])):
            kind = self._kinds[self._entry_kinds[at]]
            name = kind.linkage_name(int(self._entry_rows[at]))
            yield name, kind.leading_underscore, kind.certainty


def _index(starts: Offsets, ends: Offsets) -> RangeIndex:
    """Return an index of the functions, with ranges of -1 between them."""
    ids = np.arange(len(starts), dtype=np.int32)
    if not len(starts):
        return RangeIndex(starts, ids)
    gaps = np.append(np.flatnonzero(ends[:-1] < starts[1:]), len(starts) - 1)
    return RangeIndex(
        np.insert(starts, gaps + 1, ends[gaps]), np.insert(ids, gaps + 1, np.int32(-1))
    )


def _inside(starts: Offsets, bounds: CodeBounds) -> Offsets:
    inside, _ = _section_ends(starts, bounds)
    return starts if inside.all() else starts[inside]


def _section_ends(starts: Offsets, bounds: CodeBounds) -> tuple[npt.NDArray[np.bool_], Offsets]:
    """Return for each start whether it is in a code section, and where that ends."""
    if not len(bounds.section_starts):
        return np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.uint64)
    section = bounds.section_starts.searchsorted(starts, side="right").astype(np.int64) - 1
    ends = bounds.section_ends[np.maximum(section, 0)]
    return (section >= 0) & (starts < ends), ends


def _inside_a_sized_one(entries: Entries) -> npt.NDArray[np.bool_]:
    """Mark labels without a size, within a function that has one: its name is the better one."""
    starts, sizes = entries.starts, entries.sizes
    if sizes is None or not len(starts):
        return np.zeros(len(starts), np.bool_)
    reach = np.maximum.accumulate(np.where(sizes > 0, _plus(starts, sizes), np.uint64(0)))
    before = np.concatenate([np.zeros(1, np.uint64), reach[:-1]])
    # What starts where the function does is another name of it.
    owner = np.maximum.accumulate(np.where(sizes > 0, starts, np.uint64(0)))
    inside: npt.NDArray[np.bool_] = (sizes == 0) & (starts < before) & (owner < starts)
    return inside


def _labels(
    entries: Entries, kinds: tuple[NamedRanges, ...], functions: Offsets, bounds: CodeBounds
) -> npt.NDArray[np.bool_]:
    """Mark labels in the middle of a function whose start has a name."""
    labels = np.zeros(len(entries), np.bool_)
    if not bounds.starts_are_listed or not len(functions) or not len(entries):
        return labels
    rows = np.flatnonzero(entries.avoided)
    function = functions.searchsorted(entries.starts[rows], "right").astype(np.int64) - 1
    rows, function = rows[function >= 0], function[function >= 0]
    owner = functions[function]
    middle = owner != entries.starts[rows]
    rows, owner = rows[middle], owner[middle]
    section = bounds.section_starts.searchsorted(entries.starts[rows], "right") - 1
    same = owner >= bounds.section_starts[section]
    rows, owner = rows[same], owner[same]
    first = np.minimum(entries.starts.searchsorted(owner, "left"), len(entries) - 1)
    rows = rows[entries.starts[first] == owner]
    for number, kind in enumerate(kinds):
        if kind.is_label is not None:
            own = rows[entries.kinds[rows] == number]
            labels[own] = kind.is_label(entries.rows[own].astype(np.intp))
    # Beside the start of a function, a label is another name of it.
    rows = np.flatnonzero(labels)
    if len(rows):
        labels[rows[np.isin(entries.starts[rows], entries.starts[~labels])]] = False
    return labels


def _merged(entries: Entries, functions: Offsets) -> Offsets:
    """Return the starts of functions, by symbols or not; none inside one with a size."""
    if entries.sizes is not None and len(entries):
        reach = np.maximum.accumulate(
            np.where(entries.sizes > 0, _plus(entries.starts, entries.sizes), np.uint64(0))
        )
        before = entries.starts.searchsorted(functions, "right").astype(np.int64) - 1
        functions = functions[(before < 0) | (functions >= reach[np.maximum(before, 0)])]
    both = np.concatenate([entries.starts, functions])
    both.sort()
    return (
        both[np.concatenate([np.ones(1, np.bool_), both[1:] != both[:-1]])] if len(both) else both
    )


def _plus(starts: Offsets, sizes: Offsets) -> Offsets:
    """Return the sum, limited to the end of the address space: sizes come from files."""
    ends: Offsets = starts + np.minimum(sizes, _LAST - starts)
    return ends


def _ends(
    starts: Offsets, firsts: npt.NDArray[np.int32], entries: Entries, bounds: CodeBounds
) -> tuple[Offsets, npt.NDArray[np.intp]]:
    """Return the ends that the next function, the section, the size and the description leave.

    And the rows of those that have neither a size nor a description.
    """
    following = np.append(starts[1:], _LAST)[: len(starts)]
    ends: Offsets = np.minimum(following, _section_ends(starts, bounds)[1])
    is_sized = np.zeros(len(starts), np.bool_)
    if len(entries):
        at = np.minimum(firsts, len(entries) - 1)
        is_named = entries.starts[at] == starts
        if entries.sizes is not None:
            sizes = np.where(is_named, entries.sizes[at], np.uint64(0))
            is_sized = sizes > 0
            ends = np.where(is_sized, np.minimum(ends, _plus(starts, sizes)), ends)
    if bounds.described_ends is None:
        return ends, np.zeros(0, np.intp)
    # A function ends with its description; one without a name or a size has no other end.
    rows = np.flatnonzero(~is_sized)
    described = bounds.function_starts.searchsorted(starts[rows], "right").astype(np.intp) - 1
    limits = np.zeros(len(rows), np.uint64)
    has_start = described >= 0
    limits[has_start] = bounds.described_ends(described[has_start])
    is_described = limits > starts[rows]
    ends[rows[is_described]] = np.minimum(ends[rows], limits)[is_described]
    return ends, rows[~is_described]
