"""Which bytes of memory something reads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader, MemoryRegion

GRANULE = 256
"""Ranges are widened to multiples of so many bytes: each region of a core costs a header of 56 to
72 bytes, and tables are read a few bytes at a time."""

_Range = tuple[int, int]
"""Start and end, both Avma."""


class RecordingMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` that remembers what was read through it."""

    __slots__ = ("_memory", "_ranges")

    def __init__(self, memory: MemoryReader) -> None:
        self._memory = memory
        self._ranges: set[_Range] = set()

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        data = self._memory.read(address, size)
        if size:
            self._ranges.add((address, address + size))
        return data

    def forget(self) -> None:
        """Remember nothing of what was read so far."""
        self._ranges.clear()

    def regions(self, *, granule: int = GRANULE) -> list[MemoryRegion]:
        """What was read, by address, widened to whole granules as far as they can be read."""
        exact = list(_joined(sorted(self._ranges)))
        starts = [start for start, _ in exact]
        wide = _joined((s // granule * granule, -(-e // granule) * granule) for s, e in exact)

        def readable(start: int, end: int) -> Iterator[MemoryRegion]:
            """The range; else its halves; of a granule, just what was read."""
            data = self._data(start, end)
            if data is not None:
                yield MemoryRegion(Avma(start), data)
            elif end - start > granule:
                middle = start + (end - start) // (2 * granule) * granule
                yield from readable(start, middle)
                yield from readable(middle, end)
            else:
                first = max(0, bisect_right(starts, start) - 1)
                last = bisect_right(starts, end - 1)
                for low, high in exact[first:last]:
                    begin, finish = max(low, start), min(high, end)
                    part = self._data(begin, finish) if begin < finish else None
                    if part is not None:
                        yield MemoryRegion(Avma(begin), part)

        return [region for start, end in wide for region in _adjoined(readable(start, end))]

    def _data(self, start: int, end: int) -> bytes | memoryview | None:
        try:
            return self._memory.read(Avma(start), end - start)
        except MemoryReadError:
            return None


def _joined(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """``ranges``, by start, with neighbours and overlaps as one."""
    last: _Range | None = None
    for start, end in ranges:
        if last is None:
            last = start, end
        elif start <= last[1]:
            last = last[0], max(last[1], end)
        else:
            yield last
            last = start, end
    if last is not None:
        yield last


def _adjoined(regions: Iterable[MemoryRegion]) -> Iterator[MemoryRegion]:
    """``regions``, by address, with neighbours as one."""
    parts: list[MemoryRegion] = []
    for region in regions:
        if parts and parts[-1].end != region.start:
            yield _whole(parts)
            parts = []
        parts.append(region)
    if parts:
        yield _whole(parts)


def _whole(parts: list[MemoryRegion]) -> MemoryRegion:
    if len(parts) == 1:
        return parts[0]
    return MemoryRegion(parts[0].start, b"".join(part.data for part in parts))
