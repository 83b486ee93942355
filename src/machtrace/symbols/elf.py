"""The names in an ELF image: ``.symtab``, ``.dynsym``, mini debug info and linkage-table stubs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import (
    ElfContents,
    ElfFileContents,
    mini_debug_contents,
)
from machtrace.formats.elf.eh_frame_hdr import function_starts
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import LAST_OFFSET
from machtrace.model.symbol import Certainty
from machtrace.symbols.table import CodeBounds, NamedRanges, Offsets, SymbolTable


def elf_symbol_table(contents: ElfContents, others: Sequence[ElfFileContents] = ()) -> SymbolTable:
    """Build the table of an ELF image, in a file or in memory, where only ``.dynsym`` is.

    ELF symbols state their sizes; the few that do not are bounded by the next call-frame
    description.

    Args:
        contents: the image.
        others: files of the same image that may have more symbols: those split from it.

    Raises:
        ElfError: a table is malformed, or points outside the image.
        MemoryReadError: a table is in memory that cannot be read.
    """
    image = contents.image
    base = np.uint64(image.header_svma)
    starts = _function_starts(contents)
    kinds = [
        _functions(symbols, base, certain=whole or len(starts) > 0)
        for symbols, whole in _symbols(contents)
    ]
    for other in others:
        try:
            twin = np.uint64(other.image.header_svma)
            kinds.append(_functions(parse_symbols(other), twin, certain=True))
        except FormatError:  # what the image itself has is good all the same
            continue
    if not contents.is_loaded:
        kinds += _go_functions(contents)
        kinds.append(_stubs(contents, base))
    starts = np.sort(starts[starts >= base] - base)
    return SymbolTable(tuple(kinds), _bounds(image, starts))


def _symbols(contents: ElfContents) -> Iterator[tuple[SymbolRows, bool]]:
    """Yield the symbol tables, and whether each is from before local names were stripped."""
    yield parse_symbols(contents), True
    extra = mini_debug_contents(contents)
    if extra is not None:
        yield parse_symbols(extra), True
    yield parse_dynamic_symbols(contents), False


def _functions(symbols: SymbolRows, base: np.uint64, *, certain: bool) -> NamedRanges:
    addresses, sizes = symbols.addresses, symbols.sizes
    rows = np.flatnonzero(symbols.is_function & (addresses >= base))
    stated = bool((sizes[rows] > 0).all())
    return NamedRanges(
        starts=addresses[rows] - base,
        sizes=sizes[rows],
        preferred=symbols.is_global[rows],
        linkage_name=lambda row: symbols.name(int(rows[row])),
        certainty=Certainty.EXACT if certain or stated else Certainty.EXPORT,
    )


def _go_functions(contents: ElfFileContents) -> list[NamedRanges]:
    """Return a Go program's functions, which stripping leaves; none if malformed."""
    if not any(section.name.endswith(".gopclntab") for section in contents.image.sections):
        return []
    from machtrace.symbols.go import elf_go_names

    try:
        return [elf_go_names(contents)]
    except (FormatError, MemoryReadError):
        return []


def _stubs(contents: ElfFileContents, base: np.uint64) -> NamedRanges:
    stubs = parse_stubs(contents)
    return NamedRanges.unranked(
        stubs.addresses - base, stubs.name, Certainty.STUB, sizes=stubs.sizes
    )


def _function_starts(contents: ElfContents) -> Offsets:
    """Return the Svmas where call-frame descriptions begin; none if the table is malformed."""
    try:
        starts = function_starts(contents)
    except (FormatError, MemoryReadError):
        starts = None
    return np.zeros(0, np.uint64) if starts is None else starts


def _bounds(image: ElfImage, starts: Offsets) -> CodeBounds:
    """Return the sections with code; segments if there are no section headers."""
    base = image.header_svma
    places = [(s.address, s.address + s.size) for s in image.sections if s.is_executable and s.size]
    if not places:
        places = [
            (segment.address, segment.address + segment.memory_size)
            for segment in image.load_segments
            if segment.is_executable
        ]
    ranges = sorted(
        (start - base, min(end - base, LAST_OFFSET))
        for start, end in places
        if 0 <= start - base <= LAST_OFFSET
    )
    return CodeBounds(
        section_starts=np.array([start for start, _ in ranges], np.uint64),
        section_ends=np.array([end for _, end in ranges], np.uint64),
        function_starts=starts,
    )
