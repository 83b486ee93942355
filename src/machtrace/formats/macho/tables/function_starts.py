"""Where functions begin: LC_FUNCTION_STARTS (``mach-o/loader.h``).

The data is a list of ULEB128 deltas (DWARF 5, section 7.6), the first from the start of
``__TEXT``; a delta of 0 ends it, what follows is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.model.arch import Arch

_LONGEST_ULEB = 10
_ARM = frozenset({Arch.ARM, Arch.ARMV7, Arch.ARMV7S, Arch.ARMV7K})


@dataclass(frozen=True, slots=True, eq=False)
class FunctionStarts:
    """The starts of all functions of an image; none where the linker did not say."""

    offsets: npt.NDArray[np.uint64]
    """Each an :data:`ImageOffset`, ascending."""
    is_thumb: npt.NDArray[np.bool_]
    """Of each: whether it is of Thumb instructions; the table says so in the lowest bit."""

    def __len__(self) -> int:
        return len(self.offsets)


def parse_function_starts(contents: MachOContents) -> FunctionStarts:
    """The function starts of an image; empty where it has no such table.

    Raises:
        MachOError: the table is not in the file, or malformed.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    place = contents.image.function_starts
    if place is None or place.size == 0:
        return FunctionStarts(np.zeros(0, np.uint64), np.zeros(0, np.bool_))
    data = read_table(contents, place.offset, place.size, "the table of function starts")
    offsets = decode_function_starts(data, contents.source)
    if contents.image.header.arch not in _ARM:
        return FunctionStarts(offsets, np.zeros(len(offsets), np.bool_))
    return FunctionStarts(offsets & ~np.uint64(1), (offsets & np.uint64(1)) != 0)


def decode_function_starts(data: bytes | memoryview, source: str) -> npt.NDArray[np.uint64]:
    """Running sums of the deltas in ``data``: bytes from the start of ``__TEXT``, ascending.

    Raises:
        MachOError: a delta is cut short or exceeds 64 bits, or the sums do.
    """
    encoded = np.frombuffer(data, np.uint8)
    lasts = np.flatnonzero(encoded < 0x80)  # noqa: PLR2004 - the bit that says that more follows
    firsts = np.concatenate([np.zeros(1, np.intp), lasts + 1])
    lengths = lasts - firsts[:-1] + 1
    too_long = np.flatnonzero(
        (lengths > _LONGEST_ULEB) | ((lengths == _LONGEST_ULEB) & (encoded[lasts] > 1))
    )
    # A delta is only wrong if it comes before the one that ends the list.
    whole = int(too_long[0]) if len(too_long) else len(lasts)
    end = int(firsts[whole])
    deltas = _decode(encoded[:end], firsts[:whole])
    zeros = np.flatnonzero(deltas == 0)
    if len(zeros):
        deltas = deltas[: zeros[0]]
    elif end < len(encoded):
        kind = "exceeds 64 bits" if len(too_long) else "is cut short"
        raise MachOError(f"the distance of function {whole} {kind}", source=source, offset=end)
    starts = np.cumsum(deltas, dtype=np.uint64)
    if np.any(starts[1:] <= starts[:-1]):
        raise MachOError("function starts exceed 64 bits", source=source, offset=0)
    return starts


def _decode(encoded: npt.NDArray[np.uint8], firsts: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    if not len(firsts):
        return np.zeros(0, np.uint64)
    lengths = np.diff(firsts, append=len(encoded))
    shifts = np.arange(len(encoded)) - np.repeat(firsts, lengths)
    parts = (encoded & 0x7F).astype(np.uint64) << (shifts * 7).astype(np.uint64)
    decoded: npt.NDArray[np.uint64] = np.bitwise_or.reduceat(parts, firsts)
    return decoded
