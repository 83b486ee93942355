"""The symbol table of a Mach-O image: its ``nlist`` entries and stubs, bounded by function starts."""

from __future__ import annotations

import numpy as np

from machtrace.macho.contents import MachOContents
from machtrace.macho.function_starts import parse_function_starts
from machtrace.macho.image import MachOImage
from machtrace.macho.symtab import parse_symbols
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
    symbols = _symbols(contents, certain=len(starts) > 0)
    return SymbolTable((symbols,), _bounds(image, starts), leading_underscore=True)


def _symbols(contents: MachOContents, *, certain: bool) -> NamedRanges:
    """The defined symbols of code. Where function starts are unknown, a table that holds only
    exported names was stripped of others that may begin in between."""
    symbols = parse_symbols(contents)
    rows = np.flatnonzero(symbols.is_code)
    external = symbols.is_external[rows]
    stripped = not certain and bool(external.all())
    return NamedRanges(
        starts=symbols.n_value[rows] - np.uint64(contents.image.header_svma),
        sizes=np.zeros(len(rows), np.uint64),
        preferred=external,
        linkage_name=lambda row: symbols.name(int(rows[row])),
        certainty=Certainty.EXPORT if stripped else Certainty.EXACT,
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
