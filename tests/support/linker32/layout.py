"""Which part of which object comes to lie where, and what each symbol's address is then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.structs import N_ARM_THUMB_DEF, S_ATTR_DEBUG
from machtrace.model.address import Svma
from tests.support.linker32.objects import ObjectFile, ObjectSymbol

HEADER_NAMES = ("__mh_execute_header", "___dso_handle")
"""Symbols that every program has: its Mach-O header."""
_WEAK_DEFINITION = 0x80
_FIRST = ("__TEXT", "__text")
_WRITABLE = frozenset({"__DATA", "__IMPORT"})
_RENAMED = {("__IMPORT", "__pointers"): ("__DATA", "__nl_symbol_ptr")}
"""Segments that ld64 gave up."""
_CONSUMED = frozenset({"__compact_unwind", "__eh_frame"})


class LinkError(ValueError):
    """The objects do not make a program."""


@dataclass(slots=True)
class Piece:
    """One object's part of a section."""

    unit: Unit
    section: Section
    offset: int = 0
    """From the start of the section that it is part of."""


@dataclass(slots=True)
class OutputSection:
    """A section of the image."""

    segment: str
    name: str
    flags: int
    pieces: list[Piece] = field(default_factory=list)
    align: int = 2
    """As a power of 2."""
    address: int = 0
    """Svma."""
    size: int = 0
    """In bytes."""
    data: bytes = b""
    """The contents, once known; empty if they are zeros."""
    indirect: tuple[str, ...] = ()
    """The symbol of each stub or pointer."""
    reserved1: int = 0
    """The index of the first of these in the indirect symbol table."""
    reserved2: int = 0
    """Bytes per stub."""

    @property
    def is_zerofill(self) -> bool:
        """Whether the file holds none of it."""
        return bool(self.pieces) and self.pieces[0].section.is_zerofill

    def place(self, address: int) -> int:
        """Lay it out from Svma ``address`` on, and return its end."""
        self.address = aligned(address, 1 << self.align)
        end = self.address
        for piece in self.pieces:
            start = aligned(end, 1 << piece.section.align)
            piece.offset = start - self.address
            end = start + piece.section.size
        self.size = max(self.size, end - self.address)
        return self.address + self.size


class Unit:
    """One object, with the ``Places`` of its relocations."""

    def __init__(self, file: ObjectFile, layout: Layout) -> None:
        self.file = file
        self._layout = layout
        self.placed: dict[int, tuple[OutputSection, Piece]] = {}
        """By number of the object's section, from 1."""

    def section_shift(self, number: int, /) -> int:
        """See :meth:`Places.section_shift`.

        Raises:
            LinkError: the image has no such section.
        """
        if number not in self.placed:
            msg = f"a relocation of {self.file.contents.source} wants section {number}"
            raise LinkError(msg)
        output, piece = self.placed[number]
        return output.address + piece.offset - piece.section.address

    def address(self, old: int, /) -> int:
        """See :meth:`Places.address`. An address between two sections is the second's.

        Raises:
            LinkError: the image has nothing of that address.
        """
        sections = self.file.sections
        held = [n for n in self.placed if Svma(old) in sections[n - 1]]
        held += [n for n in self.placed if old == sections[n - 1].end]
        if not held:
            msg = f"{self.file.contents.source} has no section at {old:#x}"
            raise LinkError(msg)
        return old + self.section_shift(held[0])

    def symbol(self, number: int, /) -> int:
        """See :meth:`Places.symbol`."""
        symbol = self.file.symbols[number]
        if self._is_own(symbol):
            return self._layout.address_of((self, symbol))
        return self._layout.address_named(symbol.name)

    def is_thumb_at(self, old: int, /) -> bool:
        """See :meth:`Places.is_thumb_at`."""
        return any(
            symbol.n_value == old and symbol.n_desc & N_ARM_THUMB_DEF
            for symbol in self.file.symbols
            if symbol.is_defined
        )

    def is_thumb(self, number: int, /) -> bool:
        """See :meth:`Places.is_thumb`."""
        symbol = self.file.symbols[number]
        if not self._is_own(symbol):
            found = self._layout.definition(symbol.name)
            if found is None:
                return False
            symbol = found[1]
        return bool(symbol.n_desc & N_ARM_THUMB_DEF)

    @staticmethod
    def _is_own(symbol: ObjectSymbol) -> bool:
        return symbol.is_defined and not symbol.is_external

    def symbols(self) -> Iterator[tuple[ObjectSymbol, OutputSection, int]]:
        """Yield each symbol of the object in the image: its section, and its Svma."""
        for symbol in self.file.symbols:
            place = self.placed.get(symbol.n_sect) if symbol.is_defined else None
            if place is None or not symbol.name or symbol.name.startswith("L"):
                continue
            if symbol.is_external and self._layout.definition(symbol.name) != (self, symbol):
                continue  # a weak one, and the image has another object's
            yield symbol, place[0], self._layout.address_of((self, symbol))


