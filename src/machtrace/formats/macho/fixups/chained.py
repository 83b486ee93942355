"""Chained fixups: each pointer contains the distance to the next (LC_DYLD_CHAINED_FIXUPS).

Source: ``mach-o/fixup-chains.h`` (``dyld_chained_starts_in_image``,
``dyld_chained_starts_in_segment``, ``dyld_chained_import`` and its wider variants). A chain can
only be followed pointer by pointer, but the chains of all pages are followed in parallel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.columns import BindRows, PointerRows, RebaseRows, joined
from machtrace.formats.macho.contents import MachOFileContents, read_table
from machtrace.formats.macho.fixups.chained_formats import (
    POINTER_FORMATS,
    ChainBases,
    PointerFormat,
)
from machtrace.frozen import dataclass

_IN_SEGMENT = Struct("<I2HQI H")
"""size, page_size, pointer_format, segment_offset, max_valid_pointer, page_count."""
_START_NONE = 0xFFFF
_START_MULTI = 0x8000
_START_LAST = 0x8000


@dataclass(frozen=True, slots=True, eq=False)
class SegmentStarts:
    """The chains of one segment."""

    segment_offset: int
    """The offset of the segment from the Mach-O header, in memory."""
    format: PointerFormat
    max_valid_pointer: int
    starts: npt.NDArray[np.int64]
    """Starts of chains: offsets in the segment, ascending and distinct."""
    ends: npt.NDArray[np.int64]
    """The end of each chain's page."""


def parse_starts(
    data: memoryview, starts_offset: int, source: str
) -> Iterator[SegmentStarts | MachOError]:
    """Yield the chains of each segment in LC_DYLD_CHAINED_FIXUPS, or their error."""
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
    """Return each chain's page, and its offset in it. A page may have a list of several chains."""
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
        if begin < page_count or left < 0:  # lists are after the pages and do not overlap
            continue
        found = halves[begin:end].astype(np.int64) & ~_START_LAST
        pages.append(np.full(len(found), page))
        starts.append(found)
    return np.concatenate(pages), np.concatenate(starts)


MAX_NAME_LENGTH = 1 << 16
_SHARED_NAMES = 4
"""Maximum size of all strings together, in blocks: beyond, they overlap on purpose."""


def names_at(strings: bytes, offsets: npt.NDArray[np.int64], source: str) -> list[str]:
    r"""Return the strings at ``offsets``, at most 64 KiB of each; empty beyond the block.

    Invalid UTF-8 is escaped as ``\x..``.

    Raises:
        MachOError: together, they are many times as long as the block, as only in a synthetic
            file.
    """
    room = _SHARED_NAMES * len(strings) + len(offsets)
    names: dict[int, str] = {}
    for at in np.unique(offsets).tolist():
        if not 0 <= at < len(strings):
            names[at] = ""
            continue
        end = strings.find(b"\0", at, at + MAX_NAME_LENGTH)
        if end < 0:
            end = min(len(strings), at + MAX_NAME_LENGTH)
        room -= end - at
        if room < 0:
            raise MachOError("names overlap", source=source, offset=at)
        names[at] = strings[at:end].decode("utf-8", "backslashreplace")
    return [names[at] for at in offsets.tolist()]


_UNCOMPRESSED = 0
_ZLIB = 1
_MAX_UNPACKED = 1 << 25
_BEST_RATIO = 64
"""Maximum ratio of decompressed names: symbols compress to a tenth, zeros and similar to less."""

_IMPORT = np.dtype([("bits", "<u4")])
_IMPORT_ADDEND = np.dtype([("bits", "<u4"), ("addend", "<i4")])
_IMPORT_ADDEND64 = np.dtype([("bits", "<u8"), ("addend", "<i8")])
_LAYOUTS = {1: (_IMPORT, 9), 2: (_IMPORT_ADDEND, 9), 3: (_IMPORT_ADDEND64, 32)}
"""For each imports_format: the record, and the lowest bit of the name's offset."""


@dataclass(frozen=True, slots=True, eq=False)
class Imports:
    """Imports, one row for each ordinal of binds, from 0."""

    names: tuple[str, ...]
    addends: npt.NDArray[np.int64]


