"""Instruction sets, data and function bounds of a 32-bit arm image, from its tables.

Sources: LC_FUNCTION_STARTS and symbols (``N_ARM_THUMB_DEF``) mark the Thumb functions of a Mach-O.
*ELF for the Arm Architecture*, section 5.5.5, has the symbols ``$a``, ``$t`` and ``$d``, which mark
where ARM code, Thumb code and data begin.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.exidx import ExceptionIndex
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.symtab import parse_symbols as parse_macho_symbols
from machtrace.model.address import Svma
from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules, InstructionSets
from machtrace.unwinder.arch.arm32.function_code import Range
from machtrace.unwinder.arch.arm32.registers import ARM
from machtrace.unwinder.functions.elf_bounds import ElfFunctionBounds

_IS_DATA = {"$a": False, "$t": False, "$d": True}
"""Whether data begin, by the name of the mapping symbol."""


def instruction_sets_of_macho(contents: MachOContents) -> InstructionSets:
    """Return the functions' instruction sets; malformed and missing tables are skipped."""
    is_thumb: dict[int, bool] = {}
    try:
        symbols = parse_macho_symbols(contents)
        is_thumb |= _pairs(symbols.n_value[symbols.is_code], symbols.is_thumb[symbols.is_code])
    except (FormatError, MemoryReadError):
        pass
    try:
        listed, header = parse_function_starts(contents), contents.image.header_svma
        for offset in listed.offsets:
            start = header + offset
            is_thumb[start] = offset in listed.thumb or is_thumb.get(start, False)
    except (FormatError, MemoryReadError):
        pass
    return InstructionSets(is_thumb)


def arm_rules_of_elf(contents: ElfContents) -> ArmInstructionRules:
    """Return instruction analysis of a linked, little-endian ELF image of 32-bit arm.

    Raises:
        MemoryReadError: its exception tables were not captured.
    """
    symbols = _symbols(parse_symbols, contents)
    is_thumb: dict[int, bool] = {}
    for rows in (_symbols(parse_dynamic_symbols, contents), symbols):
        if rows is not None:
            functions = rows.is_function
            is_thumb |= _pairs(rows.addresses[functions], rows.is_thumb[functions])
    return ArmInstructionRules(
        contents,
        _ElfFunctions(contents).at,
        InstructionSets(is_thumb),
        () if symbols is None else _data(symbols),
        machine=ARM,
    )


def _pairs(addresses: npt.NDArray[np.uint64], marks: npt.NDArray[np.bool_]) -> dict[int, bool]:
    return dict(zip(addresses.tolist(), marks.tolist(), strict=True))


class _ElfFunctions:
    """Function bounds from symbols, else from exception tables, whose entries may join several."""

    __slots__ = ("_by_symbols", "_index", "_sections")

    def __init__(self, contents: ElfContents) -> None:
        self._by_symbols = ElfFunctionBounds(contents)
        self._index = ExceptionIndex.of_elf(contents)
        self._sections = contents.image.code_ranges

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """See :data:`~machtrace.unwinder.rules.FunctionAt`."""
        bounds = self._by_symbols.at(address)
        if bounds is not None or self._index is None:
            return bounds
        try:
            entry = self._index.find(address)
        except (FormatError, MemoryReadError):
            return None
        for low, high in self._sections:
            if entry is not None and low <= entry.start <= address < high:
                return entry.start, Svma(min(entry.end, high))
        return None


def _symbols(
    parse: Callable[[ElfContents], SymbolRows], contents: ElfContents
) -> SymbolRows | None:
    try:
        return parse(contents)
    except (FormatError, MemoryReadError):
        return None


def _data(symbols: SymbolRows) -> tuple[Range, ...]:
    """Return the (start, end) of data between code, by the assembler's mapping symbols."""
    local = np.flatnonzero((symbols.rows["st_info"] == 0) & symbols.is_defined)
    names = [name.partition(".")[0] for name in symbols.names(local.tolist())]
    addresses = symbols.addresses[local].tolist()
    marks = sorted(
        (address, _IS_DATA[name])
        for address, name in zip(addresses, names, strict=True)
        if name in _IS_DATA
    )
    ranges: list[Range] = []
    start: int | None = None
    for address, is_data in marks:
        if is_data and start is None:
            start = address
        elif not is_data and start is not None:
            if start < address:
                ranges.append((start, address))
            start = None
    return tuple(ranges)
