"""Jumps of arm64 stubs (*ELF for the Arm 64-bit Architecture*, "Program Linkage Table")."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ADRP_X16, _ADRP_MASK = 0x90000010, 0x9F00001F
"""``adrp x16, page``, and the bits that tell it."""
_LDR_X17_X16, _LDR_MASK = 0xF9400211, 0xFFC003FF
"""``ldr x17, [x16, #offset]``."""
_BTI_C = 0xD503245F
_LONGEST_STUB = 24
"""Bytes: ``bti c``, four instructions and a ``nop``, or an ``autia1716`` among them."""
_PAGE_BITS = 12
_INSTRUCTION = 4


def stubs(
    data: npt.NDArray[np.uint8], address: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Offset and size of each stub in the code ``data`` at ``address``, and the Svma of its slot.

    The first may be what the loader needs, whose slot belongs to no symbol.
    """
    words = np.frombuffer(data[: len(data) // _INSTRUCTION * _INSTRUCTION], "<u4").astype(np.int64)
    is_page, is_load = (words & _ADRP_MASK) == _ADRP_X16, (words & _LDR_MASK) == _LDR_X17_X16
    at = np.flatnonzero(is_page[:-1] & is_load[1:])
    adrp, ldr = words[at], words[at + 1]
    pages = ((adrp >> 5 & 0x7FFFF) << 2) | (adrp >> 29 & 0b11)
    pages = np.where(pages >= 1 << 20, pages - (1 << 21), pages)
    here = at.astype(np.uint64) * np.uint64(_INSTRUCTION) + np.uint64(address)
    bits = np.uint64(_PAGE_BITS)
    slots = ((here >> bits) + pages.astype(np.uint64)) << bits
    slots += (8 * (ldr >> 10 & 0xFFF)).astype(np.uint64)
    starts = at - ((at > 0) & (words[np.maximum(at - 1, 0)] == _BTI_C))
    starts = starts * _INSTRUCTION
    ends = np.append(starts, len(data))[1:]
    sizes = np.minimum(ends - starts, _LONGEST_STUB)
    return starts, sizes.astype(np.uint64), slots