class Layout:
    """The sections of a program, and its symbols."""

    def __init__(self, files: Iterable[ObjectFile], header_address: int) -> None:
        """Gather what ``files`` hold.

        Raises:
            LinkError: a symbol is defined twice.
        """
        self.header_address = header_address
        """Svma."""
        self.units = [Unit(file, self) for file in files]
        self.sections: list[OutputSection] = []
        """In the order that they are to lie."""
        self.made: dict[str, int] = {}
        """Svmas of what the linker makes itself, by name."""
        self._definitions: dict[str, tuple[Unit, ObjectSymbol]] = {}
        for unit in self.units:
            self._gather(unit)
            self._define(unit)
        self.sections.sort(key=_order)

    def _gather(self, unit: Unit) -> None:
        for number, section in enumerate(unit.file.sections, 1):
            if section.flags & S_ATTR_DEBUG or section.name in _CONSUMED or not section.size:
                continue
            name = (section.segment_name, section.name)
            segment, name_in_image = _RENAMED.get(name, name)
            for output in self.sections:
                if (output.segment, output.name) == (segment, name_in_image):
                    break
            else:
                output = OutputSection(segment, name_in_image, section.flags)
                self.sections.append(output)
            output.align = max(output.align, section.align)
            piece = Piece(unit, section)
            output.pieces.append(piece)
            unit.placed[number] = output, piece

    def _define(self, unit: Unit) -> None:
        for symbol in unit.file.symbols:
            if not symbol.is_external or not symbol.is_defined:
                continue
            other = self._definitions.get(symbol.name)
            if other is None or other[1].n_desc & _WEAK_DEFINITION:
                self._definitions[symbol.name] = (unit, symbol)
            elif not symbol.n_desc & _WEAK_DEFINITION:
                msg = f"{symbol.name} is defined twice"
                raise LinkError(msg)

    @property
    def undefined(self) -> list[str]:
        """Names that objects use, and none defines; in order."""
        used = {
            symbol.name
            for unit in self.units
            for symbol in unit.file.symbols
            if symbol.is_external and not symbol.is_defined
        }
        return sorted(used - self._definitions.keys() - set(HEADER_NAMES))

    def add(self, sections: Iterable[OutputSection]) -> None:
        """Add what the linker makes itself."""
        self.sections += sections
        self.sections.sort(key=_order)

    def definition(self, name: str) -> tuple[Unit, ObjectSymbol] | None:
        """Return the object and symbol that define a name, or None."""
        return self._definitions.get(name)

    def address_named(self, name: str) -> int:
        """Return the Svma of a symbol that more than one object sees.

        Raises:
            LinkError: nothing defines it.
        """
        found = self.definition(name)
        if found is not None:
            return self.address_of(found)
        if name in HEADER_NAMES:
            return self.header_address
        if name not in self.made:
            msg = f"nothing defines {name}"
            raise LinkError(msg)
        return self.made[name]

    def address_of(self, definition: tuple[Unit, ObjectSymbol]) -> int:
        """Return the Svma of what :meth:`definition` returns."""
        unit, symbol = definition
        return symbol.n_value + unit.section_shift(symbol.n_sect)

    def in_segment(self, segment: str) -> Sequence[OutputSection]:
        """Return a segment's sections, in order."""
        return [section for section in self.sections if section.segment == segment]


def aligned(value: int, to: int) -> int:
    """``value``, or the next multiple of ``to`` above it."""
    return -(-value // to) * to


def _order(section: OutputSection) -> tuple[bool, bool, bool]:
    """Code, other constants, data, zeros."""
    is_code = (section.segment, section.name) == _FIRST
    return section.is_zerofill, section.segment in _WRITABLE, not is_code
