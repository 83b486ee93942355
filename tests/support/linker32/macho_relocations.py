"""Relocations of object files, and what the code that applies them is told.

Source: ``mach-o/reloc.h``: ``relocation_info``, ``scattered_relocation_info``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

_ENTRY = Struct("<II")
_SCATTERED = 0x80000000


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place whose bytes depend on where something comes to lie."""

    offset: int
    """Bytes from the section's start; of a scattered pair's second entry whatever it holds."""
    kind: int
    """``r_type``."""
    length: int
    """``r_length``: the place is ``1 << length`` bytes, where the kind does not say otherwise."""
    is_pc_relative: bool
    is_external: bool
    """Whether ``number`` is a symbol; else it is a section, from 1. Never where scattered."""
    number: int
    is_scattered: bool
    value: int
    """Where scattered: the address, in the object, that is meant. Else 0."""


class Places(Protocol):
    """Where the parts of one object lie in the image."""

    def address(self, old: int, /) -> int:
        """Where what the object has at address ``old`` lies in the image, a Svma."""
        ...

    def section_shift(self, number: int, /) -> int:
        """How far the image has a section, counted from 1, above its address in the object."""
        ...

    def symbol(self, number: int, /) -> int:
        """The Svma of a symbol of the object's table; undefined ones are another object's."""
        ...

    def is_thumb(self, number: int, /) -> bool:
        """Whether a symbol is a function of Thumb instructions."""
        ...

    def is_thumb_at(self, old: int, /) -> bool:
        """Whether a function of Thumb instructions starts at this address in the object."""
        ...


Relocator = Callable[[bytearray, Sequence[Relocation], int, int, Places], None]
"""``relocate(data, relocations, old, new, places)``: change a section's bytes, which the object has
at address ``old`` and the image at ``new``, as its ``relocations`` want.

Raises ValueError where there is a kind that it does not know.
"""


def read_relocations(table: bytes | memoryview) -> tuple[Relocation, ...]:
    """The entries of a section, in their order: a pair's second follows its first."""
    return tuple(_read(first, second) for first, second in _ENTRY.iter_unpack(table))


def _read(first: int, second: int) -> Relocation:
    if first & _SCATTERED:
        return Relocation(
            offset=first & 0xFFFFFF,
            kind=first >> 24 & 0xF,
            length=first >> 28 & 3,
            is_pc_relative=bool(first >> 30 & 1),
            is_external=False,
            number=0,
            is_scattered=True,
            value=second,
        )
    return Relocation(
        offset=first,
        kind=second >> 28,
        length=second >> 25 & 3,
        is_pc_relative=bool(second >> 24 & 1),
        is_external=bool(second >> 27 & 1),
        number=second & 0xFFFFFF,
        is_scattered=False,
        value=0,
    )
