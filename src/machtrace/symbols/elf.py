"""The names in an ELF image: ``.symtab``, ``.dynsym``, mini debug info and linkage-table stubs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import (
    ElfContents,
    ElfFileContents,
    mini_debug_contents,
)
from machtrace.formats.elf.eh_frame_hdr import DescribedCode
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import LAST_OFFSET, Svma
from machtrace.model.symbol import Certainty
from machtrace.symbols.table import CodeBounds, NamedRanges, Offsets, SymbolTable


def elf_symbol_table(contents: ElfContents, others: Sequence[ElfFileContents] = ()) -> SymbolTable:
    """Build the table of an ELF image, in a file or in memory, where only ``.dynsym`` is.

    ELF symbols state their sizes. The few that do not, of assembly code, extend as far as their
    call-frame description or, without one, the code that is their own.

    Args:
        contents: the image.
        others: files of the same image that may have more symbols: those split from it.

    Raises:
        ElfError: a table is malformed, or points outside the image.
        MemoryReadError: a table is in memory that cannot be read.
    """
    image = contents.image
    base = np.uint64(image.header_svma)
    kinds = [_functions(symbols, base) for symbols in _symbols(contents)]
    for other in others:
        try:
            twin = np.uint64(other.image.header_svma)
            kinds.append(_functions(parse_symbols(other), twin))
        except FormatError:  # what the image itself has is good all the same
            continue
    has_locals = not all(bool(kind.preferred.all()) for kind in kinds)
    if not contents.is_loaded:
        kinds += _go_functions(contents)
        kinds.append(_stubs(contents, base))
    return SymbolTable(tuple(kinds), _bounds(contents, has_locals=has_locals))


def _symbols(contents: ElfContents) -> Iterator[SymbolRows]:
    yield parse_symbols(contents)
    extra = mini_debug_contents(contents)
    if extra is not None:
        yield parse_symbols(extra)
    yield parse_dynamic_symbols(contents)


def _functions(symbols: SymbolRows, base: np.uint64) -> NamedRanges:
    addresses, sizes = symbols.addresses, symbols.sizes
    rows = np.flatnonzero(symbols.is_function & (addresses >= base))
    return NamedRanges(
        starts=addresses[rows] - base,
        sizes=sizes[rows],
        preferred=symbols.is_global[rows],
        linkage_name=lambda row: symbols.name(int(rows[row])),
        certainty=Certainty.EXACT,
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


def _bounds(contents: ElfContents, *, has_locals: bool) -> CodeBounds:
    image = contents.image
    base = image.header_svma
    starts, ends = _code_ranges(image)
    described = DescribedCode(contents)
    first = int(described.starts.searchsorted(np.uint64(base)))
    return CodeBounds(
        section_starts=starts,
        section_ends=ends,
        function_starts=described.starts[first:] - np.uint64(base),
        described_ends=lambda rows: described.ends(rows + first) - np.uint64(base),
        own_ends=partial(_own_ends, contents, is_stripped=not has_locals),
    )


def _own_ends(
    contents: ElfContents, starts: Offsets, limits: Offsets, *, is_stripped: bool
) -> Offsets:
    """Return where the code of symbols without a size ends; decoders are loaded for it."""
    from machtrace.unwinder.arch.own_code import OwnCode

    image = contents.image
    base, own = image.header_svma, OwnCode(contents, image.arch, is_stripped=is_stripped)
    ends = [
        own.end(Svma(base + start), Svma(base + limit)) - base
        for start, limit in zip(starts.tolist(), limits.tolist(), strict=True)
    ]
    return np.array(ends, np.uint64)


def _code_ranges(image: ElfImage) -> tuple[Offsets, Offsets]:
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
    return (
        np.array([start for start, _ in ranges], np.uint64),
        np.array([end for _, end in ranges], np.uint64),
    )
