"""Metadata for runtimes, made byte by byte, in an image with chained fixups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack, pack_into

from machtrace.formats.macho.cpu import CPU_TYPE_ARM64
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    IMAGE_SVMA,
    PAGE_SIZE,
    Import,
    ImportTable,
    write_chained_image,
)

DATA_SVMA = IMAGE_SVMA + DATA_OFFSET
"""Where the data of an image is."""

_ARM64E = 0x80000002
_ARM64E_USERLAND24 = 12
_SIGNED_BIND, _SIGNED = 3 << 62, 1 << 63
_BIND = 1 << 63
_DIVERSITY = 0xBEEF << 32


@dataclass(slots=True)
class Metadata:
    """Data that grows by what is added; pointers in it are noted, not written."""

    data: bytearray = field(default_factory=lambda: bytearray(16))
    pointers: dict[int, int] = field(default_factory=dict)
    """Of each place in the data: the address that it is to lead to."""
    binds: dict[int, str] = field(default_factory=dict)
    """Of each place in the data: the symbol that it is to be bound to."""

    def add(self, data: bytes, *pointers: tuple[int, int | None]) -> int:
        """Append a record; gives its address.

        Args:
            data: its bytes.
            pointers: of pointers in it: where, and to which address; None: it stays 0.
        """
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += data
        for offset, target in pointers:
            if target is not None:
                self.pointers[at + offset] = target
        return DATA_SVMA + at

    def string(self, text: str) -> int:
        """Append a string; gives its address."""
        return self.add(text.encode() + b"\0")

    def bound(self, symbol: str) -> int:
        """Append a pointer to a symbol of another image; gives its address."""
        at = self.add(bytes(8))
        self.binds[at - DATA_SVMA] = symbol
        return at

    def write_relative(self, at: int, target: int) -> None:
        """Write the distance from ``at`` to ``target``, both addresses."""
        pack_into("<i", self.data, at - DATA_SVMA, target - at)

    def image(self, sections: Sequence[tuple[str, int, int]], *, is_signed: bool = True) -> bytes:
        """The image: of arm64e with every pointer signed, or of arm64.

        Args:
            sections: names, addresses and sizes.
            is_signed: which of the two.
        """
        names = sorted(set(self.binds.values()))
        bind, plain = (_SIGNED_BIND, _SIGNED | _DIVERSITY) if is_signed else (_BIND, 0)
        pointers = {place: plain | to - IMAGE_SVMA for place, to in self.pointers.items()}
        pointers |= {place: bind | names.index(name) for place, name in self.binds.items()}
        return write_chained_image(
            _ARM64E_USERLAND24 if is_signed else 6,
            dict(sorted(pointers.items())),
            imports=ImportTable(imports=[Import(name) for name in names]),
            cpu=(CPU_TYPE_ARM64, _ARM64E if is_signed else 0),
            contents=bytes(self.data),
            data_size=-(-len(self.data) // PAGE_SIZE) * PAGE_SIZE,
            sections=[(name, at - DATA_SVMA, size) for name, at, size in sections],
        )

    def pointer_section(self, name: str, targets: Sequence[int]) -> tuple[str, int, int]:
        """Append pointers; gives the section of them."""
        at = self.add(bytes(8 * len(targets)), *((8 * n, one) for n, one in enumerate(targets)))
        return name, at, 8 * len(targets)

    def relative_section(self, name: str, targets: Sequence[int]) -> tuple[str, int, int]:
        """Append relative pointers; gives the section of them."""
        at = self.add(pack(f"<{len(targets)}i", *(0 for _ in targets)))
        for number, target in enumerate(targets):
            self.write_relative(at + 4 * number, target)
        return name, at, 4 * len(targets)
