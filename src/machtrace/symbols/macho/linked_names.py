"""Names that a Mach-O was linked by: its symbol table, exports, and targets of stubs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.segments import S_SYMBOL_STUBS, Section
from machtrace.formats.macho.structs import (
    INDIRECT_SYMBOL_ABS,
    INDIRECT_SYMBOL_LOCAL,
    N_EXT,
    N_PEXT,
    N_SECT,
    N_STAB,
    N_TYPE,
)
from machtrace.formats.macho.tables.exports_trie import Export, parse_exports
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.model.symbol import Certainty
from machtrace.symbols.macho.code_sections import holds_functions, is_objc_stubs
from machtrace.symbols.ranges import NamedRanges

_SAMPLED = 256
"""Local symbols whose names are examined to see whether all were removed."""
_MAX_SECTIONS = 255
"""The number of sections that ``nlist.n_sect`` can count."""


def symtab_functions(symbols: SymbolRows, image: MachOImage) -> NamedRanges:
    """Return the defined symbols of functions: exact names, as long as local ones are among them.

    A table that has only exported names (all of them preferred) was stripped of others, which may
    be of functions in between.
    """
    rows = _rows(
        symbols, image, [section for section in image.sections if holds_functions(section)]
    )
    external = _is_external(symbols, rows)
    rows, external = _not_redacted(symbols, rows, external)
    return _ranges(symbols, image, rows, external, Certainty.EXACT)


def symtab_stubs(symbols: SymbolRows, image: MachOImage) -> NamedRanges:
    """Return the symbols that linkers write for Objective-C's stubs: ``_objc_msgSend$selector``."""
    rows = _rows(symbols, image, [s for s in image.sections if is_objc_stubs(s)])
    rows, external = _not_redacted(symbols, rows, _is_external(symbols, rows))
    return _ranges(symbols, image, rows, external, Certainty.STUB)


def _rows(symbols: SymbolRows, image: MachOImage, sections: list[Section]) -> npt.NDArray[np.intp]:
    """Return the symbols in some sections; those for debuggers are in none."""
    chosen = np.zeros(256, np.bool_)
    # nlist has one byte for the section, so later ones have no symbols.
    for number, section in enumerate(image.sections[:_MAX_SECTIONS], 1):
        chosen[number] = section in sections
    kinds = np.arange(256, dtype=np.uint8)
    is_defined = (kinds & (N_STAB | N_TYPE)) == N_SECT
    table = symbols.rows
    rows = np.flatnonzero(is_defined[table["n_type"]] & chosen[table["n_sect"]])
    base = np.uint64(image.header_svma)
    is_named = (table["n_strx"][rows] != 0) & (table["n_value"][rows] >= base)
    return rows if is_named.all() else rows[is_named]


def _is_external(symbols: SymbolRows, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = (symbols.rows["n_type"][rows] & (N_PEXT | N_EXT)) == N_EXT
    return mask


def _not_redacted(
    symbols: SymbolRows, rows: npt.NDArray[np.intp], external: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return rows without local symbols, if their names were removed when a shared cache was built.

    All local symbols lose their names or none does, and to read the names of half a million would
    take longer than everything else. A redacted name that is overlooked is still never shown.
    """
    local = np.flatnonzero(~external)
    sampled = local[np.linspace(0, len(local) - 1, min(_SAMPLED, len(local)), dtype=np.intp)]
    if all(symbols.name_bytes(row) not in (b"", b"<redacted>") for row in rows[sampled].tolist()):
        return rows, external
    named = symbols.is_named[rows]
    return rows[named], external[named]


def _ranges(
    symbols: SymbolRows,
    image: MachOImage,
    rows: npt.NDArray[np.intp],
    external: npt.NDArray[np.bool_],
    certainty: Certainty,
) -> NamedRanges:
    rows = rows.astype(np.uint32)
    starts = symbols.rows["n_value"][rows].astype(np.uint64) - np.uint64(image.header_svma)

    def is_label(some: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Mark those that no other file was linked with, and that no compiler would name so."""
        chosen = rows[some].astype(np.intp)
        is_local = (symbols.rows["n_type"][chosen] & (N_PEXT | N_EXT)) == 0
        labels: npt.NDArray[np.bool_] = is_local & ~symbols.has_underscore(chosen)
        return labels

    return NamedRanges(
        starts=starts,
        sizes=np.zeros(len(rows), np.uint64),
        preferred=external,
        linkage_name=lambda row: symbols.name(int(rows[row])),
        certainty=certainty,
        is_label=is_label,
        leading_underscore=True,
    )


_SMALL = 1 << 16
"""Bytes of a trie that are always read, whatever the symbol table has."""
_BYTES_AN_EXPORT = 256
"""More than any linker's trie takes for each: it has each name only once."""
_THUMB = np.uint64(1)


def exported_functions(contents: MachOContents, symbols: NamedRanges | None) -> NamedRanges:
    """Return the functions in the exports trie.

    Linkers write exports into the symbol table, too, and ``strip`` leaves them there by default. So
    a large trie is only read if that table has too few external symbols to hold them all.

    Args:
        contents: the image.
        symbols: the functions of its symbol table; None if that could not be read.

    Raises:
        MachOError: the trie is not in the file, or malformed.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    image = contents.image
    exports = [export for export in parse_exports(contents) if _has_address(export)] if (
        _is_needed(image, symbols)
    ) else []  # fmt: skip
    names = [export.name for export in exports]
    starts = np.array([export.value for export in exports], np.uint64)
    arch = image.header.arch
    if arch is not None and arch.is_arm:
        starts &= ~_THUMB
    return NamedRanges.unranked(
        starts, names.__getitem__, Certainty.EXPORT, leading_underscore=True
    )


def _has_address(one: Export) -> bool:
    return not (one.is_reexport or one.is_absolute or one.is_thread_local)


def _is_needed(image: MachOImage, symbols: NamedRanges | None) -> bool:
    place = image.exports_trie
    if place is None:
        return False
    if symbols is None or place.size <= _SMALL:
        return True
    return int(symbols.preferred.sum()) < place.size // _BYTES_AN_EXPORT


_SPECIAL = np.uint32(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS)


def stub_names(contents: MachOContents, symbols: SymbolRows) -> NamedRanges:
    """Return the stubs in sections of type S_SYMBOL_STUBS, by the indirect symbol table.

    The code that binds them lazily, in ``__stub_helper``, is the linker's own and has no name.

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
