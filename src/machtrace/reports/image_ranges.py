"""Which of a report's images holds an address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from machtrace.model.reported_image import ReportedImage

_ADDRESS_BITS = (47, 39, 36)
"""Bits of an address in user space: of macOS, of iOS, and of what KSCrash takes for its mask."""
_SIGNED = 1 << 47
_KERNEL = 0xFFFF << 48
"""What addresses of the kernel begin with; signatures make no such bits."""


class ImageRanges:
    """The images of a report that say where they are, by address."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        """Take them in any order; of two that begin at one place, the later one counts."""
        placed = sorted(
            (image.load_address, index, image.load_address + image.size)
            for index, image in enumerate(images)
            if image.load_address is not None and image.size
        )
        self._starts = [start for start, _, _ in placed]
        self._indices = [index for _, index, _ in placed]
        self._ends = [end for _, _, end in placed]

    def find(self, address: int) -> int | None:
        """The index of the image that holds ``address`` (Avma), by where images begin and end."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._ends[place]:
            return None
        return self._indices[place]

    def unsigned(self, address: int) -> int:
        """``address`` without arm64e's signature, where one of the images proves that it has one.

        Pointer authentication (ARM, *Armv8.3-A*) writes into the bits that addresses leave free.
        How many these are is the system's: tried in turn.
        """
        if address < _SIGNED or address & _KERNEL == _KERNEL:
            return address
        for bits in _ADDRESS_BITS:
            plain = address & ((1 << bits) - 1)
            if self.find(plain) is not None:
                return plain
        return address
