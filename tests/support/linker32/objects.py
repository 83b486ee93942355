"""Object files (MH_OBJECT), as a linker sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import NamedTuple

from machtrace.formats.macho.command_numbers import LC_DATA_IN_CODE
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.nlist import N_EXT, N_SECT, N_STAB, N_TYPE
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.structs import LINKEDIT_DATA_COMMAND
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import FileOffset
from tests.support.linker32.macho_relocations import Relocation, read_relocations

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
    """What an object file holds."""

    contents: FileContents

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
        """Of sections with pointers and stubs: which symbol each entry is for."""
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
        """A section's bytes; none of one that is only zeros."""
        if section.is_zerofill:
            return b""
        return bytes(self.contents.read_file(section.offset, section.size))

    def relocations_of(self, section: Section) -> tuple[Relocation, ...]:
        """A section's relocations, in their order."""
        size = section.nreloc * _RELOCATION_SIZE
        return read_relocations(self.contents.read_file(section.reloff, size))
