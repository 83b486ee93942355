"""Chained fixups: every pointer of a page says how far it is to the next (LC_DYLD_CHAINED_FIXUPS).

Source: ``mach-o/fixup-chains.h``. A chain can only be followed from pointer to pointer, but those
of all pages go on side by side.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.fixups.chained_formats import ChainBases, PointerFormat
from machtrace.formats.macho.fixups.chained_imports import Imports, parse_imports
from machtrace.formats.macho.fixups.chained_starts import SegmentStarts, parse_starts
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.linkedit import read_table
from machtrace.formats.macho.columns import BindRows, PointerRows, RebaseRows, joined

_HEADER = Struct("<7I")
_SIDE_BY_SIDE = 24
"""Chains from which numpy's overhead for each step pays."""

Places = npt.NDArray[np.int64]
"""Bytes from a segment's start."""


def chained_pointers(
    contents: FileContents, *, shared_cache_base: int | None = None
) -> PointerRows:
    """The pointers of an image with LC_DYLD_CHAINED_FIXUPS.

    A chain that leads out of its page is followed up to there, and the import table's faults leave
    the pointers into the image; ``problem`` of the result tells the first thing that was wrong.

    Args:
        contents: the file.
        shared_cache_base: stated address that the formats of shared caches count from.

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
        if starts.segment_offset in taken:  # no pointer is in two chains
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


def _walk_segment(contents: FileContents, starts: SegmentStarts, bases: ChainBases) -> _Walked:
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
        starts: of chains, ascending, no place twice.
        ends: of each chain: what none of its pointers may go beyond.
        pointer_format: of all of them.

    Returns:
        The places of pointers, in no order; their raw values; whether all chains ended well. They
        are no more than the segment has room for, but where chains meet, some are there twice.
    """
    size = pointer_format.size
    ends = np.minimum(ends, len(data))
    # What starts where no pointer fits is no chain.
    fits = (starts >= 0) & (starts + size <= ends)
    is_whole = bool(fits.all())
    here, ends = starts[fits], ends[fits]
    if not len(here):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64), is_whole
    # A pointer need not be aligned: every byte starts a word of this view.
    words = np.ndarray((len(data) - size + 1,), f"<u{size}", data, 0, (1,))
    room = len(data) // min(size, pointer_format.stride)
    found: list[Places] = []
    values: list[npt.NDArray[np.uint64]] = []
    while len(here) > _SIDE_BY_SIDE:
        raw = words[here].astype(np.uint64)
        found.append(here)
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
            return _cut(found, values)
    rest = _walk_few(data, here.tolist(), ends.tolist(), pointer_format, room)
    found.append(np.array(rest[0], np.int64))
    values.append(np.array(rest[1], np.uint64))
    return np.concatenate(found), np.concatenate(values), is_whole and rest[2]


def _cut(
    found: list[Places], values: list[npt.NDArray[np.uint64]]
) -> tuple[Places, npt.NDArray[np.uint64], bool]:
    return np.concatenate(found), np.concatenate(values), False


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
