"""Columns for metadata: pointers by address, records read in bulk, and lists of lists.

Metadata points from record to record. Reading records one by one takes seconds in a large image; a
column of addresses takes a few calls of numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents, MachOFileContents
from machtrace.formats.macho.header import FileType
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

Addresses: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`~machtrace.model.address.Svma`."""


@dataclass(frozen=True, slots=True, eq=False)
class RebaseRows:
    """Pointers into the image, ascending by address; each address once."""

    places: Addresses
    targets: Addresses
    """The pointers' targets, without tags and signatures."""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def sorted(cls, places: Addresses, targets: Addresses) -> RebaseRows:
        """Build from rows in any order; of several at one address, the first counts."""
        kept, order = np.unique(places, return_index=True)
        return cls(kept, targets[order])

    def target_at(self, at: Svma) -> Svma | None:
        """Return the target of the pointer at ``at``; None if there is no pointer."""
        # A Python int would make numpy convert the column to floating point.
        row = int(self.places.searchsorted(np.uint64(at)))
        if row == len(self) or int(self.places[row]) != at:
            return None
        return Svma(int(self.targets[row])) or None

    def targets_at(self, at: Addresses) -> Addresses:
        """Return the targets of the pointers at ``at``; 0 where there is no pointer."""
        if not len(self.places):
            return np.zeros(len(at), np.uint64)
        rows = self.places.searchsorted(at).clip(max=len(self.places) - 1)
        found: Addresses = np.where(self.places[rows] == at, self.targets[rows], np.uint64(0))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class BindRows:
    """Pointers bound by name, ascending by address; each address once."""

    places: Addresses
    symbols: npt.NDArray[np.int32]
    """Indices of :attr:`names`."""
    addends: npt.NDArray[np.int64]
    """Offsets from the symbols, in bytes."""
    names: tuple[str, ...]
    """Linkage names."""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def sorted(
        cls,
        places: Addresses,
        symbols: npt.NDArray[np.int32],
        addends: npt.NDArray[np.int64],
        names: Sequence[str],
    ) -> BindRows:
        """Build from rows in any order; of several at one address, the first counts."""
        kept, order = np.unique(places, return_index=True)
        return cls(kept, symbols[order], addends[order], tuple(names))

    def symbol_at(self, at: Svma) -> str | None:
        """Return the name that the pointer at ``at`` is bound to, or None."""
        row = int(self.places.searchsorted(np.uint64(at)))
        if row == len(self) or int(self.places[row]) != at:
            return None
        return self.names[int(self.symbols[row])]

    def symbols_at(self, at: Addresses) -> list[str]:
        """Return the names that the pointers at ``at`` are bound to; empty for the others."""
        if not len(self.places):
            return [""] * len(at)
        rows = self.places.searchsorted(at).clip(max=len(self.places) - 1)
        found = np.where(self.places[rows] == at, self.symbols[rows], -1)
        return [self.names[symbol] if symbol >= 0 else "" for symbol in found.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class PointerRows:
    """All pointers in an image's tables."""

    rebases: RebaseRows
    binds: BindRows
    problem: MachOError | None = None
    """The error that truncated a table; its earlier rows are included."""


def no_rebases() -> RebaseRows:
    """Return no rows."""
    return RebaseRows(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def no_binds() -> BindRows:
    """Return no rows."""
    return BindRows(np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int64), ())


def joined(columns: Iterable[npt.NDArray[np.generic]], dtype: npt.DTypeLike) -> npt.NDArray:  # type: ignore[type-arg]
    """Concatenate columns, of which there may be none."""
    return np.concatenate([np.zeros(0, dtype), *columns])


Mask: TypeAlias = npt.NDArray[np.bool_]

_PAGE = 1 << 14
"""Bytes of loaded memory per read."""
_MAX_PAGES = 1 << 10
"""Pages cached; at the limit, all are dropped."""
_MAX_LOADED = 1 << 24
"""Maximum bytes of records in a loaded image, whose stated size is unverified."""
_STRING_CHUNK = 256
_MAX_STRING_LENGTH = 1 << 16


class ScatteredRecords:
    """Records and strings of an image by their stated addresses.

    Encrypted parts of a file cannot be read. In memory, metadata leads to the heap and to other
    images: everything around the image can be read, at addresses slid as the image's are.
    """

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents
        self._is_file = not contents.is_loaded
        self._pages: dict[int, bytes | None] = {}
        self._segments: list[tuple[int, npt.NDArray[np.uint8]]] = []
        if not contents.is_loaded:
            for address, start, end in _readable(contents):
                data = np.frombuffer(contents.data[start:end], np.uint8)
                self._segments.append((address, data))

    @property
    def size(self) -> int:
        """Bytes that records may occupy: the bound of their number."""
        if self._is_file:
            return sum(len(data) for _, data in self._segments)
        size = sum(segment.vmsize for segment in self._contents.image.segments)
        return min(size, _MAX_LOADED)

    def elements(self, names: Sequence[str], size: int) -> Addresses:
        """Return the addresses of all elements of ``size`` bytes in the sections of these names.

        There are none in object files and big-endian images: their sections are not yet, or not
        in a known form, what a runtime reads.
        """
        places = [np.zeros(0, np.uint64)]
        image = self._contents.image
        is_linked = image.header.filetype is not FileType.OBJECT
        left = self.size // size if is_linked and image.header.little_endian else 0
        for section in image.sections:
            if section.name in names:
                count = min(section.size // size, left)
                left -= count
                index = np.arange(count, dtype=np.uint64)
                places.append(np.uint64(section.address) + index * np.uint64(size))
        return np.concatenate(places)

    def read(self, at: Addresses, record: npt.DTypeLike) -> tuple[npt.NDArray[Any], Mask]:
        """Return the records at ``at``, zeros if unreadable, and which are readable."""
        dtype = np.dtype(record)
        records = np.zeros(len(at), dtype)
        known = np.zeros(len(at), np.bool_)
        if not len(at):
            return records, known
        if not self._is_file:
            return self._read_loaded(at, dtype)
        low, high = int(at.min()), int(at.max())
        for start, data in self._segments:
            if len(data) < dtype.itemsize or high < start:
                continue
            last = len(data) - dtype.itemsize
            # Records need not be aligned: this view has a stride of 1, so one starts at each byte.
            view = np.ndarray((last + 1,), dtype, data, 0, (1,))
            offsets = at - np.uint64(start)
            if start <= low and high <= start + last:  # usually all are in one segment
                return view[offsets.astype(np.int64)], np.ones(len(at), np.bool_)
            # Addresses before the segment wrap, and so are beyond its end.
            mine = (offsets <= np.uint64(last)) & ~known
            records[mine] = view[offsets[mine].astype(np.int64)]
            known |= mine
        return records, known

    def _read_loaded(self, at: Addresses, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Mask]:
        """Read page by page: each read of memory is a system call or a request."""
        size = dtype.itemsize
        records = np.zeros(len(at), dtype)
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
                records[rows[fits]] = view[within[rows[fits]]]
                known[rows[fits]] = True
            alone.append(rows[~fits])
        for row in np.concatenate(alone).tolist():
            part = self._loaded(int(at[row]), size)
            if part is not None:
                records[row] = np.frombuffer(part, dtype)[0]
                known[row] = True
        return records, known

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
        if contents.is_loaded:
            return bytes(contents.read_around(Svma(address), size))
        return bytes(contents.read_svma(Svma(address), size))

    def _page(self, page: int) -> bytes | None:
        if page not in self._pages:
            if len(self._pages) >= _MAX_PAGES:
                self._pages.clear()
            try:
                self._pages[page] = self._memory(page, _PAGE)
            except MemoryReadError:
                self._pages[page] = None
        return self._pages[page]

    def string(self, address: int) -> bytes:
        """Return the string at a stated address, at most 64 KiB; empty if unreadable."""
        text = b""
        while len(text) < _MAX_STRING_LENGTH:
            chunk = self._chunk(address + len(text))
            head, end, _ = chunk.partition(b"\0")
            text += head
            if end or not chunk:
                break
        return text[:_MAX_STRING_LENGTH]

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


def _readable(contents: MachOFileContents) -> Iterator[tuple[int, int, int]]:
    """Yield the readable parts of segments in a file: address, and range of file offsets."""
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


Rows: TypeAlias = npt.NDArray[np.intp]


def flattened(counts: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """Return each element's list and its index in it, for lists of these lengths."""
    # Of lengths [2, 0, 1]: lists [0, 0, 2] and indices [0, 1, 0], which are the elements' numbers
    # less those of the first element of their list.
    of_list = np.repeat(np.arange(len(counts)), counts)
    return of_list, np.arange(len(of_list)) - np.repeat(np.cumsum(counts) - counts, counts)


def bounded(counts: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    """Return ``counts``, with zeros from where their running sum exceeds ``most``."""
    # Counts above ``most`` go first, so that the sum cannot wrap.
    possible = np.where(counts <= most, counts, 0).astype(np.int64)
    return np.where(np.cumsum(possible) <= most, possible, 0)
