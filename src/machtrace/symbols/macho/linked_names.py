"""The names in a Mach-O's symbol table, by which a program was linked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.nlist import N_EXT, N_PEXT, N_SECT, N_STAB, N_TYPE
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.model.symbol import Certainty
from machtrace.symbols.macho.code_sections import holds_functions, is_objc_stubs
from machtrace.symbols.ranges import NamedRanges

_LOOKED_AT = 256
"""Local symbols whose names tell whether those of all were taken away."""
_MOST_SECTIONS = 255
"""Those that ``nlist.n_sect`` can count."""


def symtab_functions(symbols: SymbolRows, image: MachOImage) -> NamedRanges:
    """The defined symbols of functions: exact names, as long as local ones are among them.

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
    """The symbols that linkers write for Objective-C's stubs: ``_objc_msgSend$selector``."""
    rows = _rows(symbols, image, [s for s in image.sections if is_objc_stubs(s)])
    rows, external = _not_redacted(symbols, rows, _is_external(symbols, rows))
    return _ranges(symbols, image, rows, external, Certainty.STUB)


def _rows(symbols: SymbolRows, image: MachOImage, sections: list[Section]) -> npt.NDArray[np.intp]:
    """The symbols in some sections; those for debuggers are in none."""
    chosen = np.zeros(256, np.bool_)
    # nlist has one byte for the section, so later ones have no symbols.
    for number, section in enumerate(image.sections[:_MOST_SECTIONS], 1):
        chosen[number] = section in sections
    kinds = np.arange(256, dtype=np.uint8)
    is_defined = (kinds & (N_STAB | N_TYPE)) == N_SECT
    table = symbols.rows
    rows = np.flatnonzero(is_defined[table["n_type"]] & chosen[table["n_sect"]])
    base = np.uint64(image.header_svma)
    kept = (table["n_strx"][rows] != 0) & (table["n_value"][rows] >= base)
    return rows if kept.all() else rows[kept]


def _is_external(symbols: SymbolRows, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = (symbols.rows["n_type"][rows] & (N_PEXT | N_EXT)) == N_EXT
    return mask


def _not_redacted(
    symbols: SymbolRows, rows: npt.NDArray[np.intp], external: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Without those whose name was taken away when a shared cache was built.

    That is done to all local symbols or to none, and to look at the names of half a million would
    take longer than everything else. One that is overlooked is still never shown as a name.
    """
    local = np.flatnonzero(~external)
    looked_at = local[np.linspace(0, len(local) - 1, min(_LOOKED_AT, len(local)), dtype=np.intp)]
    if all(symbols.name_bytes(row) not in (b"", b"<redacted>") for row in rows[looked_at].tolist()):
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
        """Those that no other file was linked with, and that no compiler would name so."""
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
