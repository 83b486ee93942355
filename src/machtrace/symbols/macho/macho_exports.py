"""The names that an image exports and its symbol table does not have any more."""

from __future__ import annotations

import numpy as np

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.exports_trie import Export, parse_exports
from machtrace.formats.macho.image import MachOImage
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges

_SMALL = 1 << 16
"""Bytes of a trie that are read at once, whatever the symbol table has."""
_BYTES_AN_EXPORT = 256
"""More than any linker's trie takes for each: names are in it but once."""
_THUMB = np.uint64(1)


def exported_functions(contents: MachOContents, symbols: NamedRanges | None) -> NamedRanges:
    """The functions in the exports trie.

    Linkers write exports into the symbol table, too, and ``strip`` leaves them there unless told
    otherwise. So a large trie is only read where that table has too few external symbols to hold
    them all.

    Args:
        contents: the image.
        symbols: the functions of its symbol table; None where that could not be read.

    Raises:
        MachOError: the trie is not in the file, or malformed.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    image = contents.image
    exports = [one for one in parse_exports(contents) if _is_place(one)] if (
        _is_needed(image, symbols)
    ) else []  # fmt: skip
    names = [one.name for one in exports]
    starts = np.array([one.value for one in exports], np.uint64)
    arch = image.header.arch
    if arch is not None and arch.is_arm:
        starts &= ~_THUMB
    return NamedRanges.unranked(
        starts, names.__getitem__, Certainty.EXPORT, leading_underscore=True
    )


def _is_place(one: Export) -> bool:
    return not (one.is_reexport or one.is_absolute or one.is_thread_local)


def _is_needed(image: MachOImage, symbols: NamedRanges | None) -> bool:
    place = image.exports_trie
    if place is None:
        return False
    if symbols is None or place.size <= _SMALL:
        return True
    return int(symbols.preferred.sum()) < place.size // _BYTES_AN_EXPORT