def parse_imports(
    data: memoryview, imports_offset: int, symbols_offset: int, *, count: int,
    imports_format: int, symbols_format: int, source: str,
) -> Imports:  # fmt: skip
    """Parse the imports of the payload ``data``.

    Raises:
        MachOError: they are truncated, of an unknown format, or their names overlap.
    """
    layout = _LAYOUTS.get(imports_format)
    if layout is None:
        raise MachOError(
            f"imports of format {imports_format} are not known",
            source=source,
            offset=imports_offset,
        )
    record, shift = layout
    if imports_offset + count * record.itemsize > len(data):
        raise MachOError(f"{count} imports are cut short", source=source, offset=imports_offset)
    rows = np.frombuffer(data, record, count, imports_offset)
    strings = _strings(bytes(data[symbols_offset:]), symbols_format, source, symbols_offset)
    offsets = (rows["bits"] >> shift).astype(np.int64)
    names = names_at(strings, offsets, source)
    if "addend" in (record.names or ()):
        return Imports(tuple(names), rows["addend"].astype(np.int64))
    return Imports(tuple(names), np.zeros(count, np.int64))


def _strings(data: bytes, symbols_format: int, source: str, offset: int) -> bytes:
    if symbols_format == _UNCOMPRESSED:
        return data
    if symbols_format != _ZLIB:
        raise MachOError(
            f"symbol strings of format {symbols_format} are not known", source=source, offset=offset
        )
    try:
        most = min(_MAX_UNPACKED, _BEST_RATIO * len(data) + 1)
        return zlib.decompressobj().decompress(data, most)
    except zlib.error as error:
        raise MachOError(f"symbol strings: {error}", source=source, offset=offset) from None


_HEADER = Struct("<7I")
_SIDE_BY_SIDE = 24
"""The number of chains from which numpy's overhead per step is worthwhile."""

Places = npt.NDArray[np.int64]
"""Offsets in a segment."""


def chained_pointers(
    contents: MachOFileContents, *, shared_cache_base: int | None = None
) -> PointerRows:
    """Return the pointers of an image with LC_DYLD_CHAINED_FIXUPS.

    A chain that leaves its page is followed up to there, and errors in the import table do not
    affect rebases; ``problem`` of the result is the first error.

    Args:
        contents: the file.
        shared_cache_base: the base of the pointer formats of shared caches (Svma).

    Raises:
        MachOError: the table is not in the file, or too short for its header.
    """
    image = contents.image
    place = image.chained_fixups
    source = f"{contents.source} chained fixups"
    data = (
        memoryview(b"")
        if place is None
        else read_table(contents, place.offset, place.size, "the table of chained fixups")
    )
    if len(data) < _HEADER.size:
        raise MachOError("chained fixups are cut short", source=source, offset=0)
    _, starts_offset, imports_offset, symbols_offset, count, imports_format, symbols_format = (
        _HEADER.unpack_from(data)
    )
    walks: list[_Walked] = []
    problem: MachOError | None = None
    bases = ChainBases(
        image.header_svma, tuple(s.vmaddr for s in image.segments), shared_cache_base, 0
    )
    taken: set[int] = set()
    for starts in parse_starts(data, starts_offset, source):
        if isinstance(starts, MachOError):
            problem = problem or starts
            continue
        if (
            starts.segment_offset in taken
        ):  # a second set of chains of a segment would repeat pointers
            continue
        taken.add(starts.segment_offset)
        walked = _walk_segment(contents, starts, bases)
        problem = problem or walked.problem
        walks.append(walked)
    imports = Imports((), np.zeros(0, np.int64))
    try:
        imports = parse_imports(
            data, imports_offset, symbols_offset, count=count, imports_format=imports_format,
            symbols_format=symbols_format, source=source,
        )  # fmt: skip
    except MachOError as error:
        problem = problem or error
    return _rows(walks, imports, problem)


class _Walked:
    """The pointers of one segment."""

    __slots__ = ("addends", "bind_places", "ordinals", "places", "problem", "targets")

    def __init__(
        self, places: npt.NDArray[np.uint64], raw: npt.NDArray[np.uint64],
        pointer_format: PointerFormat, bases: ChainBases, problem: MachOError | None,
    ) -> None:  # fmt: skip
        decoded = pointer_format.decode(raw, bases)
        self.places = places[decoded.is_rebase]
        self.targets = decoded.targets[decoded.is_rebase]
        self.bind_places = places[decoded.is_bind]
        self.ordinals = decoded.ordinals[decoded.is_bind]
        self.addends = decoded.addends[decoded.is_bind]
        self.problem = problem


