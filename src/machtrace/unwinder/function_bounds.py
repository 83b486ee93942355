"""Where the functions of a Mach-O begin and end, from the best table that it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.macho.contents import MachOContents
from machtrace.macho.encryption import is_encrypted
from machtrace.macho.function_starts import parse_function_starts
from machtrace.macho.symtab import parse_symbols
from machtrace.macho.unwind_info import UnwindInfo
from machtrace.model.address import Svma
from machtrace.unwinder.arm64_jumps import call_targets

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
        """From LC_FUNCTION_STARTS; where it is missing, from all else that shows starts.

        That is ``__unwind_info``, the symbol table and, in AArch64 code, the targets of calls. A
        table that is malformed or was not captured counts as missing.
        """
        sections = tuple((s.address, s.end) for s in contents.image.code_sections)
        starts = _in_code(_asked(_function_starts, contents), sections)
        if not len(starts):
            found = [_asked(source, contents) for source in (_unwind_entries, _symbols, _callees)]
            starts = _in_code(np.unique(np.concatenate(found)), sections)
        return cls(starts, sections)

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``; None outside of them.

        Where there is no LC_FUNCTION_STARTS, and the symbols were stripped too, functions that
        follow each other may be one here.
        """
        if not 0 <= address < 1 << 64:
            return None
        section = int(self._section_starts.searchsorted(np.uint64(address), "right")) - 1
        if section < 0:
            return None
        low, high = self._sections[section]
        index = int(self._starts.searchsorted(np.uint64(address), "right")) - 1
        if index < 0 or address >= high:
            return None
        start = int(self._starts[index])
        end = high
        if index + 1 < len(self._starts):
            end = min(high, int(self._starts[index + 1]))
        return (Svma(start), Svma(end)) if start >= low else None


def _asked(source: Callable[[MachOContents], Starts], contents: MachOContents) -> Starts:
    try:
        return source(contents)
    except (FormatError, MemoryReadError):
        return np.empty(0, np.uint64)


def _in_code(starts: Starts, sections: tuple[tuple[int, int], ...]) -> Starts:
    # Some linkers write a table that holds no more than the end of the header.
    inside = np.zeros(len(starts), np.bool_)
    for low, high in sections:
        inside |= (starts >= np.uint64(low)) & (starts < np.uint64(high))
    return starts[inside]


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


def _callees(contents: MachOContents) -> Starts:
    arch = contents.image.header.arch
    if arch is None or not arch.is_arm64:
        return np.empty(0, np.uint64)
    found = [np.empty(0, np.uint64)]
    for section in contents.image.code_sections:
        if not is_encrypted(contents, section.address, section.size):
            found += call_targets(contents, section.address, section.end)
    return np.unique(np.concatenate(found))
