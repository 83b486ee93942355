"""Source lines of an image whose DWARF is in object files, which are read on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import (
    DebugInformationError,
    FormatError,
    MachtraceError,
    MemoryReadError,
)
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.fixups.object_rebasing import rebased_object
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.images.debug_map import DebugMap, LinkedObject
from machtrace.images.search_record import Attempt, Outcome, SearchRecord
from machtrace.lines.debug_map.functions import MappedFunctions, mapped_functions
from machtrace.lines.debug_map.merged_tables import MergedTables, MovedFunctions
from machtrace.lines.debug_map.objects import LinkedObjects, are_as_linked
from machtrace.lines.index import DebugChains, DebugColumns, DebugIndex
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.symcache import SymCache
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame
from machtrace.symbols.ranges import RangeIndex

_BASE = 0x1000
"""The address where object files' code is moved: readers of DWARF take address 0 for removed code.
"""
_MOST = 1 << 32
"""More bytes than any object file has."""

_BATCH = 32 << 20
"""Bytes of object files that are in memory together."""
_Opened: TypeAlias = tuple[ObjectBytes, MovedFunctions]


class DebugMapIndex:
    """A :class:`DebugIndex` over the object files of a debug map.

    An object file is read at the first lookup of an offset in one of its functions. Numbers of
    locations, functions and files stay valid.
    """

    __slots__ = (
        "_cache",
        "_files",
        "_functions",
        "_index",
        "_is_read",
        "_map",
        "_ranges",
        "_tables",
        "record",
    )

    def __init__(self, debug_map: DebugMap, cache: IndexCache) -> None:
        """Read the functions, and no object file yet.

        Raises:
            MachOError: the image's symbol table is not in its file.
        """
        self._map = debug_map
        self._cache = cache
        self._functions = mapped_functions(debug_map.contents)
        self._ranges = RangeIndex(self._functions.starts)
        self._is_read = np.zeros(len(debug_map.objects) + 1, np.bool_)
        self._is_read[-1] = True  # the object file -1, of what is in none
        self._tables = MergedTables(debug_map.path)
        self._index = DebugIndex(self._tables)
        self.record = SearchRecord()
        """The object files that are missing, were changed, or cannot be read."""
        self._files = LinkedObjects(debug_map, self.record)

    @property
    def problems(self) -> list[MachtraceError]:
        """Why lines are missing: the object files in :attr:`record`, each once."""
        return [_problem(one) for one in dict.fromkeys(self.record.attempts)]

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
        entries = self._ranges.find(offsets)
        numbers = np.append(self._functions.object_ids, np.int32(-1))[entries]
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
        if added:
            self._tables = self._tables.with_more(added)
            self._index = DebugIndex(self._tables)

    def _open(self, number: int) -> _Opened | None:
        linked = self._map.objects[number]
        contents = self._files.open(linked, lambda: self._functions.names_of(number))
        if contents is None:
            return None
        if not contents.image.has_dwarf:
            self.record.add(str(linked), Outcome.NO_DWARF)
            return None
        try:
            moved = moved_functions(self._functions, number, contents)
            if linked.modified == 0:
                moved = self._unchanged(linked, contents, moved)
            return ObjectBytes(str(linked), rebased_object(contents, _BASE)), moved
        except (FormatError, MemoryReadError) as error:
            self.record.add(str(linked), Outcome.MALFORMED, str(error))
            return None

    def _unchanged(
        self, linked: LinkedObject, contents: FileContents, moved: MovedFunctions
    ) -> MovedFunctions:
        """Return those functions that have the same code in the image and in the object file."""
        image = self._map.contents
        same = are_as_linked(
            image,
            contents,
            linked=moved.linked + np.uint64(image.image.header_svma),
            sizes=moved.sizes,
            stated=moved.stated - np.uint64(_BASE),
        )
        if not bool(same.all()):
            other = int(np.count_nonzero(~same))
            self.record.add(
                str(linked), Outcome.CHANGED, f"{other} of {len(same)} functions are other ones"
            )
        return MovedFunctions(
            linked=moved.linked[same], sizes=moved.sizes[same], stated=moved.stated[same]
        )


def _problem(told: Attempt) -> MachtraceError:
    why = f"{told.outcome.value}; {told.detail}" if told.detail else told.outcome.value
    error = DebugInformationError(
        told.location, f"source lines of an object file are missing ({why})"
    )
    error.remedy = (
        "keep object files as they were linked, or make a dSYM of them with dsymutil at that time"
    )
    return error


def _batches(opened: Iterable[_Opened | None]) -> Iterator[list[_Opened]]:
    """Yield opened object files in batches that may be in memory together."""
    batch: list[_Opened] = []
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


def moved_functions(
    functions: MappedFunctions, number: int, contents: FileContents
) -> MovedFunctions:
    """Return the functions of the object file ``number``, with their offsets in its index.

    Raises:
        MachOError, MemoryReadError: its symbol table is not in the file, or its names overlap.
    """
    entries = functions.of_object(number)
    symbols = parse_symbols(contents)
    rows = np.flatnonzero(symbols.is_in_section)
    values = symbols.n_value
    stated: dict[str, int] = {}
    for name, row in zip(symbols.names(rows.tolist()), rows.tolist(), strict=True):
        if values[row] < _MOST:
            stated.setdefault(name, int(values[row]))
    found = [stated.get(functions.linkage_name(int(entry)), -1) for entry in entries]
    places = np.array(found, np.int64)
    there = places >= 0
    return MovedFunctions(
        linked=functions.starts[entries][there],
        sizes=functions.sizes[entries][there],
        stated=places[there].astype(np.uint64) + np.uint64(_BASE),
    )
