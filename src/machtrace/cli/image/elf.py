"""The description of an ELF file for ``machtrace image``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from machtrace.cli.image.description import (
    AddressDescription,
    DescribedImage,
    Facts,
    ImageDescription,
    NamedAddress,
    SectionDescription,
    SegmentDescription,
    SymbolDescription,
)
from machtrace.errors import FormatError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.dynamic import is_pie
from machtrace.formats.elf.headers import Section, Segment
from machtrace.formats.elf.structs import PF_W, PF_X, PT_LOAD, SHF_ALLOC
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import ImageOffset, Svma
from machtrace.symbols.elf import elf_symbol_table

_PF_R = 4
_SEGMENT_TYPES = {
    0: "NULL",
    1: "LOAD",
    2: "DYNAMIC",
    3: "INTERP",
    4: "NOTE",
    5: "SHLIB",
    6: "PHDR",
    7: "TLS",
    0x6474E550: "GNU_EH_FRAME",
    0x6474E551: "GNU_STACK",
    0x6474E552: "GNU_RELRO",
    0x6474E553: "GNU_PROPERTY",
    0x6474E554: "GNU_SFRAME",
}
"""``PT_`` names (gABI, "Program Header"; LSB, "Segment Types")."""
_SECTION_TYPES = {
    1: "PROGBITS",
    2: "SYMTAB",
    3: "STRTAB",
    4: "RELA",
    5: "HASH",
    6: "DYNAMIC",
    7: "NOTE",
    8: "NOBITS",
    9: "REL",
    11: "DYNSYM",
    14: "INIT_ARRAY",
    15: "FINI_ARRAY",
    16: "PREINIT_ARRAY",
    17: "GROUP",
    18: "SYMTAB_SHNDX",
    19: "RELR",
    0x6FFFFFF6: "GNU_HASH",
    0x6FFFFFFD: "VERDEF",
    0x6FFFFFFE: "VERNEED",
    0x6FFFFFFF: "VERSYM",
}
"""``SHT_`` names (gABI, "Sections"; LSB, "Section Types")."""
_SYMBOL_TYPES = {
    0: "no type",
    1: "object",
    2: "function",
    3: "section",
    4: "file",
    5: "common",
    6: "tls",
    10: "ifunc",
}
_BINDINGS = {0: "local", 1: "global", 2: "weak", 10: "unique"}
_SPECIAL_SECTIONS = {0: "undefined", 0xFFF1: "absolute", 0xFFF2: "common"}


class DescribedElf(DescribedImage):
    """An ELF file."""

    def __init__(self, data: memoryview, source: str) -> None:
        """Read the headers.

        Raises:
            ElfError: they are malformed.
        """
        super().__init__()
        self._contents = ElfFileContents(data, source)
        self._image = self._contents.image
        self._size = len(data)

    def describe(self) -> ImageDescription:
        """See :meth:`DescribedImage.describe`."""
        image = self._image
        return ImageDescription(
            format="elf",
            arch=image.arch.value,
            offset=0,
            size=self._size,
            type="pie" if is_pie(self._contents, image) else image.type.name.lower(),
            identifier=None if image.build_id is None else str(image.build_id),
            facts=self._facts(),
            segments=tuple(self._segment(segment) for segment in image.segments),
            commands=(),
        )

    def _facts(self) -> Facts:
        image = self._image
        facts: Facts = {
            "bits": 64 if image.layout.is_64 else 32,
            "byte_order": "little" if image.layout.little_endian else "big",
        }
        if image.soname is not None:
            facts["soname"] = image.soname
        if image.header.entry:
            facts["entry"] = image.header.entry
        for name, parse in (("", parse_symbols), ("dynamic_", parse_dynamic_symbols)):
            try:
                symbols = parse(self._contents)
            except FormatError as error:
                self.problems.append(error)
                continue
            facts[f"{name}symbols"] = len(symbols)
            facts[f"{name}code_symbols"] = int(np.count_nonzero(symbols.is_function))
        return facts

    def _segment(self, segment: Segment) -> SegmentDescription:
        return SegmentDescription(
            name=_SEGMENT_TYPES.get(segment.type, hex(segment.type)),
            address=segment.address,
            memory_size=segment.memory_size,
            file_offset=segment.offset,
            file_size=segment.file_size,
            protection=_protection(segment),
            maximum_protection=None,
            sections=tuple(
                _section(section)
                for section in self._image.sections
                if segment.type == PT_LOAD
                and section.flags & SHF_ALLOC
                and segment.address <= section.address < segment.end
            ),
        )

    def symbols(self) -> Iterator[SymbolDescription]:
        """See :meth:`DescribedImage.symbols`: ``.symtab``, or ``.dynsym`` in its absence."""
        symbols = self._listed()
        names = symbols.names()
        info = symbols.rows["st_info"].tolist()
        columns = (info, symbols.section_indices.tolist(), symbols.rows["st_value"].tolist())
        for number, (kind, section, value) in enumerate(zip(*columns, strict=True)):
            yield SymbolDescription(
                number,
                value,
                _SYMBOL_TYPES.get(kind & 0xF, str(kind & 0xF)),
                _BINDINGS.get(kind >> 4, str(kind >> 4)),
                self._place(section),
                names[number],
            )

    def _listed(self) -> SymbolRows:
        symbols = parse_symbols(self._contents)
        return symbols if len(symbols) else parse_dynamic_symbols(self._contents)

    def _place(self, index: int) -> str:
        if index in _SPECIAL_SECTIONS:
            return _SPECIAL_SECTIONS[index]
        sections = self._image.sections
        return sections[index].name if index < len(sections) else ""

    def look_up(self, address: Svma, /) -> AddressDescription | None:
        """See :meth:`DescribedImage.look_up`."""
        image = self._image
        for segment in image.load_segments:
            if segment.address <= address < segment.end:
                break
        else:
            return None
        section = next(
            (s for s in image.sections if s.flags & SHF_ALLOC and s.address <= address < s.end),
            None,
        )
        return AddressDescription(
            address=address,
            segment="LOAD",
            protection=_protection(segment),
            section=None if section is None else section.name,
            section_offset=None if section is None else address - section.address,
            file_offset=image.file_offset_of(address),
            symbol=self._symbol(address),
            function_start=None,
            function_end=None,
        )

    def _symbol(self, address: Svma) -> NamedAddress | None:
        base = self._image.header_svma
        symbol = elf_symbol_table(self._contents).find(ImageOffset(address - base))
        if symbol is None or not symbol.is_named:
            return None
        start = base + symbol.offset
        symbols = self._listed()
        same = np.flatnonzero(symbols.is_function & (symbols.addresses == np.uint64(start)))
        return NamedAddress.of(symbol, Svma(start), address, symbols.names(same.tolist()))


def _section(section: Section) -> SectionDescription:
    return SectionDescription(
        name=section.name,
        address=section.address,
        size=section.size,
        file_offset=section.offset,
        kind=_SECTION_TYPES.get(section.type, hex(section.type)),
        is_code=section.is_executable,
    )


def _protection(segment: Segment) -> str:
    letters = ((_PF_R, "r"), (PF_W, "w"), (PF_X, "x"))
    return "".join(letter if segment.flags & bit else "-" for bit, letter in letters)
