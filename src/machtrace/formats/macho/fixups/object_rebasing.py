"""Moving the addresses in an object file's DWARF up.

An object file's code starts at address 0, which DWARF readers treat as code that a linker dropped.
Addresses in DWARF have relocations (``mach-o/reloc.h``) and are those of the object file, so all
can be moved together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.load_commands import LC_DYSYMTAB, LC_SYMTAB
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.structs import N_SECT, N_STAB, N_TYPE
from machtrace.formats.macho.tables.symtab import parse_symbols

_RELOCATION_SIZE = 8
_SCATTERED = 0x80000000
_UNSIGNED = 0
"""``GENERIC_RELOC_VANILLA``, ``X86_64_RELOC_UNSIGNED``, ``ARM_RELOC_VANILLA``,
``ARM64_RELOC_UNSIGNED``: the relocated word is an address."""
_COUNTS = {LC_SYMTAB: (12, 4), LC_DYSYMTAB: (8, 24)}
"""Offsets of symbol counts in load commands: ``nsyms``; ``ilocalsym`` to ``nundefsym``."""


def rebased_object(contents: MachOFileContents, distance: int) -> bytearray:
    """Return a copy of an object file in whose DWARF all code is ``distance`` bytes higher.

    Section headers are unchanged, and the symbol table, whose addresses would be wrong, is dropped.
    Invalid relocations are skipped.
    """
    data = bytearray(contents.data)
    image = contents.image
    order = "<" if image.header.little_endian else ">"
    for section in image.sections:
        if section.segment_name == "__DWARF" and section.nreloc:
            _move(data, section, contents, np.uint64(distance), order)
    for command in image.commands_of(*_COUNTS):
        start, size = _COUNTS[command.cmd]
        if len(command.data) >= start + size:
            at = command.offset + start
            data[at : at + size] = bytes(size)
    return data


def _move(
    data: bytearray, section: Section, contents: MachOFileContents, distance: np.uint64, order: str
) -> None:
    table_end = section.reloff + section.nreloc * _RELOCATION_SIZE
    if table_end > len(data) or section.offset + section.size > len(data):
        return
    entries = np.frombuffer(data, f"{order}u4", section.nreloc * 2, section.reloff).reshape(-1, 2)
    at, info = entries[:, 0].astype(np.int64), entries[:, 1]
    number, is_external = (info & 0xFFFFFF).astype(np.int64), (info >> 27 & 1).astype(np.bool_)
    kind, length = info >> 28, info >> 25 & 3
    added = _distances(contents, number, is_external=is_external, distance=distance)
    is_plain = (at < _SCATTERED) & (kind == _UNSIGNED)
    # A word with a subtractor is a difference, which does not change.
    is_plain[1:] &= ~((kind[:-1] != _UNSIGNED) & (at[:-1] == at[1:]))
    for size, code in ((8, 3), (4, 2)):
        rows = np.flatnonzero(is_plain & (length == code) & (at + size <= section.size))
        rows = rows[added[rows] != 0]
        if not len(rows):
            continue
        # Of relocations of one word, the last counts.
        places, last = np.unique(at[rows][::-1], return_index=True)
        rows = rows[::-1][last]
        window = np.frombuffer(data, np.uint8, section.size, section.offset)
        spots = places[:, None] + np.arange(size)
        values = np.ascontiguousarray(window[spots]).view(f"{order}u{size}")[:, 0]
        moved = (values.astype(np.uint64) + added[rows]).astype(f"{order}u{size}")
        window[spots] = moved[:, None].view(np.uint8)


def _distances(
    contents: MachOFileContents,
    number: npt.NDArray[np.int64],
    *,
    is_external: npt.NDArray[np.bool_],
    distance: np.uint64,
) -> npt.NDArray[np.uint64]:
    """Return the addend of each relocation: 0 for targets outside code and data."""
    sections = contents.image.sections
    is_moved = np.zeros(256, np.bool_)
    for index, section in enumerate(sections[:255], 1):
        is_moved[index] = section.segment_name != "__DWARF"
    added = np.where(is_moved[np.minimum(number, 255)], distance, np.uint64(0))
    if bool(is_external.any()):
        symbols = parse_symbols(contents)
        types, values = symbols.n_type, symbols.n_value
        is_defined = ((types & N_STAB) == 0) & ((types & N_TYPE) == N_SECT)
        there = is_external & (number < len(symbols))
        rows = np.where(there, number, 0)
        if len(symbols):
            moved = np.where(is_defined[rows], values[rows] + distance, np.uint64(0))
            added = np.where(there, moved, added)
        added = np.where(is_external & ~there, np.uint64(0), added)
    return added
