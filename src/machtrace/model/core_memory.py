"""The memory in a core file: segments as ranges of the process' addresses, nothing of it copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import CoreFileError, FormatError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """What a core holds of its process' memory."""

    regions: RegionMemory
    """Views of the file; segments that adjoin in memory and in the file are one region."""
    code: tuple[MemoryRegion, ...]
    """Those segments whose protection lets their bytes run; empty where the core does not say."""

    @property
    def highest_address(self) -> Avma:
        """Of the last byte; 0 if there is none."""
        regions = self.regions.regions
        return Avma(regions[-1].end - 1 if regions else 0)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(len(region.data) for region in self.regions.regions)


class CoreSegment(NamedTuple):
    """A part of a core file that holds memory, as the file states it."""

    address: int
    size: int
    """Bytes in the file."""
    offset: int
    """Of its bytes in the file."""
    is_executable: bool
    stated_at: int
    """Where in the file it is stated."""


class _Range(NamedTuple):
    start: int
    end: int
    offset: int
    """Of its bytes in the file."""
    is_code: bool


def map_memory(
    segments: Iterable[CoreSegment], data: memoryview, source: str, problems: list[FormatError]
) -> CoreMemory:
    """Map ``segments``; ``data`` is the whole file.

    A segment that the file holds only a part of is mapped so far. What is amiss is added to
    ``problems``; all that the file is too short for is one problem.
    """
    ranges: list[_Range] = []
    missing = _Missing()
    # Writers give each segment bytes of its own; without this limit a small file could claim
    # any amount of memory by giving the same bytes again and again.
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
    """What the file is too short for."""

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
    """By address; of ranges that overlap, the earlier one has the bytes."""
    end = 0
    for part in sorted(ranges):
        skipped = max(0, end - part.start)
        if skipped < part.end - part.start:
            yield part._replace(start=part.start + skipped, offset=part.offset + skipped)
            end = part.end


def _joined(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Neighbours in memory that are neighbours in the file, as one."""
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
