"""Pointers that are addresses already: in memory, and in images that cannot be moved."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.contents import FileContents, MachOContents
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.columns import Addresses, BindRows, RebaseRows
from machtrace.formats.macho.scattered_records import ScatteredRecords
from machtrace.model.address import PacMask, Svma

_CHUNK = 1 << 20
"""Bytes that are looked through together."""
_PAGE = 1 << 14
"""The same, where not all of that can be read."""
_MOST_READS = 1 << 12


def inside_image(image: MachOImage, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Which of ``addresses`` are in a segment of ``image``."""
    is_inside = np.zeros(len(addresses), np.bool_)
    for segment in image.segments:
        if segment.filesize or segment.initprot:  # __PAGEZERO and its like hold nothing
            # What lies before the segment wraps, and so is beyond it.
            is_inside |= (addresses - np.uint64(segment.vmaddr)) < np.uint64(
                min(segment.vmsize, (1 << 64) - 1)
            )
    return is_inside


class RawPointers:
    """Every word whose value lies in the image counts.

    They are :class:`~machtrace.formats.macho.fixups.pointers.Pointers`.
    """

    def __init__(
        self,
        contents: MachOContents,
        *,
        slide: int,
        mask: PacMask,
        binds: BindRows,
        problem: MachOError | None = None,
    ) -> None:
        """``slide`` is what was added to each; ``mask`` has the bits that are address."""
        self._contents = contents
        self._slide = np.uint64(slide % (1 << 64))
        self._mask = np.uint64(mask.bits)
        header = contents.image.header
        self._word = np.dtype(
            ("<" if header.little_endian else ">") + f"u{8 if header.is_64 else 4}"
        )
        self._records = ScatteredRecords(contents)
        self.binds = binds
        """Of the tables that could be read."""
        self.problem = problem
        """What ended the reading of a table too early."""

    def target(self, at: Svma, /) -> Svma | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.target`."""
        found = int(self.targets(np.array([at], np.uint64))[0])
        return Svma(found) if found else None

    def targets(self, at: Addresses, /) -> Addresses:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.targets`."""
        words, _ = self._records.read(at, self._word)
        found = self._inside(words.astype(np.uint64))
        self._leave_bound(at, found)
        return found

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.addresses`."""
        words, _ = self._records.read(at, self._word)
        words = words.astype(np.uint64)
        found: Addresses = (words & (self._mask if mask is None else np.uint64(mask))) - self._slide
        found[words == 0] = 0
        self._leave_bound(at, found)
        return found

    def _leave_bound(self, at: Addresses, found: Addresses) -> None:
        if len(self.binds):
            rows = self.binds.places.searchsorted(at).clip(max=len(self.binds) - 1)
            found[self.binds.places[rows] == at] = 0

    def _inside(self, words: Addresses) -> Addresses:
        targets = (words & self._mask) - self._slide
        is_inside = inside_image(self._contents.image, targets)
        return np.where(is_inside & (words != 0), targets, np.uint64(0))

    def symbol(self, at: Svma, /) -> str | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbol`."""
        return self.symbols(np.array([at], np.uint64))[0] or None

    def symbols(self, at: Addresses, /) -> list[str]:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbols`."""
        return self.binds.symbols_at(at)

    @cached_property
    def rebases(self) -> RebaseRows:
        """All aligned words of data that lead into the image: some may be numbers by chance."""
        places, targets = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for at, data in self._data():
            found = self._inside(np.frombuffer(data, self._word).astype(np.uint64))
            rows = np.flatnonzero(found)
            places.append(np.uint64(at) + rows.astype(np.uint64) * np.uint64(self._word.itemsize))
            targets.append(found[rows])
        rebases = RebaseRows.sorted(np.concatenate(places), np.concatenate(targets))
        kept = ~np.isin(rebases.places, self.binds.places)
        return RebaseRows(rebases.places[kept], rebases.targets[kept])

    def _data(self) -> Iterator[tuple[int, memoryview]]:
        """What can be read of the image's data, in whole words."""
        size = self._word.itemsize
        reads = _MOST_READS
        for segment in self._contents.image.segments:
            if segment.is_executable or segment.name == "__LINKEDIT":
                continue
            start = -(-segment.vmaddr // size) * size
            end = segment.vmaddr + min(segment.vmsize, segment.filesize or segment.vmsize)
            if isinstance(self._contents, FileContents):
                end = min(end, segment.vmaddr + len(self._contents.data) - segment.fileoff)
            at, chunk = start, _CHUNK
            while at + size <= end and reads:
                length = min(chunk, end - at) // size * size
                reads -= 1
                try:
                    yield at, self._contents.read_svma(Svma(at), length)
                except MemoryReadError:
                    if chunk == _CHUNK:  # some of it may be there
                        chunk = _PAGE
                        continue
                at += length
                if at % _CHUNK == 0:
                    chunk = _CHUNK
