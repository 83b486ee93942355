"""Where the functions of a Mach-O begin and end, from the best table that it has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.macho.contents import MachOContents
from machtrace.macho.function_starts import parse_function_starts
from machtrace.macho.symtab import parse_symbols
from machtrace.macho.unwind_info import UnwindInfo
from machtrace.model.address import Svma

Starts = npt.NDArray[np.uint64]


class FunctionBounds:
    """Starts of functions, and the sections that end the last of each."""

    __slots__ = ("_section_starts", "_sections", "_starts")

    def __init__(self, starts: Starts, sections: tuple[tuple[int, int], ...]) -> None:
        """``starts``: Svmas, ascending; ``sections``: (start, end) of those with code."""
        self._starts = starts
        self._sections = tuple(sorted(sections))
        self._section_starts = np.array([start for start, _ in self._sections], np.uint64)

    @classmethod
    def of_macho(cls, contents: MachOContents) -> FunctionBounds:
        """From LC_FUNCTION_STARTS, else ``__unwind_info``, else the symbol table.

        A table that is malformed or was not captured counts as missing.
        """
        sections = tuple((s.address, s.end) for s in contents.image.code_sections)
        for source in (_function_starts, _unwind_entries, _symbols):
            try:
                starts = source(contents)
            except (FormatError, MemoryReadError):
                continue
            if len(starts):
                return cls(starts, sections)
        return cls(np.empty(0, np.uint64), sections)

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``; None outside of them.

        Where starts come from unwind entries, functions that the linker folded into one entry
        are one here.
        """
        if not 0 <= address < 1 << 64:
            return None
        section = int(np.searchsorted(self._section_starts, np.uint64(address), "right")) - 1
        if section < 0:
            return None
        low, high = self._sections[section]
        index = int(np.searchsorted(self._starts, np.uint64(address), "right")) - 1
        if index < 0 or address >= high:
            return None
        start = int(self._starts[index])
        end = high
        if index + 1 < len(self._starts):
            end = min(high, int(self._starts[index + 1]))
        return (Svma(start), Svma(end)) if start >= low else None


def _function_starts(contents: MachOContents) -> Starts:
    return parse_function_starts(contents).offsets + np.uint64(contents.image.header_svma)


def _unwind_entries(contents: MachOContents) -> Starts:
    section = contents.image.section("__TEXT", "__unwind_info")
    if section is None:
        return np.empty(0, np.uint64)
    data = contents.read_svma(section.address, section.size)
    starts = UnwindInfo(data, f"{contents.source}: __unwind_info").function_starts()
    return starts + np.uint64(contents.image.header_svma)


def _symbols(contents: MachOContents) -> Starts:
    symbols = parse_symbols(contents)
    return np.unique(symbols.n_value[symbols.is_code])
