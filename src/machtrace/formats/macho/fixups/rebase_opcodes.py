"""Pointers that move with an image: the rebase opcodes of LC_DYLD_INFO.

Source: ``mach-o/loader.h``, ``REBASE_OPCODE_*``, ``dyld_info_command``. Newer linkers write
chained fixups instead: see :mod:`machtrace.formats.macho.fixups.chained`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from machtrace.errors import MachOError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.macho.columns import flattened
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.segments import Segment
from machtrace.model.address import FileOffset

_OPCODE = 0xF0
_IMMEDIATE = 0x0F


class _Rebase(IntEnum):
    """``REBASE_OPCODE_*``."""

    DONE = 0x00
    SET_TYPE_IMM = 0x10
    SET_SEGMENT_AND_OFFSET_ULEB = 0x20
    ADD_ADDR_ULEB = 0x30
    ADD_ADDR_IMM_SCALED = 0x40
    DO_REBASE_IMM_TIMES = 0x50
    DO_REBASE_ULEB_TIMES = 0x60
    DO_REBASE_ADD_ADDR_ULEB = 0x70
    DO_REBASE_ULEB_TIMES_SKIPPING_ULEB = 0x80


_REBASE_TYPE_POINTER = 1


class PointerRun(NamedTuple):
    """Pointers at equal distances."""

    first: int
    """A stated address."""
    length: int
    stride: int
    """In bytes."""


def rebased_pointers(contents: MachOFileContents) -> NDArray[np.uint64]:
    """Return the addresses of an image's pointers into itself, to which a loader adds the slide.

    Returns:
        Stated addresses (:data:`Svma`), uint64, in the table's order. Each pointer is wholly in a
        segment's bytes in the file.

    Raises:
        MachOError: the opcodes are malformed, refer outside the file, or are chained fixups.
        MemoryReadError: the table is beyond the end of the file.
    """
    image = contents.image
    if image.chained_fixups is not None:
        raise MachOError(
            "pointers are given by chained fixups, which are not followed here",
            source=contents.source,
            offset=image.chained_fixups.offset,
            remedy="link with the option -no_fixup_chains",
        )
    info = image.dyld_info
    if info is None or not info.rebase_size:
        return np.empty(0, np.uint64)
    table = contents.read_file(FileOffset(info.rebase_off), info.rebase_size)
    runs: list[PointerRun] = []
    read_rebases(contents, table, runs)
    return places_of(runs)


def read_rebases(contents: MachOFileContents, table: memoryview, runs: list[PointerRun]) -> None:
    """Append the rebases in ``table`` to ``runs``, up to an error.

    Raises:
        MachOError: the opcodes are malformed, or refer outside the file.
    """
    pointer = 8 if contents.image.header.is_64 else 4
    cursor = ByteCursor(table, source=f"{contents.source} rebase opcodes", error=MachOError)
    segments = contents.image.segments
    _rebase_runs(cursor, segments, pointer, len(contents.data) // pointer, runs)


def places_of(runs: list[PointerRun]) -> NDArray[np.uint64]:
    """Return the address of every pointer of ``runs`` (:data:`Svma`), in their order."""
    lengths = np.array([run.length for run in runs], np.int64)
    firsts = np.array([run.first for run in runs], np.uint64)
    strides = np.array([run.stride for run in runs], np.uint64)
    of_run, index = flattened(lengths)
    return firsts[of_run] + index.astype(np.uint64) * strides[of_run]


def _rebase_runs(  # noqa: C901, PLR0912 (an interpreter: one arm an opcode)
    cursor: ByteCursor,
    segments: tuple[Segment, ...],
    pointer: int,
    most: int,
    runs: list[PointerRun],
) -> None:
    segment: Segment | None = None
    offset = 0

    def rebase(count: int, skip: int) -> None:
        nonlocal offset, most
        stride = pointer + skip
        room = 0 if segment is None else min(segment.filesize, segment.vmsize)
        if segment is None or offset + (count - 1) * stride + pointer > room:
            raise cursor.fail("a pointer to rebase lies outside its segment's bytes")
        # No pointer is slid twice, so the file's size bounds their number.
        most -= count
        if most < 0:
            raise cursor.fail("more pointers to rebase than the file can hold")
        if count:
            runs.append(PointerRun(segment.vmaddr + offset, count, stride if count > 1 else 0))
        # Negative distances are in two's complement.
        offset = (offset + count * stride) % (1 << 64)

    while not cursor.at_end:
        byte = cursor.take(1)[0]
        immediate = byte & _IMMEDIATE
        match byte & _OPCODE:
            case _Rebase.DONE:
                break
            case _Rebase.SET_TYPE_IMM:
                if immediate != _REBASE_TYPE_POINTER:
                    raise cursor.fail(f"rebases of the type {immediate} are not followed")
            case _Rebase.SET_SEGMENT_AND_OFFSET_ULEB:
                if immediate >= len(segments):
                    raise cursor.fail(f"there is no segment {immediate}")
                segment, offset = segments[immediate], cursor.uleb128()
            case _Rebase.ADD_ADDR_ULEB:
                offset = (offset + cursor.uleb128()) % (1 << 64)
            case _Rebase.ADD_ADDR_IMM_SCALED:
                offset += immediate * pointer
            case _Rebase.DO_REBASE_IMM_TIMES:
                rebase(immediate, 0)
            case _Rebase.DO_REBASE_ULEB_TIMES:
                rebase(cursor.uleb128(), 0)
            case _Rebase.DO_REBASE_ADD_ADDR_ULEB:
                rebase(1, cursor.uleb128())
            case _Rebase.DO_REBASE_ULEB_TIMES_SKIPPING_ULEB:
                count = cursor.uleb128()
                rebase(count, cursor.uleb128())
            case opcode:
                raise cursor.fail(f"there is no rebase opcode {opcode:#x}")


def slid_segment(
    contents: MachOFileContents, segment: Segment, pointers: NDArray[np.uint64], slide: int
) -> bytes:
    """Return a segment's bytes as in memory, with ``slide`` added to its rebased pointers.

    Raises:
        MemoryReadError: the segment is beyond the end of the file.
    """
    data = np.frombuffer(contents.read_file(segment.fileoff, segment.filesize), np.uint8).copy()
    is_64, little = contents.image.header.is_64, contents.image.header.little_endian
    word = np.dtype(("<" if little else ">") + ("u8" if is_64 else "u4"))
    # The last offset at which a whole pointer fits.
    last = min(segment.filesize, segment.vmsize) - word.itemsize
    # Addresses before the segment wrap, and so are beyond its end.
    offsets = pointers - np.uint64(segment.vmaddr)
    mine = offsets[offsets <= np.uint64(last)] if last >= 0 else offsets[:0]
    # Pointers need not be aligned, so they are gathered byte by byte.
    places = mine.astype(np.intp)[:, None] + np.arange(word.itemsize)
    words = data[places].view(word)
    moved = words.astype(np.uint64) + np.uint64(slide % (1 << 64))
    data[places] = moved.astype(word).view(np.uint8).reshape(places.shape)
    return data.tobytes()
