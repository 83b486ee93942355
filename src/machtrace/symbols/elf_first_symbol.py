"""One name from the tables of an ELF file as they lie in it: see ``image_symbols``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from machtrace.formats.elf.contents import (
    SYMBOL_SIZE,
    ElfFileContents,
    read_symbol_name,
    read_symbol_section,
    without_version,
)
from machtrace.formats.elf.structs import SHT_DYNSYM, SHT_SYMTAB
from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.model.address import LAST_OFFSET, ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.model.symbol import Certainty, Symbol, unnamed
from machtrace.symbols.names import best_first, symbol_of


@dataclass(frozen=True, slots=True)
class _Section:
    """The section with the code, as offsets from the header."""

    start: int
    end: int


class _ElfTable:
    """A symbol table, and the functions that it has around an offset; all are offsets."""

    def __init__(
        self, _ranges: ModuleType, file: ElfFileContents, kind: int, section: _Section, offset: int
    ) -> None:
        self._ranges = _ranges
        self._base = base = file.image.header_svma
        self._is_64 = file.image.layout.is_64
        self._row_size = SYMBOL_SIZE[self._is_64]
        found = read_symbol_section(file, kind)
        self._table, self._strings = (memoryview(b""), memoryview(b"")) if found is None else found
        self._bounds = base + section.start, base + section.end
        around = _ranges.elf_symbols_around(
            self._table, self._strings, self._is_64, *self._bounds, base + offset
        )
        self.last, self.last_sized, self.next, self.next_sized, self.reach = (
            address - base for address in around
        )

    def __len__(self) -> int:
        return len(self._table) // self._row_size

    def rows(self, start: int) -> list[int]:
        """Return the rows of the functions at an offset, those to prefer first."""
        rows: list[int] = self._ranges.elf_symbols_starting(
            self._table, self._strings, self._is_64, *self._bounds, self._base + start
        )
        return sorted(rows, key=self._is_local)

    def size(self, row: int) -> int:
        return self._number(row, 16, 8) if self._is_64 else self._number(row, 8, 4)

    def name(self, row: int) -> str:
        return without_version(read_symbol_name(self._strings, self._number(row, 0, 4)))

    def _is_local(self, row: int) -> bool:
        return self._number(row, 4 if self._is_64 else 12, 1) >> 4 == 0

    def _number(self, row: int, at: int, size: int) -> int:
        at += row * self._row_size
        return int.from_bytes(self._table[at : at + size], "little")


def first_elf_symbol(
    _ranges: ModuleType,
    contents: ElfFileContents,
    offset: ImageOffset,
    twins: Callable[[], Sequence[ObjectFile]],
) -> Symbol | None:
    """Return the function with a size that holds ``offset``, else the nameless one by its FDE."""
    image = contents.image
    section = _code_section(contents, offset)
    if section is None or image.arch is Arch.ARM or not image.layout.little_endian:
        return None
    # Exported names are sure only where call-frame descriptions bound them.
    function = _described_function(contents, offset)
    if function is None:
        return None
    whole = _ElfTable(_ranges, contents, SHT_SYMTAB, section, offset)
    tables = [whole, _ElfTable(_ranges, contents, SHT_DYNSYM, section, offset)]
    symbol = _sized_function(tables, section, offset) if len(whole) else None
    if symbol is not None:
        return symbol
    tables += [  # which may name what was stripped
        _ElfTable(_ranges, twin, SHT_SYMTAB, section, offset)
        for twin in twins()
        if twin.format is ImageFormat.ELF
    ]
    start, following = function
    if any(offset < table.reach or start <= table.last for table in tables):
        return _sized_function(tables, section, offset)
    if start < max(section.start, *(table.reach for table in tables)):
        return None
    described = _described_end(contents, offset)
    end = min(section.end, following, described, *(table.next for table in tables))
    return unnamed(ImageOffset(start), end - start) if offset < end else None


def _sized_function(
    tables: Sequence[_ElfTable], section: _Section, offset: ImageOffset
) -> Symbol | None:
    """Return the innermost function with a size, if ``offset`` is in it.

    Symbols without a size are labels in it, unless they are at its start: those are not compared.
    """
    start = max(table.last_sized for table in tables)
    rows = [(table, row) for table in tables for row in table.rows(start)]
    if not rows or not all(table.size(row) for table, row in rows):
        return None
    table, row = rows[0]
    end = min(start + table.size(row), section.end, *(table.next_sized for table in tables))
    if offset >= end:
        return None
    names = best_first((table.name(row), False, Certainty.EXACT) for table, row in rows)
    return symbol_of(names, ImageOffset(start), end - start)


def _code_section(contents: ElfFileContents, offset: ImageOffset) -> _Section | None:
    """Return the section around ``offset``; None of what has other names than symbols."""
    image = contents.image
    address = image.header_svma + offset
    if any(s.name.endswith((".gopclntab", ".gnu_debugdata")) for s in image.sections):
        return None
    sections = [
        section
        for section in image.sections
        if section.is_executable and section.size and section.address <= address
    ]
    section = max(sections, key=lambda section: section.address, default=None)
    if section is None or address >= section.end or section.address < image.header_svma:
        return None
    if section.name.startswith((".plt", ".iplt")):
        return None
    return _Section(section.address - image.header_svma, section.end - image.header_svma)


def _described_function(contents: ElfFileContents, offset: ImageOffset) -> tuple[int, int] | None:
    """Return the start of the code around ``offset`` by call-frame descriptions, and the next."""
    from machtrace.formats.elf.eh_frame_hdr import read_eh_frame_header, read_search_table

    base = contents.image.header_svma
    header = read_eh_frame_header(contents)
    table = None if header is None else read_search_table(contents, header)
    bounds = None if table is None else table.bounds(base + offset)
    if bounds is None:
        return None
    start, following = bounds
    return start - base, LAST_OFFSET if following is None else following - base


def _described_end(contents: ElfFileContents, offset: ImageOffset) -> int:
    """Return where the last description at or before ``offset`` ends; 0 if that is not clear."""
    from machtrace.formats.dwarf.cfi_records import read_frame_description
    from machtrace.formats.elf.eh_frame_hdr import (
        eh_frame_section,
        read_eh_frame_header,
        read_search_table,
    )

    base = contents.image.header_svma
    header = read_eh_frame_header(contents)
    section = eh_frame_section(contents, header)
    if header is None or section is None:
        return 0
    table = read_search_table(contents, header, section.address)
    place = None if table is None else table.find(base + offset)
    return 0 if place is None else read_frame_description(section, place).end - base
