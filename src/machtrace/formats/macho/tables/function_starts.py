"""Where functions begin in code, and where data is among it (``mach-o/loader.h``).

LC_FUNCTION_STARTS is a list of ULEB128 distances (DWARF 5, section 7.6), the first from the start
of ``__TEXT``; a distance of 0 ends it, and padding follows. Of 32-bit arm, the lowest bit of a
start marks Thumb code. LC_DATA_IN_CODE is a table of ``data_in_code_entry``.

The starts are decoded in C where the extensions are built: one stack needs a few functions of
hundreds of thousands, and numpy's import would take longer than the rest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from struct import Struct

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.formats.macho.load_commands import LC_DATA_IN_CODE
from machtrace.formats.macho.structs import LINKEDIT_DATA_COMMAND
from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset, Svma

_NONE = memoryview(array("Q"))
_MAX_ULEB_LENGTH = 10
_DATA_ENTRY = Struct("<IHH")


@dataclass(frozen=True, slots=True, eq=False)
class FunctionStarts:
    """The starts of an image's functions; empty if the linker listed none."""

    offsets: memoryview = _NONE
    """ImageOffsets, ascending, of format ``Q``: ``numpy.frombuffer`` makes a column of them."""
    thumb: frozenset[int] = frozenset()
    """The offsets of functions in Thumb code."""

    def __len__(self) -> int:
        return len(self.offsets)

    def holds_code(self, sections: Iterable[tuple[int, int]]) -> bool:
        """Return whether any function starts in ``sections``: (start, end) of code, ImageOffsets.

        Some linkers list nothing but the end of the header.
        """
        for low, high in sections:
            index = bisect_left(self.offsets, low)
            if index < len(self.offsets) and self.offsets[index] < high:
                return True
        return False


def parse_function_starts(contents: MachOContents) -> FunctionStarts:
    """Return the function starts of an image.

    Raises:
        MachOError: the table is outside the file, or malformed.
        MemoryReadError: the table is in a loaded segment that cannot be read.
    """
    table, arch = contents.image.function_starts, contents.image.header.arch
    if table is None or table.size == 0:
        return FunctionStarts()
    data = read_table(contents, table.offset, table.size, "the table of function starts")
    offsets = decode_function_starts(data, contents.source)
    if arch is None or not arch.is_arm:
        return FunctionStarts(offsets)
    thumb = frozenset(offset - 1 for offset in offsets if offset & 1)
    return FunctionStarts(memoryview(array("Q", [offset & ~1 for offset in offsets])), thumb)


def decode_function_starts(data: bytes | memoryview, source: str) -> memoryview:
    """Return the running sums of the distances in ``data``, of format ``Q``; ascending.

    Raises:
        MachOError: a distance is truncated or exceeds 64 bits, or the sums do.
    """
    try:
        from machtrace._native._ranges import function_starts
    except ImportError:
        return decode_with_numpy(data, source)
    starts = function_starts(data)
    # C does not report what is wrong with a malformed table.
    return decode_with_numpy(data, source) if starts is None else memoryview(starts).cast("Q")


def decode_with_numpy(data: bytes | memoryview, source: str) -> memoryview:
    """See :func:`decode_function_starts`."""
    import numpy as np

    encoded = np.frombuffer(data, np.uint8)
    lasts = np.flatnonzero(encoded < 0x80)  # noqa: PLR2004 - the bit of all bytes but the last
    firsts = np.concatenate([np.zeros(1, np.intp), lasts + 1])
    lengths = lasts - firsts[:-1] + 1
    # Ten bytes have room for 70 bits: of the tenth only the lowest may be set.
    too_long = np.flatnonzero(
        (lengths > _MAX_ULEB_LENGTH) | ((lengths == _MAX_ULEB_LENGTH) & (encoded[lasts] > 1))
    )
    # A distance is only wrong if it comes before the one that ends the list.
    whole = int(too_long[0]) if len(too_long) else len(lasts)
    end, firsts = int(firsts[whole]), firsts[:whole]
    # Each byte's 7 bits, shifted by its index within its distance; then one OR for each distance.
    shifts = np.arange(end) - np.repeat(firsts, lengths[:whole])
    parts = (encoded[:end] & 0x7F).astype(np.uint64) << (shifts * 7).astype(np.uint64)
    distances = np.bitwise_or.reduceat(parts, firsts) if whole else parts
    zeros = np.flatnonzero(distances == 0)
    if len(zeros):
        distances = distances[: zeros[0]]
    elif end < len(encoded):
        kind = "exceeds 64 bits" if len(too_long) else "is cut short"
        raise MachOError(f"the distance of function {whole} {kind}", source=source, offset=end)
    starts = np.cumsum(distances, dtype=np.uint64)
    # Distances are not 0, so a sum that does not grow has wrapped.
    if np.any(starts[1:] <= starts[:-1]):
        raise MachOError("function starts exceed 64 bits", source=source, offset=0)
    return memoryview(starts.tobytes()).cast("Q")


def parse_data_in_code(contents: MachOContents) -> tuple[tuple[Svma, Svma], ...]:
    """Return the (start, end) of each table among code, ascending.

    Raises:
        MachOError: the command's table is not in the file, or not a whole number of entries.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    command = next(iter(contents.image.commands_of(LC_DATA_IN_CODE)), None)
    if command is None:
        return ()
    place = command.unpack(LINKEDIT_DATA_COMMAND, contents.source)
    if place.datasize % _DATA_ENTRY.size:
        raise MachOError(
            f"{place.datasize} bytes of data-in-code entries of {_DATA_ENTRY.size} bytes",
            source=contents.source,
            offset=place.dataoff,
        )
    if not place.datasize:
        return ()
    data = read_table(contents, place.dataoff, place.datasize, "the table of data in code")
    ranges = []
    for offset, length, _ in _DATA_ENTRY.iter_unpack(data):
        start = contents.image.svma_of(ImageOffset(offset))
        ranges.append((start, Svma(start + length)))
    return tuple(sorted(ranges))
