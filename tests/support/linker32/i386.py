"""The relocation kinds of i386 (``mach-o/reloc.h``: ``enum reloc_type_generic``).

The stubs of i386, as ld64 writes them (its ``stub_x86.hpp``).

A stub jumps through a lazy pointer. That leads at first to a helper, which pushes the number of
what is to be bound and goes to the section's start; there a place for dyld's notes is pushed, and
dyld called.

Stubs, helpers and pointers for what a program calls and does not have, bound at the first call.

Only i386's are made: what is linked for ARM here needs nothing from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import pack

from machtrace.formats.macho.segments import S_LAZY_SYMBOL_POINTERS, S_SYMBOL_STUBS
from machtrace.formats.macho.structs import S_ATTR_PURE_INSTRUCTIONS, S_ATTR_SOME_INSTRUCTIONS
from tests.support.linker32.layout import Layout, OutputSection
from tests.support.linker32.objects import Places, Relocation


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
    """Return the slide of the object's address at this place, or 0 for a symbol."""
    if relocation.is_scattered:
        return _shift_of(relocation.value, places)
    if relocation.is_external:
        return places.symbol(relocation.number)
    return places.section_shift(relocation.number)


def _shift_of(address: int, places: Places) -> int:
    return places.address(address) - address


STUB_SIZE = 6
HELPER_SIZE = 10
HEADER_SIZE = 12
"""Bytes of the code that all helpers jump to, at the start of their section."""
_JUMP_THROUGH = b"\xff\x25"
_PUSH = b"\x68"
_JUMP = b"\xe9"
_NOP = b"\x90"


def write_stub(pointer: int) -> bytes:
    """Return the stub of the lazy pointer at Svma ``pointer``."""
    return _JUMP_THROUGH + pack("<I", pointer)


def write_helper_header(cache: int, binder: int) -> bytes:
    """Return the helpers' header: dyld's notes at ``cache``, ``dyld_stub_binder`` at ``binder``."""
    return _PUSH + pack("<I", cache) + _JUMP_THROUGH + pack("<I", binder) + _NOP


def write_helper(address: int, start: int, number: int) -> bytes:
    """At Svma ``address``, of symbol ``number``; the section starts at Svma ``start``."""
    distance = start - (address + HELPER_SIZE)
    return _PUSH + pack("<I", number) + _JUMP + pack("<i", distance)


BINDER = "dyld_stub_binder"
_CODE = S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS
_NON_LAZY_POINTERS = 0x6
_WORD = 4


class Stubs:
    """The sections with stubs of one program, and what they need."""

    def __init__(self, layout: Layout) -> None:
        """Make room in ``layout`` for stubs of all that it leaves undefined."""
        self._layout = layout
        self._names = tuple(name for name in layout.undefined if name != BINDER)
        count = len(self._names)
        self._stubs = OutputSection("__TEXT", "__symbol_stub", S_SYMBOL_STUBS | _CODE)
        self._stubs.size = self._stubs.reserved2 = STUB_SIZE
        self._stubs.size *= count
        self._helpers = OutputSection("__TEXT", "__stub_helper", _CODE)
        self._helpers.size = HEADER_SIZE + HELPER_SIZE * count
        self._binder = OutputSection("__DATA", "__got", _NON_LAZY_POINTERS, size=_WORD)
        self._pointers = OutputSection("__DATA", "__la_symbol_ptr", S_LAZY_SYMBOL_POINTERS)
        self._pointers.size = _WORD * count
        self._cache = OutputSection("__DATA", "__dyld", 0, size=_WORD)
        self._stubs.indirect = self._pointers.indirect = self._names
        self._binder.indirect = (BINDER,)
        sections = (self._stubs, self._helpers, self._binder, self._pointers, self._cache)
        layout.add(sections if count else ())

    def name(self) -> None:
        """Record the addresses of the stubs, which have been placed."""
        for number, name in enumerate(self._names):
            self._layout.made[name] = self._stubs.address + STUB_SIZE * number

    def fill(self) -> None:
        """Make their contents; all sections have been placed."""
        start = self._helpers.address
        self._helpers.data = write_helper_header(self._cache.address, self._binder.address)
        for number in range(len(self._names)):
            pointer = self._pointers.address + _WORD * number
            helper = start + HEADER_SIZE + HELPER_SIZE * number
            self._stubs.data += write_stub(pointer)
            self._helpers.data += write_helper(helper, start, number)
            self._pointers.data += pack("<I", helper)
        if self._layout.definition(BINDER) is not None:
            self._binder.data = pack("<I", self._layout.address_named(BINDER))
