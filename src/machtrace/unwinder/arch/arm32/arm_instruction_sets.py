"""Which functions of a 32-bit arm image are of Thumb instructions.

A processor knows by a bit of its status register, and a return address by its lowest bit. But that
is a matter of the function, and so of its address: the same in the innermost frame, of which a
core may not have the status register, and in all its callers. LC_FUNCTION_STARTS marks the Thumb
functions, and so do symbols (``N_ARM_THUMB_DEF``); where neither does, the code itself shows it,
for nearly each ARM instruction begins with the condition "always".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.symtab import parse_symbols

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LOOKED_AT = 1 << 10
"""Bytes of a function that are enough to tell what it is."""
_ALWAYS = 0xE0


class InstructionSets:
    """What is known of an image's functions."""

    __slots__ = ("_known",)

    def __init__(self, known: dict[int, bool]) -> None:
        """``known``: whether Thumb, by the Svma of the function's start."""
        self._known = known

    @classmethod
    def of_macho(cls, contents: MachOContents) -> InstructionSets:
        """From its tables; one that is malformed or was not captured counts as missing."""
        known: dict[int, bool] = {}
        try:
            symbols = parse_symbols(contents)
            known |= _pairs(symbols.n_value[symbols.is_code], symbols.is_thumb[symbols.is_code])
        except (FormatError, MemoryReadError):
            pass
        try:
            starts = parse_function_starts(contents)
            header = contents.image.header_svma
            for offset, is_thumb in _pairs(starts.offsets, starts.is_thumb).items():
                known[header + offset] = is_thumb or known.get(header + offset, False)
        except (FormatError, MemoryReadError):
            pass
        return cls(known)

    def is_thumb(self, start: int, code: bytes) -> bool:
        """Whether the function at Svma ``start``, whose bytes are given, is of Thumb."""
        known = self._known.get(start)
        if known is None:
            known = bool(start % 4) or not looks_like_arm(code)
        return known


def _pairs(addresses: npt.NDArray[np.uint64], marks: npt.NDArray[np.bool_]) -> dict[int, bool]:
    return dict(zip(addresses.tolist(), marks.tolist(), strict=True))


def looks_like_arm(code: bytes) -> bool:
    """Whether most words of ``code`` could be ARM instructions that always run.

    Thumb code has such a byte in every fourth place by chance only.
    """
    tops = code[3:_LOOKED_AT:4]
    return 2 * sum(top & 0xF0 == _ALWAYS for top in tops) > len(tops)
