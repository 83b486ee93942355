"""Stubs, helpers and pointers for what a program calls and does not have, bound at the first call.

Only i386's are made: what is linked for ARM here needs nothing from outside.
"""

from __future__ import annotations

from struct import pack

from machtrace.formats.macho.segments import S_LAZY_SYMBOL_POINTERS, S_SYMBOL_STUBS
from machtrace.formats.macho.structs import S_ATTR_PURE_INSTRUCTIONS, S_ATTR_SOME_INSTRUCTIONS
from tests.support.linker32 import i386_stubs
from tests.support.linker32.layout import Layout, OutputSection

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
        self._stubs.size = self._stubs.reserved2 = i386_stubs.STUB_SIZE
        self._stubs.size *= count
        self._helpers = OutputSection("__TEXT", "__stub_helper", _CODE)
        self._helpers.size = i386_stubs.HEADER_SIZE + i386_stubs.HELPER_SIZE * count
        self._binder = OutputSection("__DATA", "__got", _NON_LAZY_POINTERS, size=_WORD)
        self._pointers = OutputSection("__DATA", "__la_symbol_ptr", S_LAZY_SYMBOL_POINTERS)
        self._pointers.size = _WORD * count
        self._cache = OutputSection("__DATA", "__dyld", 0, size=_WORD)
        self._stubs.indirect = self._pointers.indirect = self._names
        self._binder.indirect = (BINDER,)
        sections = (self._stubs, self._helpers, self._binder, self._pointers, self._cache)
        layout.add(sections if count else ())

    def name(self) -> None:
        """Say where the stubs are, which have been placed."""
        for number, name in enumerate(self._names):
            self._layout.made[name] = self._stubs.address + i386_stubs.STUB_SIZE * number

    def fill(self) -> None:
        """Make their contents; all sections have been placed."""
        start = self._helpers.address
        self._helpers.data = i386_stubs.write_helper_header(self._cache.address, self._binder.address)
        for number in range(len(self._names)):
            pointer = self._pointers.address + _WORD * number
            helper = start + i386_stubs.HEADER_SIZE + i386_stubs.HELPER_SIZE * number
            self._stubs.data += i386_stubs.write_stub(pointer)
            self._helpers.data += i386_stubs.write_helper(helper, start, number)
            self._pointers.data += pack("<I", helper)
        if self._layout.definition(BINDER) is not None:
            self._binder.data = pack("<I", self._layout.address_named(BINDER))
