"""One name from the tables of a Mach-O file as they lie in it: see ``image_symbols``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from types import ModuleType

from machtrace.formats.macho.contents import MachOFileContents, read_table
from machtrace.formats.macho.structs import SymtabCommand
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty, Symbol
from machtrace.symbols.macho.code_sections import Ranges, function_sections, holds_functions
from machtrace.symbols.names import MAX_LENGTH, Spelt, best_first, symbol_of

_MAX_SECTIONS = 255
"""Those that ``nlist.n_sect`` can count."""
_NLIST_SIZE, _NLIST_64_SIZE = 12, 16


def first_macho_symbol(
    _ranges: ModuleType, contents: MachOFileContents, offset: ImageOffset
) -> Symbol | None:
    """Return the function that holds ``offset``; None if the whole table has to be built.

    Raises:
        MachtraceError: a table is malformed or cut short.
    """
    image = contents.image
    base, is_64, symtab = image.header_svma, image.header.is_64, image.symtab
    bounds = _bounds(contents, offset, _ranges.function_holding)
    if bounds is None or symtab is None or not image.header.little_endian:
        return None
    counted = bytes([0, *map(holds_functions, image.sections[:_MAX_SECTIONS])])
    size = symtab.nsyms * (_NLIST_64_SIZE if is_64 else _NLIST_SIZE)
    table = read_table(contents, symtab.symoff, size, "the symbol table")
    strings = read_table(contents, symtab.stroff, symtab.strsize, "the string table")
    scanned = _ranges.symbols_at(
        table,
        strings,
        is_64,
        counted.ljust(_MAX_SECTIONS + 1, b"\0"),
        base,
        base + bounds[0],
        base + bounds[1],
        base + offset,
    )
    if scanned is None:
        return None
    start, end, rows = scanned
    names: list[Spelt] = [
        (_name(contents, symtab, table, row), True, Certainty.EXACT) for row in rows
    ]
    best = best_first(names)
    return symbol_of(best, ImageOffset(start - base), end - start) if best else None


def _bounds(
    contents: MachOFileContents,
    offset: ImageOffset,
    function_holding: Callable[[memoryview, int, bool, int], tuple[int, int] | None],
) -> tuple[int, int] | None:
    """Return the (start, end) of the function around ``offset`` by the function starts."""
    image = contents.image
    command, arch = image.function_starts, image.header.arch
    section = _holder(function_sections(image), offset)
    if section is None or command is None or arch is None or not command.size:
        return None
    starts = read_table(contents, command.offset, command.size, "the table of function starts")
    function = function_holding(starts, 0, arch.is_arm, offset)
    if function is None or function[0] < section[0]:
        return None
    return function[0], min(function[1], section[1])


def _holder(sections: Ranges, offset: int) -> tuple[int, int] | None:
    index = bisect_right(sections, (offset, 1 << 64)) - 1
    if index < 0 or offset >= sections[index][1]:
        return None
    return sections[index]


def _name(contents: MachOFileContents, symtab: SymtabCommand, table: memoryview, row: int) -> str:
    at = row * (_NLIST_64_SIZE if contents.image.header.is_64 else _NLIST_SIZE)
    n_strx = int.from_bytes(table[at : at + 4], "little")
    size = min(MAX_LENGTH, symtab.strsize - n_strx)
    if n_strx == 0 or size <= 0:
        return ""
    name = read_table(contents, symtab.stroff + n_strx, size, "the string table")
    return bytes(name).partition(b"\0")[0].decode("utf-8", "backslashreplace")
