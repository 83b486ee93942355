"""Object files (MH_OBJECT), as a linker sees them.

Relocations of object files, and the addresses needed to apply them.

Source: ``mach-o/reloc.h``: ``relocation_info``, ``scattered_relocation_info``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import NamedTuple, Protocol

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.load_commands import LC_DATA_IN_CODE
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.structs import LINKEDIT_DATA_COMMAND, N_EXT, N_SECT, N_STAB, N_TYPE
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import FileOffset

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
    """``r_length``: the place is ``1 << length`` bytes, unless the kind defines it otherwise."""
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
        """Return the Svma of the object's address ``old`` in the image."""
        ...

    def section_shift(self, number: int, /) -> int:
        """Return how far the image has section ``number`` above its address in the object."""
        ...

    def symbol(self, number: int, /) -> int:
        """The Svma of a symbol of the object's table; undefined ones are another object's."""
        ...

    def is_thumb(self, number: int, /) -> bool:
        """Return whether a symbol is a function of Thumb instructions."""
        ...

    def is_thumb_at(self, old: int, /) -> bool:
        """Return whether a function of Thumb instructions starts at this address in the object."""
        ...


Relocator = Callable[[bytearray, Sequence[Relocation], int, int, Places], None]
"""``relocate(data, relocations, old, new, places)``: change a section's bytes, which the object has
at address ``old`` and the image at ``new``, as its ``relocations`` want.

Raises ValueError where there is a kind that it does not know.
"""


def read_relocations(table: bytes | memoryview) -> tuple[Relocation, ...]:
    """Read the entries of a section in order: a pair's second follows its first."""
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


_RELOCATION_SIZE = 8
_DATA_IN_CODE = Struct("<IHH")


class ObjectSymbol(NamedTuple):
    """An ``nlist`` entry, with its name."""

    name: str
    n_type: int
    n_sect: int
    n_desc: int
    n_value: int

    @property
    def is_defined(self) -> bool:
        """Whether it is in a section of its object; symbols for debuggers are not."""
        return not self.n_type & N_STAB and self.n_type & N_TYPE == N_SECT

    @property
    def is_external(self) -> bool:
        """Whether other objects see it."""
        return not self.n_type & N_STAB and bool(self.n_type & N_EXT)


@dataclass(frozen=True)
class ObjectFile:
    """The contents of an object file."""

    contents: MachOFileContents

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """In the order that symbols and relocations count, from 1."""
        return self.contents.image.sections

    @cached_property
    def symbols(self) -> tuple[ObjectSymbol, ...]:
        """All of its table."""
        found = parse_symbols(self.contents)
        rows = found.rows.tolist()
        names = found.names()
        return tuple(ObjectSymbol(name, *row[1:]) for name, row in zip(names, rows, strict=True))

    @cached_property
    def indirect_symbols(self) -> tuple[int, ...]:
        """The symbol of each entry of sections with pointers and stubs."""
        return tuple(parse_indirect_symbols(self.contents).tolist())

    @cached_property
    def data_in_code(self) -> tuple[tuple[int, int, int], ...]:
        """(address in the object, bytes, kind) of each table among its code."""
        command = next(iter(self.contents.image.commands_of(LC_DATA_IN_CODE)), None)
        if command is None:
            return ()
        place = command.unpack(LINKEDIT_DATA_COMMAND, self.contents.source)
        table = self.contents.read_file(FileOffset(place.dataoff), place.datasize)
        return tuple(_DATA_IN_CODE.iter_unpack(table))

    def data_of(self, section: Section) -> bytes:
        """Return a section's bytes; none of one that is only zeros."""
        if section.is_zerofill:
            return b""
        return bytes(self.contents.read_file(section.offset, section.size))

    def relocations_of(self, section: Section) -> tuple[Relocation, ...]:
        """Return a section's relocations, in their order."""
        size = section.nreloc * _RELOCATION_SIZE
        return read_relocations(self.contents.read_file(section.reloff, size))
