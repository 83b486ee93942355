"""Pointers of images from before LC_DYLD_INFO: relocation entries, and indirect symbols.

Source: ``mach-o/reloc.h``, ``mach-o/loader.h`` (``dysymtab_command``), and dyld's
``ImageLoaderMachOClassic.cpp`` for the base of relocations' addresses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses, BindRows
from machtrace.formats.macho.contents import MachOFileContents, read_table
from machtrace.formats.macho.segments import S_LAZY_SYMBOL_POINTERS, S_NON_LAZY_SYMBOL_POINTERS
from machtrace.formats.macho.structs import (
    INDIRECT_SYMBOL_ABS,
    INDIRECT_SYMBOL_LOCAL,
    VM_PROT_WRITE,
)
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import parse_symbols

_RELOCATION = np.dtype([("address", "<u4"), ("bits", "<u4")])
_SCATTERED = np.uint32(0x80000000)
_SYMBOL = np.uint32(0xFFFFFF)
_EXTERN = np.uint32(1 << 27)
_LENGTH_SHIFT = 25
_MH_SPLIT_SEGS = 0x20


def local_relocations(contents: MachOFileContents) -> Addresses:
    """Return the addresses of an image's pointers into itself, from local relocations, in order.

    Raises:
        MachOError: the table is not in the file.
    """
    command = contents.image.dysymtab
    if command is None or not command.nlocrel:
        return np.zeros(0, np.uint64)
    rows = _rows(contents, command.locreloff, command.nlocrel)
    scattered = (rows["address"] & _SCATTERED) != 0
    # A scattered relocation has a 24-bit address, and its length in the two bits above the type.
    is_64 = contents.image.header.is_64
    address = np.where(scattered & (not is_64), rows["address"] & _SYMBOL, rows["address"])
    length = np.where(
        scattered & (not is_64), rows["address"] >> np.uint32(28), rows["bits"] >> _LENGTH_SHIFT
    ) & np.uint32(3)
    is_pointer = length == (3 if is_64 else 2)
    places: Addresses = _base(contents) + address[is_pointer].astype(np.uint64)
    return places


def named_pointers(contents: MachOFileContents) -> BindRows:
    """Return pointers to symbols of other images: external relocations, and symbol pointers.

    Raises:
        MachOError: a table is not in the file.
    """
    symbols = parse_symbols(contents)
    command = contents.image.dysymtab
    places: list[Addresses] = []
    numbers: list[npt.NDArray[np.int64]] = []
    if command is not None and command.nextrel:
        rows = _rows(contents, command.extreloff, command.nextrel)
        rows = rows[(rows["bits"] & _EXTERN) != 0]
        places.append(_base(contents) + rows["address"].astype(np.uint64))
        numbers.append((rows["bits"] & _SYMBOL).astype(np.int64))
    indirect = parse_indirect_symbols(contents)
    size = 8 if contents.image.header.is_64 else 4
    for section in contents.image.sections:
        if section.type not in (S_NON_LAZY_SYMBOL_POINTERS, S_LAZY_SYMBOL_POINTERS):
            continue
        entries = indirect[section.reserved1 : section.reserved1 + section.size // size]
        special = (entries & np.uint32(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS)) != 0
        at = np.flatnonzero(~special)
        places.append(np.uint64(section.address) + at.astype(np.uint64) * np.uint64(size))
        numbers.append(entries[at].astype(np.int64))
    where = np.concatenate([np.zeros(0, np.uint64), *places])
    which = np.concatenate([np.zeros(0, np.int64), *numbers])
    known = which < len(symbols)
    used, rows_of = np.unique(which[known], return_inverse=True)
    return BindRows.sorted(
        where[known],
        rows_of.astype(np.int32),
        np.zeros(len(rows_of), np.int64),
        symbols.names(used.tolist()),
    )


def _rows(contents: MachOFileContents, offset: int, count: int) -> npt.NDArray[np.void]:
    data = read_table(contents, offset, count * _RELOCATION.itemsize, "the relocations")
    little_endian = contents.image.header.little_endian
    return np.frombuffer(data, _RELOCATION if little_endian else _RELOCATION.newbyteorder(">"))


def _base(contents: MachOFileContents) -> np.uint64:
    """Return the base of relocations' addresses: in 64 bits, the first writable segment."""
    image = contents.image
    if image.header.is_64 or image.header.flags & _MH_SPLIT_SEGS:
        for segment in image.segments:
            if segment.initprot & VM_PROT_WRITE:
                return np.uint64(segment.vmaddr)
    return np.uint64(image.segments[0].vmaddr if image.segments else 0)
