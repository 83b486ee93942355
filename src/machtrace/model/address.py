"""Four coordinate systems for one instruction.

*Actual* addresses are those of the code in the target; *stated* addresses are those in
the Mach-O or ELF file. The names are framehop's and samply's.

    Avma ──(- slide)──▶ Svma ──(- header's vmaddr)──▶ ImageOffset
                         └───(segment fileoff)──────▶ FileOffset

They are distinct types at every function boundary and plain ints at run time.
Arithmetic gives ``int``, so each crossing is written once, in
:class:`~machtrace.model.image.BinaryImage`, and nowhere else.
"""

from __future__ import annotations

from typing import NewType

from machtrace.frozen import dataclass

Avma = NewType("Avma", int)
"""Actual virtual memory address, in the target; pointer-authentication bits removed."""

Svma = NewType("Svma", int)
"""Stated virtual memory address, as written in the image's file."""

ImageOffset = NewType("ImageOffset", int)
"""Bytes from the image's header: the key of symbol tables.

In ELF the header is at the page of the lowest ``PT_LOAD``: the offset is the address minus the
image's lowest load address, and equals the Svma only if that segment's ``p_vaddr`` is 0.
"""

LAST_OFFSET = ImageOffset(2**64 - 1)
"""The largest offset that columns can store."""

FileOffset = NewType("FileOffset", int)
"""Bytes from the start of the thin file; in a fat file, of the slice."""


@dataclass(frozen=True, slots=True)
class PacMask:
    """The address bits of a pointer; the others are a signature or a tag.

    The width comes from the target (``addrable bits`` of a core, ``machdep.virtual_address_size``),
    never from the program's architecture alone: system code is signed in processes that are not.
    """

    bits: int = (1 << 64) - 1

    @classmethod
    def of_width(cls, width: int) -> PacMask:
        """Return the mask that keeps the low ``width`` bits."""
        return cls((1 << width) - 1)

    def strip(self, pointer: int) -> Avma:
        """Return the address in a possibly signed ``pointer``."""
        return Avma(pointer & self.bits)
