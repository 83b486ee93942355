"""Objects for arm64e, made such that linkers for arm64 take them.

The code is arm64e's as it is: it signs return addresses and pointers to functions. What a linker
and dyld do with pointers that are signed in data, the lab does in the emulator. Sources:
``mach-o/arm64/reloc.h``, and *Pointer Authentication*, "Mach-O authenticated relocations", of
LLVM's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct, pack_into, unpack_from

from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.tables.symtab import parse_symbols

_OBJECT_SUBTYPE_OFFSET = 8
_ARM64_ALL = 0
_RELOCATION = Struct("<iI")
_UNSIGNED, _AUTHENTICATED = 0, 11
_TYPE_SHIFT = 28


@dataclass(frozen=True, slots=True)
class SignedPointer:
    """A pointer in data that dyld signs."""

    symbol: str
    """What it is part of."""
    offset: int
    """Bytes from that."""
    key: int
    """0 to 3: IA, IB, DA, DB."""
    discriminator: int
    has_address_diversity: bool
    """The pointer's own address is mixed into the discriminator."""


_KEY_B, _SIGNAL_FRAME = b"zRB\0", b"zRS\0"
"""Augmentations of CIEs: the linker of ziglang ends where it sees the first."""


def with_key_b(executable: bytes) -> bytes:
    """A linked executable, its CIEs as they were before :func:`as_arm64`."""
    return executable.replace(_SIGNAL_FRAME, _KEY_B)


def as_arm64(data: bytes) -> tuple[bytes, list[SignedPointer]]:
    """An object for arm64e as one for arm64, and which of its pointers are to be signed."""
    contents = FileContents(data, "object")
    changed = bytearray(data)
    pack_into("<I", changed, _OBJECT_SUBTYPE_OFFSET, _ARM64_ALL)
    symbols = _symbols(contents)
    found: list[SignedPointer] = []
    for section in contents.image.sections:
        for at in range(section.reloff, section.reloff + 8 * section.nreloc, 8):
            address, information = _RELOCATION.unpack_from(data, at)
            if information >> _TYPE_SHIFT != _AUTHENTICATED:
                continue
            information &= (1 << _TYPE_SHIFT) - 1
            _RELOCATION.pack_into(changed, at, address, information | _UNSIGNED << _TYPE_SHIFT)
            place = section.offset + address
            (value,) = unpack_from("<Q", data, place)
            # The addend is signed: 32 bits.
            pack_into("<q", changed, place, (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31))
            slot = section.address + address
            start, name = max(one for one in symbols if one[0] <= slot)
            found.append(
                SignedPointer(
                    symbol=name,
                    offset=slot - start,
                    key=value >> 49 & 3,
                    discriminator=value >> 32 & 0xFFFF,
                    has_address_diversity=bool(value >> 48 & 1),
                )
            )
    return bytes(changed).replace(_KEY_B, _SIGNAL_FRAME), found


def _symbols(contents: FileContents) -> list[tuple[int, str]]:
    table = parse_symbols(contents)
    rows = table.is_in_section.nonzero()[0].tolist()
    named = [(int(table.n_value[row]), table.name(row)) for row in rows]
    return [(value, name) for value, name in named if not name.startswith(("ltmp", "l_", "L"))]


def placed(
    pointers: list[SignedPointer], symbols: Mapping[str, int]
) -> Iterator[tuple[int, int, int]]:
    """(Svma, key, discriminator) of each, by the addresses of the symbols of an executable."""
    for pointer in pointers:
        slot = symbols[pointer.symbol] + pointer.offset
        discriminator = pointer.discriminator
        if pointer.has_address_diversity:
            discriminator = slot & (1 << 48) - 1 | discriminator << 48
        yield slot, pointer.key, discriminator
