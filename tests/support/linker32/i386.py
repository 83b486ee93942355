"""The relocation kinds of i386 (``mach-o/reloc.h``: ``enum reloc_type_generic``)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tests.support.linker32.macho_relocations import Places, Relocation


class GenericKind(IntEnum):
    """``GENERIC_RELOC_*``."""

    VANILLA = 0
    PAIR = 1
    SECTDIFF = 2
    LOCAL_SECTDIFF = 4


def relocate_i386(
    data: bytearray, relocations: Sequence[Relocation], old: int, new: int, places: Places
) -> None:
    """See :data:`~tests.support.linker32.macho_relocations.Relocator`.

    What the bytes hold is the addend: an address in the object, or the distance to one from
    behind the place.
    """
    entries = iter(relocations)
    for relocation in entries:
        size = 1 << relocation.length
        place = slice(relocation.offset, relocation.offset + size)
        match relocation.kind:
            case GenericKind.VANILLA:
                moved = _target_shift(relocation, places)
            case GenericKind.SECTDIFF | GenericKind.LOCAL_SECTDIFF:
                subtracted = next(entries)
                moved = _shift_of(relocation.value, places) - _shift_of(subtracted.value, places)
            case kind:
                raise ValueError(f"i386 relocation of kind {kind}")
        if relocation.is_pc_relative:
            # The bytes of an undefined symbol's call hold the way to address 0 of the object.
            moved -= new - old
        value = int.from_bytes(data[place], "little") + moved
        data[place] = (value % (1 << 8 * size)).to_bytes(size, "little")


def _target_shift(relocation: Relocation, places: Places) -> int:
    """What to add to a place that holds an address in the object, or 0 for a symbol."""
    if relocation.is_scattered:
        return _shift_of(relocation.value, places)
    if relocation.is_external:
        return places.symbol(relocation.number)
    return places.section_shift(relocation.number)


def _shift_of(address: int, places: Places) -> int:
    return places.address(address) - address
