"""Source lines of an image whose DWARF is in several files, which are read on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import DebugInformationError, MachtraceError
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.lines.index import DebugChains, DebugColumns, DebugIndex
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.merged_tables import MergedTables, MovedFunctions
from machtrace.lines.symcache import SymCache
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame
from machtrace.symbols.ranges import RangeIndex

_BATCH = 32 << 20
"""Bytes of files that are in memory together."""
OpenedPart: TypeAlias = tuple[ObjectBytes, MovedFunctions]
"""A file to build an index of, and the functions of the image that it describes."""


class PartsIndex(ABC):
    """A :class:`DebugIndex` over several files.

    A file is read at the first lookup of an offset that it describes. Numbers of locations,
    functions and files stay valid.
    """

    missing = "source lines are missing"
    """The message of a problem."""
    remedy = ""
    """The remedy for one."""

    def __init__(
        self,
        path: str,
        cache: IndexCache,
        starts: npt.NDArray[np.uint64],
        numbers: npt.NDArray[np.int32],
        count: int,
    ) -> None:
        """Read no file yet.

        Args:
            path: the image's file, for errors.
            cache: has the indices of the files.
            starts: image offsets where ranges begin, ascending; each extends to the next.
            numbers: the file of each range; -1 for none.
            count: the number of files.
        """
        self._cache = cache
        self._ranges = RangeIndex(starts)
        self._numbers = np.append(numbers, np.int32(-1))
        self._is_read = np.zeros(count + 1, np.bool_)
        self._is_read[-1] = True  # the file -1, of what is in none
        self._tables = MergedTables(path)
        self._index = DebugIndex(self._tables)
        self.record = SearchRecord()
        """The files that are missing, were changed, or cannot be read."""

    @abstractmethod
    def _open(self, number: int) -> OpenedPart | None:
        """Open a file; return None, and add to :attr:`record` why, if it cannot be used."""

    @property
    def problems(self) -> list[MachtraceError]:
        """Why lines are missing: the files in :attr:`record`, each once."""
        return [self._problem(attempt) for attempt in dict.fromkeys(self.record.attempts)]

    def columns(self, offsets: npt.NDArray[np.uint64]) -> DebugColumns:
        """See :meth:`DebugIndex.columns`."""
        self._read_for(offsets)
        return self._index.columns(offsets)

    def chains(self, locations: npt.NDArray[np.int32]) -> DebugChains:
        """See :meth:`DebugIndex.chains`."""
        return self._index.chains(locations)

    def inlined(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """See :meth:`DebugIndex.inlined`."""
        self._read_for_one(offset)
        return self._index.inlined(offset)

    def function_start(self, offset: ImageOffset) -> ImageOffset | None:
        """See :meth:`DebugIndex.function_start`."""
        self._read_for_one(offset)
        return self._index.function_start(offset)

    def function_name(self, function: int) -> str:
        """See :meth:`DebugIndex.function_name`."""
        return self._index.function_name(function)

    def file_path(self, file: int) -> str:
        """See :meth:`DebugIndex.file_path`."""
        return self._index.file_path(file)

    def _read_for_one(self, offset: ImageOffset) -> None:
        if 0 <= offset < 1 << 64:
            self._read_for(np.array([offset], np.uint64))

    def _read_for(self, offsets: npt.NDArray[np.uint64]) -> None:
        numbers = self._numbers[self._ranges.find(offsets)]
        wanted = np.unique(numbers[~self._is_read[numbers]])
        if len(wanted):
            self._is_read[wanted] = True
            self._add(wanted.tolist())

    def _add(self, numbers: Iterable[int]) -> None:
        added: list[tuple[SymCache, MovedFunctions]] = []
        for batch in _batches(map(self._open, numbers)):
            made = self._cache.indices([one for one, _ in batch])
            for (one, moved), cache in zip(batch, made, strict=True):
                if isinstance(cache, str):
                    self.record.add(one.source, Outcome.MALFORMED, cache)
                else:
                    added.append((cache, moved))
        self._merge(added)

    def _merge(self, added: list[tuple[SymCache, MovedFunctions]]) -> None:
        if added:
            self._tables = self._tables.with_more(added)
            self._index = self._new_index(self._tables)

    def _new_index(self, tables: MergedTables) -> DebugIndex:
        return DebugIndex(tables)

    def _problem(self, told: Attempt) -> MachtraceError:
        why = f"{told.outcome.value}; {told.detail}" if told.detail else told.outcome.value
        error = DebugInformationError(told.location, f"{self.missing} ({why})")
        error.remedy = self.remedy
        return error


def _batches(opened: Iterable[OpenedPart | None]) -> Iterator[list[OpenedPart]]:
    """Yield opened files in batches that may be in memory together."""
    batch: list[OpenedPart] = []
    size = 0
    for item in opened:
        if item is None:
            continue
        batch.append(item)
        size += len(item[0].data)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
