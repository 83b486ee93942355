"""The names in a Mach-O image: its symbols and stubs, bounded by function starts."""

from __future__ import annotations

import numpy as np

from machtrace.macho.contents import MachOContents
from machtrace.macho.function_starts import parse_function_starts
from machtrace.macho.image import MachOImage
from machtrace.macho.stubs import parse_stubs
from machtrace.macho.symtab import SymbolRows, parse_symbols
from machtrace.model.symbol import Certainty
from machtrace.symbolicate.symbol_table import CodeBounds, NamedRanges, Offsets, SymbolTable


def macho_symbol_table(contents: MachOContents) -> SymbolTable:
    """The names in a Mach-O image, in a file or in memory.

    Raises:
        MachOError: a table is malformed, or points outside the image.
        MemoryReadError: a table is in memory that cannot be read.
    """
    image = contents.image
    starts = parse_function_starts(contents).offsets
    symbols = parse_symbols(contents)
    kinds = (_functions(symbols, image, certain=len(starts) > 0), _stubs(contents, symbols))
    return SymbolTable(kinds, _bounds(image, starts))


def _functions(symbols: SymbolRows, image: MachOImage, *, certain: bool) -> NamedRanges:
    """The defined symbols of code; ``certain``: function starts are known.

    Where they are not, a table that holds only exported names was stripped of others, which may
    begin in between.
    """
    rows = np.flatnonzero(symbols.is_code)
    external = symbols.is_external[rows]
    stripped = not certain and bool(external.all())
    return NamedRanges(
        starts=symbols.n_value[rows] - np.uint64(image.header_svma),
        sizes=np.zeros(len(rows), np.uint64),
        preferred=external,
        linkage_name=lambda row: symbols.name(int(rows[row])),
        certainty=Certainty.EXPORT if stripped else Certainty.EXACT,
        leading_underscore=True,
    )


def _stubs(contents: MachOContents, symbols: SymbolRows) -> NamedRanges:
    stubs = parse_stubs(contents, symbols)
    return NamedRanges(
        starts=stubs.addresses - np.uint64(contents.image.header_svma),
        sizes=stubs.sizes,
        preferred=np.ones(len(stubs), np.bool_),
        linkage_name=stubs.names.__getitem__,
        certainty=Certainty.STUB,
        leading_underscore=True,
    )


def _bounds(image: MachOImage, function_starts: Offsets) -> CodeBounds:
    base = image.header_svma
    sections = [
        (section.address - base, section.address - base + section.size)
        for section in image.code_sections
        if section.address >= base
    ]
    return CodeBounds(
        section_starts=np.array([start for start, _ in sections], np.uint64),
        section_ends=np.array([min(end, 2**64 - 1) for _, end in sections], np.uint64),
        function_starts=function_starts,
    )
