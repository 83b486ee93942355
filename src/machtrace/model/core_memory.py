"""The memory in a core: segments as ranges of the process's addresses, without copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import CoreFileError, FormatError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """The memory of a process in a core."""

    regions: RegionMemory
    """Views of the file; segments that adjoin in memory and in the file are merged."""
    code: tuple[MemoryRegion, ...]
    """Executable segments; empty if the core does not state protections."""

    @property
    def highest_address(self) -> Avma:
        """The address of the last byte; 0 if there is no memory."""
        regions = self.regions.regions
        return Avma(regions[-1].end - 1 if regions else 0)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(len(region.data) for region in self.regions.regions)


class CoreSegment(NamedTuple):
    """A segment of a core, as the file states it."""

    address: int
    size: int
    """The size in the file, in bytes."""
    offset: int
    """The file offset of the bytes."""
    is_executable: bool
    stated_at: int
    """The file offset of the segment's header."""


class _Range(NamedTuple):
    start: int
    end: int
    offset: int
    """The file offset of the bytes."""
    is_code: bool


def map_memory(
    segments: Iterable[CoreSegment], data: memoryview, source: str, problems: list[FormatError]
) -> CoreMemory:
    """Map ``segments``; ``data`` is the whole file.

    A truncated segment is mapped as far as the file goes. Errors are added to ``problems``; all
    truncated segments are one problem.
    """
    ranges: list[_Range] = []
    missing = _Missing()
    # Segments do not share bytes of the file. Without this limit, a small file could claim any
    # amount of memory by repeating a range.
    left = len(data)
    for segment in segments:
        there = max(0, min(segment.size, len(data) - segment.offset))
        missing.add(segment.address, segment.size, segment.size - there)
        if there > left:
            problems.append(
                CoreFileError(
                    f"the memory at {segment.address:#x} shares its bytes with other memory",
                    source=source,
                    offset=segment.stated_at,
                )
            )
            continue
        left -= there
        if there:
            end = segment.address + there
            ranges.append(_Range(segment.address, end, segment.offset, segment.is_executable))
    if missing.bytes:
        problems.append(missing.error(len(data), source))
    disjoint = list(_disjoint(ranges))
    return CoreMemory(
        RegionMemory(_region(data, part) for part in _joined(disjoint)),
        tuple(_region(data, part) for part in disjoint if part.is_code),
    )


@dataclass(slots=True)
class _Missing:
    """The error of segments beyond the end of the file."""

    bytes: int = 0
    parts: int = 0
    segments: int = 0
    first: int = 0
    last: int = 0

    def add(self, address: int, size: int, missing: int) -> None:
        self.segments += bool(size)
        if not missing:
            return
        begin = address + size - missing
        self.first = min(self.first, begin) if self.parts else begin
        self.last = max(self.last, address + size)
        self.parts += 1
        self.bytes += missing

    def error(self, file_size: int, source: str) -> CoreFileError:
        return CoreFileError(
            f"the file is cut off: {self.bytes} bytes are missing, of {self.parts} of "
            f"{self.segments} memory segments, between {self.first:#x} and {self.last:#x}",
            source=source,
            offset=file_size,
            remedy="copy or write the core again; what it still holds was read",
        )


def _disjoint(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Sort by address; where ranges overlap, the earlier one has the bytes."""
    end = 0
    for part in sorted(ranges):
        skipped = max(0, end - part.start)
        if skipped < part.end - part.start:
            yield part._replace(start=part.start + skipped, offset=part.offset + skipped)
            end = part.end


def _joined(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Merge segments that adjoin in memory and in the file."""
    last: _Range | None = None
    for part in ranges:
        if last is None:
            last = part
        elif part.start == last.end and part.offset == last.offset + (last.end - last.start):
            last = last._replace(end=part.end)
        else:
            yield last
            last = part
    if last is not None:
        yield last


def _region(data: memoryview, part: _Range) -> MemoryRegion:
    return MemoryRegion(Avma(part.start), data[part.offset : part.offset + part.end - part.start])
