"""Source lines of an image with split DWARF: its ``.dwo`` files are read on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.images.debug_file import DebugFile
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.merged_tables import MergedTables, MovedFunctions
from machtrace.lines.parts_index import OpenedPart, PartsIndex
from machtrace.lines.split.files import SplitFiles
from machtrace.lines.split.joined_unit import UnitJoiner, address_ends
from machtrace.model.image import BinaryImage, ImageFormat

_END = 1 << 32
"""Beyond all offsets in an index."""


def split_index(
    file: DebugFile, cache: IndexCache, search: ImageResolver, image: BinaryImage
) -> SplitIndex | None:
    """Return the index of a file with skeleton units; None if it has none.

    Args:
        file: the image's debug information.
        cache: has indices.
        search: has the image's file, and the folders to search for units.
        image: the image.

    Raises:
        DebugInformationError: no index can be built of the file itself.
    """
    record = SearchRecord()
    files = SplitFiles(file, search, image, record)
    return SplitIndex(file, files, record, cache) if files.skeletons else None


class SplitIndex(PartsIndex):
    """The index of a linked file, and over the units that were split from it.

    Code of a unit that cannot be read has what the linked file itself has.
    """

    missing = "source lines of a split unit are missing"
    remedy = "keep the .dwo files where they were compiled, or pass their folder with --search"

    def __init__(
        self, file: DebugFile, files: SplitFiles, record: SearchRecord, cache: IndexCache
    ) -> None:
        """Build the index of the linked file itself, and open no unit yet."""
        contents = file.contents
        assert contents.format is ImageFormat.ELF  # noqa: S101 - only these have skeletons
        self._file, self._files, self._main = file, files, cache.symcache(file)
        self._joiner = UnitJoiner(contents, files.reader)
        size = len(files.reader.read(".debug_addr"))
        self._address_ends = address_ends(files.skeletons, size)
        base = contents.image.header_svma
        rows = sorted(
            (start - base, end - base, number)
            for number, skeleton in enumerate(files.skeletons)
            for start, end in skeleton.ranges
            if base <= start and (start or base) and end - base < _END
        )
        starts, ends, numbers = _disjoint(rows)
        self._starts, self._ends, self._units = starts, ends, numbers
        edges = np.ravel(np.column_stack([starts, ends]))
        owners = np.ravel(np.column_stack([numbers, np.full(len(numbers), -1, np.int32)]))
        super().__init__(file.path, cache, edges, owners, len(files.skeletons))
        self.record = record
        between = np.concatenate([np.zeros(1, np.uint64), ends])
        self._use_own(between, np.concatenate([starts, np.full(1, _END, np.uint64)]))

    def _open(self, number: int) -> OpenedPart | None:
        skeleton = self._files.skeletons[number]
        own = self._units == number
        starts, ends = self._starts[own], self._ends[own]
        unit = self._files.unit(skeleton)
        if unit is not None:
            try:
                data = self._joiner.joined(skeleton, unit, self._address_ends[number])
            except (FormatError, MemoryReadError) as error:
                self.record.add(skeleton.file_name, Outcome.MALFORMED, str(error))
            else:
                moved = MovedFunctions(linked=starts, sizes=ends - starts, stated=starts)
                return ObjectBytes(skeleton.file_name, data), moved
        self._use_own(starts, ends)
        return None

    def _use_own(self, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]) -> None:
        """Use the linked file's own index between offsets."""
        some = starts < ends
        linked, sizes = starts[some], (ends - starts)[some]
        self._merge([(self._main, MovedFunctions(linked=linked, sizes=sizes, stated=linked))])

    def _new_index(self, tables: MergedTables) -> DebugIndex:
        return DebugIndex(tables, moved=self._file.source_paths.now)


def _disjoint(
    rows: Sequence[tuple[int, int, int]],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """Return starts, ends and units of sorted ranges; of two that overlap, the first's bytes."""
    starts, ends, units = [], [], []
    last = 0
    for start, end, unit in rows:
        if end > last:
            starts.append(max(start, last))
            ends.append(end)
            units.append(unit)
            last = end
    return np.array(starts, np.uint64), np.array(ends, np.uint64), np.array(units, np.int32)
