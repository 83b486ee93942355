"""Where the functions of a Mach-O begin and end, from the best table that it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.macho.contents import FileContents, MachOContents
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
        sections = code_ranges(contents)
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


def code_ranges(contents: MachOContents) -> tuple[tuple[int, int], ...]:
    """The (start, end) of each section with code, in Svmas; ascending, and apart.

    Only as far as its segment has bytes, whatever size the section states; sections that overlap
    are one.
    """
    found: list[tuple[int, int]] = []
    for segment in contents.image.segments:
        size = min(segment.vmsize, segment.filesize)
        if isinstance(contents, FileContents):
            size = min(size, max(0, len(contents.data) - segment.fileoff))
        for section in segment.sections:
            start = max(section.address, segment.vmaddr)
            end = min(section.end, segment.vmaddr + size)
            if section.is_code and start < end:
                found.append((start, end))
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if ranges and low < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return tuple(ranges)


def _asked(source: Callable[[MachOContents], Starts], contents: MachOContents) -> Starts:
    try:
        return source(contents)
    except (FormatError, MemoryReadError):
        return np.empty(0, np.uint64)


def _in_code(starts: Starts, sections: tuple[tuple[int, int], ...]) -> Starts:
    # Some linkers write a table that holds no more than the end of the header.
    if not sections:
        return starts[:0]
    lows = np.array([low for low, _ in sections], np.uint64)
    lasts = np.array([high - 1 for _, high in sections], np.uint64)
    starts = starts[starts >= lows[0]]
    return starts[starts <= lasts[lows.searchsorted(starts, "right") - 1]]


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
    sections = [
        (low, high)
        for low, high in code_ranges(contents)
        if not is_encrypted(contents, Svma(low), high - low)
    ]
    found = [np.empty(0, np.uint64), *call_targets(contents, sections)]
    return np.unique(np.concatenate(found))
