"""Reading many small records at once, wherever in an image they lie.

Metadata points from record to record. Read one by one a large image takes seconds; a column of
addresses takes a few calls of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import FileContents, MachOContents, MemoryContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.columns import Addresses
from machtrace.model.address import Svma

Mask: TypeAlias = npt.NDArray[np.bool_]

_PAGE = 1 << 14
"""Bytes of loaded memory that are read together."""
_MOST_PAGES = 1 << 10
"""How many of them are kept; at the limit all are forgotten."""
_MOST_LOADED = 1 << 24
"""Bytes of a loaded image that may be records: how large it is, is only what it says."""
_STRING_CHUNK = 256
_LONGEST_STRING = 1 << 16


class ScatteredRecords:
    """Records and strings of an image by their stated addresses.

    What is encrypted in a file cannot be read. In memory what lies around the image can be read,
    too: there metadata leads to the heap and to other images, at addresses that count as this
    image's do.
    """

    __slots__ = ("_contents", "_is_file", "_pages", "_segments")

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents
        self._is_file = isinstance(contents, FileContents)
        self._pages: dict[int, bytes | None] = {}
        self._segments: list[tuple[int, npt.NDArray[np.uint8]]] = []
        if isinstance(contents, FileContents):
            for address, start, end in _readable(contents):
                data = np.frombuffer(contents.data[start:end], np.uint8)
                self._segments.append((address, data))

    @property
    def size(self) -> int:
        """Bytes in which records may lie: what bounds how many of them there can be."""
        if self._is_file:
            return sum(len(data) for _, data in self._segments)
        size = sum(segment.vmsize for segment in self._contents.image.segments)
        return min(size, _MOST_LOADED)

    def elements(self, names: Sequence[str], size: int) -> Addresses:
        """The places of all elements of ``size`` bytes in the sections of these names.

        There are none in what is no linked image of a little-endian machine: what its sections
        hold is not yet, or in no way known here, what a runtime would read.
        """
        found = [np.zeros(0, np.uint64)]
        image = self._contents.image
        is_linked = image.header.filetype is not FileType.OBJECT
        left = self.size // size if is_linked and image.header.little_endian else 0
        for section in image.sections:
            if section.name in names:
                count = min(section.size // size, left)
                left -= count
                index = np.arange(count, dtype=np.uint64)
                found.append(np.uint64(section.address) + index * np.uint64(size))
        return np.concatenate(found)

    def read(self, at: Addresses, record: npt.DTypeLike) -> tuple[npt.NDArray[Any], Mask]:
        """The records at ``at``, with zeros for one that cannot be read, and which can be."""
        dtype = np.dtype(record)
        found = np.zeros(len(at), dtype)
        known = np.zeros(len(at), np.bool_)
        if not len(at):
            return found, known
        if not self._is_file:
            return self._read_loaded(at, dtype)
        low, high = int(at.min()), int(at.max())
        for start, data in self._segments:
            if len(data) < dtype.itemsize or high < start:
                continue
            last = len(data) - dtype.itemsize
            # A record need not be aligned: every byte starts one in this view.
            view = np.ndarray((last + 1,), dtype, data, 0, (1,))
            offsets = at - np.uint64(start)
            if start <= low and high <= start + last:  # mostly all are in one
                return view[offsets.astype(np.int64)], np.ones(len(at), np.bool_)
            # What lies before the segment wraps, and so is beyond it.
            mine = (offsets <= np.uint64(last)) & ~known
            found[mine] = view[offsets[mine].astype(np.int64)]
            known |= mine
        return found, known

    def _read_loaded(self, at: Addresses, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Mask]:
        """Page by page, as each read of memory takes its time."""
        size = dtype.itemsize
        found = np.zeros(len(at), dtype)
        known = np.zeros(len(at), np.bool_)
        pages, which = np.unique(at & np.uint64(-_PAGE % (1 << 64)), return_inverse=True)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(pages)))
        within = (at & np.uint64(_PAGE - 1)).astype(np.int64)
        last = _PAGE - size
        alone = [np.zeros(0, np.int64)]
        for page, rows in zip(pages.tolist(), np.split(order, ends[:-1]), strict=True):
            data = self._page(page)
            fits = within[rows] <= last if data is not None else np.zeros(len(rows), np.bool_)
            if data is not None and fits.any():
                view = np.ndarray((last + 1,), dtype, data, 0, (1,))
                found[rows[fits]] = view[within[rows[fits]]]
                known[rows[fits]] = True
            alone.append(rows[~fits])
        for row in np.concatenate(alone).tolist():
            part = self._loaded(int(at[row]), size)
            if part is not None:
                found[row] = np.frombuffer(part, dtype)[0]
                known[row] = True
        return found, known

    def _loaded(self, address: int, size: int) -> bytes | None:
        page, offset = address & -_PAGE, address & (_PAGE - 1)
        if offset + size <= _PAGE:
            data = self._page(page)
            if data is not None:
                return data[offset : offset + size]
        try:
            return self._memory(address, size)
        except MemoryReadError:
            return None

    def _memory(self, address: int, size: int) -> bytes:
        contents = self._contents
        if isinstance(contents, MemoryContents):
            return bytes(contents.read_around(Svma(address), size))
        return bytes(contents.read_svma(Svma(address), size))

    def _page(self, page: int) -> bytes | None:
        if page not in self._pages:
            if len(self._pages) >= _MOST_PAGES:
                self._pages.clear()
            try:
                self._pages[page] = self._memory(page, _PAGE)
            except MemoryReadError:
                self._pages[page] = None
        return self._pages[page]

    def string(self, address: int) -> bytes:
        """The string at a stated address, at most 64 KiB of it; empty where there is none."""
        found = b""
        while len(found) < _LONGEST_STRING:
            chunk = self._chunk(address + len(found))
            head, end, _ = chunk.partition(b"\0")
            found += head
            if end or not chunk:
                break
        return found[:_LONGEST_STRING]

    def _chunk(self, address: int) -> bytes:
        for start, data in self._segments:
            if 0 <= address - start < len(data):
                return bytes(data[address - start : address - start + _STRING_CHUNK])
        if self._is_file:
            return b""
        for size in (_STRING_CHUNK, 16, 1):
            loaded = self._loaded(address, size)
            if loaded is not None:
                return loaded
        return b""


def _readable(contents: FileContents) -> Iterator[tuple[int, int, int]]:
    """The parts of segments that are in the file and not encrypted: address, and file offsets."""
    command = contents.image.encryption_info
    low = high = 0
    if command is not None and command.cryptid:
        low, high = command.cryptoff, command.cryptoff + command.cryptsize
    for segment in contents.image.segments:
        first = segment.fileoff
        last = min(first + min(segment.filesize, segment.vmsize), len(contents.data))
        for start, end in ((first, min(last, low)), (max(first, high), last)):
            if start < end:
                yield segment.vmaddr + start - first, start, end
