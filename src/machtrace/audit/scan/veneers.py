"""Linkers' veneers on arm64: code that only leads to a function too far away for a call.

A veneer (branch island, range-extension thunk) is ``adrp x16``, ``add x16``, ``br x16``: registers
that a linker may change between a call and the called function.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Masks and values of encodings: *Arm Architecture Reference Manual*, C6.2.
_ADRP_X16 = (0x9F00001F, 0x90000010)
_ADD_X16 = (0xFFC003FF, 0x91000210)
_BR_X16 = 0xD61F0200
_INSTRUCTION = 4


def veneers(code: memoryview, start: int) -> dict[int, int]:
    """Return the stated address that each veneer leads to, by its own.

    Args:
        code: a section.
        start: its stated address.
    """
    words = np.frombuffer(code[: len(code) // _INSTRUCTION * _INSTRUCTION], "<u4")
    if len(words) < 3:  # noqa: PLR2004 - the veneer's instructions
        return {}
    # Branches through x16 are few: the rest is examined at those alone.
    rows = np.flatnonzero(words[2:] == _BR_X16)
    first, second = words[rows], words[rows + 1]
    is_veneer = ((second & _ADD_X16[0]) == _ADD_X16[1]) & ((first & _ADRP_X16[0]) == _ADRP_X16[1])
    rows, first, second = rows[is_veneer], first[is_veneer], second[is_veneer]
    at = start + rows.astype(np.int64) * _INSTRUCTION
    return dict(zip(at.tolist(), _targets(at, first, second).tolist(), strict=True))


def _targets(
    at: npt.NDArray[np.int64], adrp: npt.NDArray[np.uint32], add: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    high, low = (adrp >> 5 & 0x7FFFF).astype(np.int64), (adrp >> 29 & 3).astype(np.int64)
    pages = ((high << 2 | low) ^ 1 << 20) - (1 << 20)
    return (at & ~0xFFF) + (pages << 12) + (add >> 10 & 0xFFF).astype(np.int64)
