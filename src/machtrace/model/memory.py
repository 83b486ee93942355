"""Readers of a target's memory, and of images by their own addresses and offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset, Svma


class MemoryReader(Protocol):
    """A reader of memory by address."""

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """Return exactly ``size`` bytes.

        Raises:
            MemoryReadError: any of them is unreadable.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Bytes copied from a target. A :class:`MemoryReader`."""

    start: Avma
    data: bytes | memoryview

    @property
    def end(self) -> Avma:
        """The address after the last byte."""
        return Avma(self.start + len(self.data))

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`MemoryReader.read`."""
        begin = address - self.start
        if begin < 0 or size < 0 or begin + size > len(self.data):
            raise MemoryReadError(address, size)
        return self.data[begin : begin + size]

    def __repr__(self) -> str:
        return f"MemoryRegion(start={self.start:#x}, {len(self.data)} bytes)"

    def __reduce__(self) -> tuple[type[MemoryRegion], tuple[Avma, bytes]]:
        # Views, such as those of a mapped core, cannot be pickled or deep-copied.
        return MemoryRegion, (self.start, bytes(self.data))


class RegionMemory:
    """Regions as one memory; a read may cross adjoining regions."""

    __slots__ = ("_regions", "_starts")

    def __init__(self, regions: Iterable[MemoryRegion] = ()) -> None:
        readable = sorted((r for r in regions if len(r.data)), key=lambda region: region.start)
        self._regions = tuple(readable)
        self._starts = [region.start for region in readable]

    @property
    def regions(self) -> tuple[MemoryRegion, ...]:
        """The regions, by address."""
        return self._regions

    def region_at(self, address: Avma) -> MemoryRegion | None:
        """Return the region that contains ``address``."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._regions[index].end:
            return None
        return self._regions[index]

    def region_above(self, address: Avma) -> MemoryRegion | None:
        """Return the lowest region that starts above ``address``."""
        index = bisect_right(self._starts, address)
        return self._regions[index] if index < len(self._regions) else None

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`MemoryReader.read`."""
        region = self.region_at(address)
        if region is None or size < 0:
            raise MemoryReadError(address, size)
        if address + size <= region.end:
            return region.read(address, size)
        parts = bytearray()
        at, end = address, address + size
        while at < end:
            region = self.region_at(at)
            if region is None:
                raise MemoryReadError(address, size)
            upto = min(end, region.end)
            parts += region.read(at, upto - at)
            at = Avma(upto)
        return bytes(parts)


class LayeredMemory:
    """Several memories; a read is of the first that has all the bytes."""

    __slots__ = ("_layers",)

    def __init__(self, layers: Sequence[MemoryReader]) -> None:
        self._layers = tuple(layers)

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`MemoryReader.read`."""
        for layer in self._layers:
            try:
                return layer.read(address, size)
            except MemoryReadError:
                continue
        raise MemoryReadError(address, size)


def without_overlap(*groups: Iterable[MemoryRegion]) -> list[MemoryRegion]:
    """Return all regions by address, without overlap.

    Where regions overlap, the bytes are those of the earlier group; within a group, those of the
    region that starts lower.
    """
    merged: list[MemoryRegion] = []
    for group in groups:
        merged = _filled(merged, group)
    return merged


def _filled(present: list[MemoryRegion], more: Iterable[MemoryRegion]) -> list[MemoryRegion]:
    """Return ``present`` and the parts of ``more`` in its gaps, by address."""
    result = list(present)
    last_end = 0
    gaps: list[tuple[int, int]] = []
    for region in present:
        gaps.append((last_end, region.start))
        last_end = region.end
    gaps.append((last_end, 1 << 65))
    at = 0
    written = 0
    for region in sorted(more, key=lambda region: region.start):
        while gaps[at][1] <= region.start:
            at += 1
        here = at
        while here < len(gaps) and gaps[here][0] < region.end:
            begin = max(region.start, gaps[here][0], written)
            end = min(region.end, gaps[here][1])
            if begin < end:
                data = region.data[begin - region.start : end - region.start]
                result.append(MemoryRegion(Avma(begin), data))
                written = end
            here += 1
    return sorted((r for r in result if len(r.data)), key=lambda region: region.start)


class ImageContents(Protocol):
    """An image's bytes, in a file or loaded into memory."""

    @property
    def source(self) -> str:
        """The name in errors."""
        ...

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a stated address.

        Raises:
            MemoryReadError: any of them is in no segment, or was not captured.
        """
        ...

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a file offset (in a fat file: in the slice).

        Raises:
            MemoryReadError: any of them is beyond the file, or in no loaded segment.
        """
        ...
