"""What instruction analysis has to know of a 32-bit arm ELF image: its functions, and what is data.

Source: *ELF for the Arm Architecture*, section 5.5.5, for the symbols ``$a``, ``$t`` and ``$d``,
which mark where ARM code, Thumb code and data begin.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.exidx import ExceptionIndex
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import Svma
from machtrace.unwinder.arch.arm32.analysis import ArmInstructionRules, InstructionSets
from machtrace.unwinder.arch.arm32.function_code import Range
from machtrace.unwinder.arch.arm32.registers import ARM
from machtrace.unwinder.functions.elf_bounds import ElfFunctionBounds, code_ranges

_MARKS = {"$a": False, "$t": False, "$d": True}
"""Whether what begins is data."""


def arm_rules_of_elf(contents: ElfContents) -> ArmInstructionRules:
    """Instruction analysis of an ELF image of 32-bit arm, little-endian and linked.

    Raises:
        MemoryReadError: its exception tables were not captured.
    """
    symbols = _symbols(parse_symbols, contents)
    known: dict[int, bool] = {}
    for rows in (_symbols(parse_dynamic_symbols, contents), symbols):
        if rows is not None:
            functions = rows.is_function
            addresses, marks = rows.addresses[functions], rows.is_thumb[functions]
            known |= dict(zip(addresses.tolist(), marks.tolist(), strict=True))
    return ArmInstructionRules(
        contents,
        _Functions(contents).at,
        InstructionSets(known),
        () if symbols is None else _data(symbols),
        machine=ARM,
    )


class _Functions:
    """Symbols say where functions are, else exception tables, where several may be one."""

    __slots__ = ("_by_symbols", "_index", "_sections")

    def __init__(self, contents: ElfContents) -> None:
        self._by_symbols = ElfFunctionBounds(contents)
        self._index = ExceptionIndex.of_elf(contents)
        self._sections = code_ranges(contents)

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """The (start, end) of what holds ``address``."""
        found = self._by_symbols.at(address)
        if found is not None or self._index is None:
            return found
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
    """What lies between code, by the marks that assemblers leave."""
    local = np.flatnonzero((symbols.rows["st_info"] == 0) & symbols.is_defined)
    names = [name.partition(".")[0] for name in symbols.names(local.tolist())]
    addresses = symbols.addresses[local].tolist()
    marks = sorted((a, _MARKS[n]) for a, n in zip(addresses, names, strict=True) if n in _MARKS)
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
