"""Function starts from the tables of a Mach-O that imply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents, is_encrypted
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import Svma
from machtrace.unwinder.functions.branch_scan import call_targets

Starts: TypeAlias = npt.NDArray[np.uint64]
"""Svmas, ascending."""

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""The (start, end) of sections with code; ascending, disjoint."""


def starts_of(contents: MachOContents, sections: Ranges) -> Starts:
    """Return starts from all tables but LC_FUNCTION_STARTS, where that lists nothing in code.

    These are ``__unwind_info``, the symbol table and, in AArch64 code, the targets of calls. A
    table that is malformed or was not captured counts as missing.
    """
    sources = (_unwind_entries, _symbols, lambda image: _callees(image, sections))
    starts = [_read(source, contents) for source in sources]
    return _in_code(np.unique(np.concatenate(starts)), sections)


def _read(source: Callable[[MachOContents], Starts], contents: MachOContents) -> Starts:
    try:
        return source(contents)
    except (FormatError, MemoryReadError):
        return np.empty(0, np.uint64)


def _in_code(starts: Starts, sections: Ranges) -> Starts:
    if not sections:
        return starts[:0]
    lows = np.array([low for low, _ in sections], np.uint64)
    lasts = np.array([high - 1 for _, high in sections], np.uint64)
    starts = starts[starts >= lows[0]]
    return starts[starts <= lasts[lows.searchsorted(starts, "right") - 1]]


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


def _callees(contents: MachOContents, sections: Ranges) -> Starts:
    arch = contents.image.header.arch
    if arch is None or not arch.is_arm64:
        return np.empty(0, np.uint64)
    readable = [
        (low, high) for low, high in sections if not is_encrypted(contents, Svma(low), high - low)
    ]
    targets = [np.empty(0, np.uint64), *call_targets(contents, readable)]
    return np.unique(np.concatenate(targets))
