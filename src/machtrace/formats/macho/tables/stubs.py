"""Linkage stubs: the instructions through which one image calls another, and their callees.

A stub has no symbol. In a section of type S_SYMBOL_STUBS each takes ``reserved2`` bytes, and the
indirect symbol table lists their symbols from entry ``reserved1`` on (``mach-o/loader.h``). If
calls are bound lazily, a stub jumps through a lazy symbol pointer, which at first points to a
helper in ``__stub_helper``; the indirect symbol table lists these pointers, too. Objective-C's
stubs, in ``__objc_stubs``, have symbols of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.formats.macho.segments import S_LAZY_SYMBOL_POINTERS, S_SYMBOL_STUBS, Section
from machtrace.formats.macho.structs import INDIRECT_SYMBOL_ABS, INDIRECT_SYMBOL_LOCAL
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.frozen import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class StubRows:
    """Stubs with known callees, ascending by address."""

    addresses: npt.NDArray[np.uint64]
    """Addresses, each an :data:`Svma`."""
    sizes: npt.NDArray[np.uint64]
    """In bytes."""
    names: tuple[str, ...]
    """The callees' linkage names."""

    def __len__(self) -> int:
        return len(self.names)


def parse_indirect_symbols(contents: MachOContents) -> npt.NDArray[np.uint32]:
    """Return the indirect symbol table: indices of symbols, or ``INDIRECT_SYMBOL_`` bits.

    Raises:
        MachOError: the table is not in the file.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    command = contents.image.dysymtab
    if command is None or command.nindirectsyms == 0:
        return np.zeros(0, np.uint32)
    data = read_table(
        contents,
        command.indirectsymoff,
        4 * command.nindirectsyms,
        "the table of indirect symbols",
    )
    order = "<" if contents.image.header.little_endian else ">"
    return np.frombuffer(data, f"{order}u4").astype(np.uint32)


def parse_stubs(contents: MachOContents, symbols: SymbolRows) -> StubRows:
    """Return the stubs of an image, and its lazy-binding helpers that are still in use.

    Raises:
        MachOError: the indirect symbol table is not in the file, sections share its entries, or
            the names that it refers to overlap.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    indirect = parse_indirect_symbols(contents)
    groups = [
        _Entries.of(section, indirect, len(symbols), contents)
        for section in contents.image.sections
        if section.type in (S_SYMBOL_STUBS, S_LAZY_SYMBOL_POINTERS)
    ]
    if sum(len(group.symbols) for group in groups) > len(indirect):
        raise MachOError(
            "sections of stubs share entries of the indirect symbol table",
            source=contents.source,
            offset=0,
        )
    helpers = _helpers([g for g in groups if g.section.type != S_SYMBOL_STUBS], contents)
    stubs = [group for group in groups if group.section.type == S_SYMBOL_STUBS]
    starts = np.concatenate([helpers.starts, *(group.addresses for group in stubs)])
    sizes = np.concatenate(
        [helpers.sizes, *(np.full(len(g.symbols), g.size, np.uint64) for g in stubs)]
    )
    rows = np.concatenate([helpers.symbols, *(group.symbols for group in stubs)])
    names = symbols.names(rows)
    order = [row for row in np.argsort(starts, kind="stable").tolist() if names[row]]
    return StubRows(starts[order], sizes[order], tuple(names[row] for row in order))


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """The entries of a section that the indirect symbol table lists."""

    section: Section
    size: int
    """The size of an entry, in bytes."""
    addresses: npt.NDArray[np.uint64]
    """Addresses, each an :data:`Svma`."""
    symbols: npt.NDArray[np.intp]
    """Each entry's row in the symbol table."""

    @classmethod
    def of(
        cls,
        section: Section,
        indirect: npt.NDArray[np.uint32],
        symbol_count: int,
        contents: MachOContents,
    ) -> _Entries:
        stub = section.type == S_SYMBOL_STUBS
        size = section.reserved2 if stub else _pointer_size(contents)
        # A section may claim any size: indirect symbols bound the number of entries.
        count = section.size // size if size else 0
        symbols = indirect[section.reserved1 : section.reserved1 + count]
        special = (symbols & np.uint32(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS)) != 0
        known = np.flatnonzero(~special & (symbols < symbol_count))
        addresses = np.uint64(section.address) + known.astype(np.uint64) * np.uint64(size)
        return cls(section, size, addresses, symbols[known].astype(np.intp))


def _pointer_size(contents: MachOContents) -> int:
    return 8 if contents.image.header.is_64 else 4


@dataclass(frozen=True, slots=True, eq=False)
class _Helpers:
    """Return helpers by address; the code before the first, to which all jump, has no name."""

    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    symbols: npt.NDArray[np.intp]


def _helpers(pointers: list[_Entries], contents: MachOContents) -> _Helpers:
    """Return the helpers that lazy pointers still point to, before they are bound."""
    section = contents.image.section("__TEXT", "__stub_helper")
    none = _Helpers(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.intp))
    if section is None or not pointers:
        return none
    size = _pointer_size(contents)
    order = "<" if contents.image.header.little_endian else ">"
    slide = contents.slide
    targets, symbols = [], []
    for group in pointers:
        if not len(group.symbols):
            continue
        places = (group.addresses - np.uint64(group.section.address)) // np.uint64(size)
        try:
            data = contents.read_svma(group.section.address, (int(places[-1]) + 1) * size)
        except MemoryReadError:
            # Nothing else depends on the names of helpers.
            continue
        slots = np.frombuffer(data, f"{order}u{size}").astype(np.uint64)
        targets.append(slots[places] - np.uint64(slide % (1 << 64)))
        symbols.append(group.symbols)
    if not targets:
        return none
    starts, rows = np.concatenate(targets), np.concatenate(symbols)
    inside = (starts > np.uint64(section.address)) & (starts < np.uint64(section.end))
    starts, first = np.unique(starts[inside], return_index=True)
    if not len(starts):
        return none
    rows = rows[inside][first]
    ends = np.append(starts[1:], np.uint64(section.end))
    # After the last helper there may be padding; helpers are all of one size.
    sizes = np.full(len(starts), (ends - starts).min())
    return _Helpers(starts, sizes, rows)
