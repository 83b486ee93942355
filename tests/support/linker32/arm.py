"""The relocation kinds of 32-bit arm (``mach-o/arm/reloc.h``)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tests.support.linker32.objects import Places, Relocation


class ArmKind(IntEnum):
    """``ARM_RELOC_*``, ``ARM_THUMB_RELOC_BR22``."""

    VANILLA = 0
    PAIR = 1
    SECTDIFF = 2
    LOCAL_SECTDIFF = 3
    BR24 = 5
    THUMB_BR22 = 6
    HALF = 8
    HALF_SECTDIFF = 9


_PAIRED = frozenset({ArmKind.SECTDIFF, ArmKind.LOCAL_SECTDIFF, ArmKind.HALF, ArmKind.HALF_SECTDIFF})
_THUMB_AHEAD = 4
_ARM_BLX = 0xFA000000
_ALWAYS = 0xE
_THUMB_BL, _THUMB_BLX = 0xD000, 0xC000


def relocate_arm(
    data: bytearray, relocations: Sequence[Relocation], old: int, new: int, places: Places
) -> None:
    """See :data:`~tests.support.linker32.macho_relocations.Relocator`.

    The bytes hold the addend, as for i386. A call to a function of the other instruction set
    becomes BLX; the address of a Thumb function has its lowest bit set.
    """
    entries = iter(relocations)
    for relocation in entries:
        pair = next(entries) if relocation.kind in _PAIRED else None
        shift = _shift(relocation, places)
        if pair is not None and relocation.kind != ArmKind.HALF:
            shift -= places.address(pair.value) - pair.value
        at = relocation.offset
        match relocation.kind:
            case ArmKind.VANILLA | ArmKind.SECTDIFF | ArmKind.LOCAL_SECTDIFF:
                held = int.from_bytes(data[at : at + 4], "little")
                value = held + shift | _thumb_bit(relocation, places)
                if relocation.kind == ArmKind.VANILLA and not relocation.is_external:
                    value |= places.is_thumb_at(held)  # assemblers do not always set it
                data[at : at + 4] = (value % (1 << 32)).to_bytes(4, "little")
            case ArmKind.BR24:
                _arm_branch(data, relocation, shift - (new - old), places)
            case ArmKind.THUMB_BR22:
                _thumb_branch(data, relocation, shift - (new - old), new + at, places)
            case ArmKind.HALF | ArmKind.HALF_SECTDIFF if pair is not None:
                _half(data, relocation, pair.offset, shift | _thumb_bit(relocation, places))
            case kind:
                raise ValueError(f"arm relocation of kind {kind}")


def _shift(relocation: Relocation, places: Places) -> int:
    """Return the slide of the object's address at this place, or 0 for a symbol."""
    if relocation.is_scattered:
        return places.address(relocation.value) - relocation.value
    if relocation.is_external:
        return places.symbol(relocation.number)
    return places.section_shift(relocation.number)


def _thumb_bit(relocation: Relocation, places: Places) -> int:
    return int(relocation.is_external and places.is_thumb(relocation.number))


def _arm_branch(data: bytearray, relocation: Relocation, shift: int, places: Places) -> None:
    at = relocation.offset
    word = int.from_bytes(data[at : at + 4], "little")
    distance = (((word & 0xFFFFFF) << 2) ^ 0x2000000) - 0x2000000 + shift
    if _thumb_bit(relocation, places):
        if word >> 28 != _ALWAYS or not word & 1 << 24:
            raise ValueError("an ARM jump to a Thumb function")
        word = _ARM_BLX | (distance >> 1 & 1) << 24
    word = word & 0xFF000000 | distance >> 2 & 0xFFFFFF
    data[at : at + 4] = word.to_bytes(4, "little")


def _thumb_branch(
    data: bytearray, relocation: Relocation, shift: int, address: int, places: Places
) -> None:
    at = relocation.offset
    first = int.from_bytes(data[at : at + 2], "little")
    second = int.from_bytes(data[at + 2 : at + 4], "little")
    sign = first >> 10 & 1
    high, low = ~(second >> 13 ^ sign) & 1, ~(second >> 11 ^ sign) & 1
    distance = high << 23 | low << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1
    distance += shift - (sign << 24)
    kind = second & 0xD000
    if relocation.is_external and kind in (_THUMB_BL, _THUMB_BLX):
        kind = _THUMB_BL if places.is_thumb(relocation.number) else _THUMB_BLX
    elif relocation.is_external and not places.is_thumb(relocation.number):
        raise ValueError("a Thumb jump to an ARM function")
    if kind == _THUMB_BLX:  # from a multiple of four
        distance += (address + _THUMB_AHEAD) % 4
        distance &= -4
    sign = int(distance < 0)
    high, low = ~(distance >> 23 ^ sign) & 1, ~(distance >> 22 ^ sign) & 1
    first = 0xF000 | sign << 10 | distance >> 12 & 0x3FF
    second = kind | high << 13 | low << 11 | distance >> 1 & 0x7FF
    data[at : at + 4] = first.to_bytes(2, "little") + second.to_bytes(2, "little")


def _half(data: bytearray, relocation: Relocation, other: int, shift: int) -> None:
    """MOVW or MOVT; ``other`` is what its partner holds."""
    at, is_thumb, is_high = relocation.offset, relocation.length & 2, relocation.length & 1
    if is_thumb:
        first = int.from_bytes(data[at : at + 2], "little")
        second = int.from_bytes(data[at + 2 : at + 4], "little")
        own = (first & 15) << 12 | (first >> 10 & 1) << 11 | second >> 4 & 0x700 | second & 0xFF
    else:
        word = int.from_bytes(data[at : at + 4], "little")
        own = word >> 4 & 0xF000 | word & 0xFFF
    value = (own << 16 | other if is_high else other << 16 | own) + shift
    own = (value >> 16 if is_high else value) & 0xFFFF
    if is_thumb:
        first = first & 0xFBF0 | own >> 12 | (own >> 11 & 1) << 10
        second = second & 0x8F00 | (own & 0x700) << 4 | own & 0xFF
        data[at : at + 4] = first.to_bytes(2, "little") + second.to_bytes(2, "little")
    else:
        word = word & 0xFFF0F000 | (own & 0xF000) << 4 | own & 0xFFF
        data[at : at + 4] = word.to_bytes(4, "little")