def _rows(walks: list[_Walked], imports: Imports, problem: MachOError | None) -> PointerRows:
    ordinals = joined((walked.ordinals for walked in walks), np.uint64)
    known = ordinals < np.uint64(len(imports.names))
    rows = ordinals[known].astype(np.int32)
    return PointerRows(
        RebaseRows.sorted(
            joined((walked.places for walked in walks), np.uint64),
            joined((walked.targets for walked in walks), np.uint64),
        ),
        BindRows.sorted(
            joined((walked.bind_places for walked in walks), np.uint64)[known],
            rows,
            joined((walked.addends for walked in walks), np.int64)[known] + imports.addends[rows],
            imports.names,
        ),
        problem,
    )


def _walk_segment(contents: MachOFileContents, starts: SegmentStarts, bases: ChainBases) -> _Walked:
    svma = (bases.image + starts.segment_offset) % (1 << 64)
    segment = next((s for s in contents.image.segments if s.vmaddr == svma and s.filesize), None)
    problem: MachOError | None = None
    data = memoryview(b"")
    if segment is not None:
        try:
            data = contents.read_file(segment.fileoff, min(segment.filesize, segment.vmsize))
        except MemoryReadError:
            segment = None
    if segment is None and len(starts.starts):
        problem = MachOError(
            "chained pointers are in no segment of the file", source=contents.source, offset=svma
        )
    places, raw, is_whole = walk_chains(data, starts.starts, starts.ends, starts.format)
    if not is_whole and problem is None:
        problem = MachOError(
            "a chain of pointers leaves its page", source=contents.source, offset=svma
        )
    bases = ChainBases(bases.image, bases.segments, bases.shared_cache, starts.max_valid_pointer)
    return _Walked(places.astype(np.uint64) + np.uint64(svma), raw, starts.format, bases, problem)


def walk_chains(
    data: memoryview, starts: Places, ends: Places, pointer_format: PointerFormat
) -> tuple[Places, npt.NDArray[np.uint64], bool]:
    """Follow chains through a segment's bytes.

    Args:
        data: the bytes.
        starts: starts of chains, ascending and distinct.
        ends: the limit of each chain's pointers.
        pointer_format: the format of all of them.

    Returns:
        The offsets of pointers, unordered; their raw values; whether all chains ended regularly.
        The segment's size bounds their number, but where chains join, some are repeated.
    """
    size = pointer_format.size
    ends = np.minimum(ends, len(data))
    # A chain cannot start where no pointer fits.
    fits = (starts >= 0) & (starts + size <= ends)
    is_whole = bool(fits.all())
    here, ends = starts[fits], ends[fits]
    if not len(here):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64), is_whole
    # Pointers need not be aligned: in this view, with a stride of 1, a word starts at every byte.
    words = np.ndarray((len(data) - size + 1,), f"<u{size}", data, 0, (1,))
    room = len(data) // min(size, pointer_format.stride)
    places: list[Places] = []
    values: list[npt.NDArray[np.uint64]] = []
    # One step of every chain at a time: ``here`` is where each of the remaining chains is now.
    while len(here) > _SIDE_BY_SIDE:
        raw = words[here].astype(np.uint64)
        places.append(here)
        values.append(raw)
        room -= len(here)
        distances = pointer_format.distances(raw)
        following = here + distances
        more = distances != 0
        inside = following + size <= ends
        is_whole &= bool(inside[more].all())
        more &= inside
        here, ends = following[more], ends[more]
        if room < 0:
            return _cut(places, values)
    # The longest chains alone: few rows in a column cost more than plain integers.
    rest = _walk_few(data, here.tolist(), ends.tolist(), pointer_format, room)
    places.append(np.array(rest[0], np.int64))
    values.append(np.array(rest[1], np.uint64))
    return np.concatenate(places), np.concatenate(values), is_whole and rest[2]


def _cut(
    places: list[Places], values: list[npt.NDArray[np.uint64]]
) -> tuple[Places, npt.NDArray[np.uint64], bool]:
    return np.concatenate(places), np.concatenate(values), False


def _walk_few(
    data: memoryview, starts: list[int], ends: list[int], pointer_format: PointerFormat, room: int
) -> tuple[list[int], list[int], bool]:
    read = Struct("<Q" if pointer_format.size == 8 else "<I").unpack_from  # noqa: PLR2004
    shift, stride, size = pointer_format.next_shift, pointer_format.stride, pointer_format.size
    mask = (1 << pointer_format.next_bits) - 1
    places: list[int] = []
    values: list[int] = []
    is_whole = True
    for start, limit in zip(starts, ends, strict=True):
        at, last = start, limit - size
        while True:
            (raw,) = read(data, at)
            places.append(at)
            values.append(raw)
            distance = (raw >> shift & mask) * stride
            if not distance:
                break
            at += distance
            if at > last or len(places) > room:
                is_whole = False
                break
    return places, values, is_whole
