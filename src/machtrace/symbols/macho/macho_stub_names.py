"""Stubs, named after the functions of other images that they call."""

from __future__ import annotations

import numpy as np

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.segments import S_SYMBOL_STUBS
from machtrace.formats.macho.structs import INDIRECT_SYMBOL_ABS, INDIRECT_SYMBOL_LOCAL
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges

_SPECIAL = np.uint32(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS)


def stub_names(contents: MachOContents, symbols: SymbolRows) -> NamedRanges:
    """The stubs in sections of type S_SYMBOL_STUBS, by the indirect symbol table.

    What binds them lazily, in ``__stub_helper``, is the linker's own code and has no name.

    Raises:
        MachOError: the indirect symbol table is not in the file.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    indirect = parse_indirect_symbols(contents)
    base = contents.image.header_svma
    left = len(indirect)  # sections that shared entries could be many times as long as the table
    starts, sizes, rows = ([np.zeros(0, np.uint64)] for _ in range(3))
    for section in contents.image.sections:
        if section.type != S_SYMBOL_STUBS or not section.reserved2 or section.address < base:
            continue
        count = min(section.size // section.reserved2, left)
        symbol = indirect[section.reserved1 : section.reserved1 + count]
        left -= len(symbol)
        known = np.flatnonzero(((symbol & _SPECIAL) == 0) & (symbol < len(symbols)))
        places = known.astype(np.uint64) * np.uint64(section.reserved2)
        starts.append(places + np.uint64(section.address - base))
        sizes.append(np.full(len(known), section.reserved2, np.uint64))
        rows.append(symbol[known].astype(np.uint64))
    row = np.concatenate(rows).astype(np.uint32)
    return NamedRanges.unranked(
        np.concatenate(starts),
        lambda number: symbols.name(int(row[number])),
        Certainty.STUB,
        sizes=np.concatenate(sizes),
        leading_underscore=True,
    )
