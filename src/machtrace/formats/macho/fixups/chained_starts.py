"""Where the chains of an image's pointers start.

Source: ``mach-o/fixup-chains.h``: ``dyld_chained_starts_in_image``,
``dyld_chained_starts_in_segment``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError
from machtrace.formats.macho.fixups.chained_formats import POINTER_FORMATS, PointerFormat

_IN_SEGMENT = Struct("<I2HQI H")
"""size, page_size, pointer_format, segment_offset, max_valid_pointer, page_count."""
_START_NONE = 0xFFFF
_START_MULTI = 0x8000
_START_LAST = 0x8000


@dataclass(frozen=True, slots=True, eq=False)
class SegmentStarts:
    """The chains of one segment."""

    segment_offset: int
    """From the Mach-O header to the segment, in memory."""
    format: PointerFormat
    max_valid_pointer: int
    starts: npt.NDArray[np.int64]
    """Of chains: bytes from the segment's start; ascending, no place twice."""
    ends: npt.NDArray[np.int64]
    """Of each chain: where its page ends."""


def parse_starts(
    data: memoryview, starts_offset: int, source: str
) -> Iterator[SegmentStarts | MachOError]:
    """The chains of each segment that has any, or what is wrong with them.

    Args:
        data: the payload of LC_DYLD_CHAINED_FIXUPS.
        starts_offset: as its header says.
        source: what to call it in errors.
    """
    if starts_offset + 4 > len(data):
        yield MachOError("chain starts are cut short", source=source, offset=starts_offset)
        return
    count = int.from_bytes(data[starts_offset : starts_offset + 4], "little")
    room = (len(data) - starts_offset - 4) // 4
    if count > room:
        yield MachOError(
            f"{count} segments with chains, room for {room}", source=source, offset=starts_offset
        )
        return
    seen: set[int] = set()
    for offset in np.frombuffer(data, "<u4", count, starts_offset + 4).tolist():
        if offset and offset not in seen:
            seen.add(offset)
            yield _in_segment(data, starts_offset + offset, source)


def _in_segment(data: memoryview, at: int, source: str) -> SegmentStarts | MachOError:
    def wrong(what: str) -> MachOError:
        return MachOError(what, source=source, offset=at)

    if at + _IN_SEGMENT.size > len(data):
        return wrong("the chain starts of a segment are cut short")
    size, page_size, number, segment_offset, highest, page_count = _IN_SEGMENT.unpack_from(data, at)
    pointer_format = POINTER_FORMATS.get(number)
    if pointer_format is None:
        return wrong(f"chained pointers of format {number} are not known")
    end = min(at + size, len(data))
    words = np.frombuffer(data[at + _IN_SEGMENT.size : end][: (end - at) // 2 * 2 & -2], np.uint8)
    halves = words[: len(words) // 2 * 2].view("<u2")
    if page_count > len(halves) or not page_size:
        return wrong(f"{page_count} pages of {page_size} bytes with chains do not fit")
    pages, starts = _page_starts(halves, page_count)
    places = pages * page_size + starts
    places, order = np.unique(places, return_index=True)
    ends = (pages[order] + 1) * page_size
    return SegmentStarts(segment_offset, pointer_format, highest, places, ends)


def _page_starts(
    halves: npt.NDArray[np.uint16], page_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each chain: its page, and the offset in it. A page may have a list of several chains."""
    first = halves[:page_count].astype(np.int64)
    simple = np.flatnonzero(first & _START_MULTI == 0)
    pages, starts = [simple], [first[simple]]
    lists = np.flatnonzero((first & _START_MULTI != 0) & (first != _START_NONE))
    lasts = np.flatnonzero(halves & _START_LAST)
    left = len(halves)
    for page in lists.tolist():
        begin = int(first[page]) & ~_START_MULTI
        which = int(lasts.searchsorted(begin))
        end = int(lasts[which]) + 1 if which < len(lasts) else len(halves)
        left -= end - begin
        if begin < page_count or left < 0:  # lists lie behind the pages, each on its own
            continue
        found = halves[begin:end].astype(np.int64) & ~_START_LAST
        pages.append(np.full(len(found), page))
        starts.append(found)
    return np.concatenate(pages), np.concatenate(starts)
