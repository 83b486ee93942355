"""Swift's metadata: relative pointers, and the descriptors that they lead to.

Source: the Swift project, ``include/swift/Basic/RelativePointer.h`` and
``include/swift/ABI/Metadata.h``. A relative pointer is 32 bits, signed, and counts from where it
is; of an indirectable one the lowest bit says that it leads to a pointer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.scattered_records import ScatteredRecords
from machtrace.model.address import Svma

_LONGEST_NAME = 1 << 12
_WORD = 4


class SwiftRecords:
    """The image that metadata is read from."""

    __slots__ = ("_mask", "contents", "memory", "pointers")

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self._mask = np.uint64((1 << (64 if contents.image.header.is_64 else 32)) - 1)

    def listed(self, *sections: str) -> Addresses:
        """The places of all relative pointers in the sections of these names."""
        return self.memory.elements(sections, _WORD)

    def relative(self, at: Addresses) -> Addresses:
        """Where the relative pointers at ``at`` lead; 0 where there is none."""
        offsets, known = self.memory.read(at, "<i4")
        targets = (at + offsets.astype(np.int64).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0))

    def marked(self, at: Addresses, bits: int) -> tuple[Addresses, npt.NDArray[np.int64]]:
        """The same of pointers whose lowest ``bits`` are no part of them, and these bits."""
        offsets, known = self.memory.read(at, "<i4")
        low = (1 << bits) - 1
        marks = offsets.astype(np.int64) & low
        targets = (at + (offsets.astype(np.int64) & ~low).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0)), marks

    def pointer(self, at: int) -> int:
        """Where one relative pointer leads; 0 where there is none."""
        return int(self.relative(np.array([at], np.uint64))[0])

    def indirectable(self, at: int) -> tuple[int, str]:
        """Where an indirectable pointer leads: an address in the image, or a symbol elsewhere."""
        targets, marks = self.marked(np.array([at], np.uint64), 1)
        target = int(targets[0])
        if not target or not marks[0]:
            return target, ""
        return self.followed(target)

    def followed(self, at: int) -> tuple[int, str]:
        """Where the pointer at ``at`` leads: an address in the image, or a symbol elsewhere."""
        place = Svma(at)
        return self.pointers.target(place) or 0, self.pointers.symbol(place) or ""

    def number(self, at: int, record: npt.DTypeLike = "<u4") -> int | None:
        """One number; None where it cannot be read."""
        rows, known = self.memory.read(np.array([at], np.uint64), record)
        return int(rows[0]) if known[0] else None

    def text(self, at: int) -> str:
        r"""The string at a stated address; bytes that are no UTF-8 are shown as ``\x..``."""
        return self.memory.string(at)[:_LONGEST_NAME].decode("utf-8", "backslashreplace")
