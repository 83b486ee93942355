"""Pointers without chained fixups: in memory, of early arm64e, of old images."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.fixups.pointers import Pointers, parse_pointers
from machtrace.formats.macho.header import CPU_TYPE_ARM64, FileType
from machtrace.formats.macho.load_commands import (
    LC_DYLD_INFO_ONLY,
    LC_DYSYMTAB,
    LC_SEGMENT,
    LC_SYMTAB,
)
from machtrace.formats.macho.structs import (
    DYSYMTAB_COMMAND,
    MACH_HEADER,
    MH_MAGIC,
    SECTION,
    SEGMENT_COMMAND,
    SYMTAB_COMMAND,
)
from machtrace.model.address import Avma, PacMask, Svma
from machtrace.targets.emulator import PROGRAM
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    IMAGE_SVMA,
    write_chained_image,
)

DEMO = PROGRAM.read_bytes()
DATA = next(s for s in MachOFileContents(DEMO, "demo").image.segments if s.name == "__DATA")
DATA_SEGMENT = 3
REBASE, BIND, LAZY_BIND = 8, 16, 32
ARM64E = 2


def with_tables(data: bytes, **tables: bytes) -> bytearray:
    """Build the demo program with other tables of opcodes at its end, by field of the command."""
    changed = bytearray(data)
    command = next(MachOFileContents(DEMO, "demo").image.commands_of(LC_DYLD_INFO_ONLY))
    for field in (REBASE, BIND, LAZY_BIND):
        table = tables.get(f"at_{field}", b"")
        struct.pack_into("<II", changed, command.offset + field, len(changed), len(table))
        changed += table
    return changed


def pointers(data: bytes | bytearray) -> Pointers:
    """Return the pointers of a file."""
    return parse_pointers(MachOFileContents(bytes(data), "made"))


BIND_THREE = (
    bytes((0x11, 0x40))
    + b"_first\0"
    + bytes((0x51, 0x70 | DATA_SEGMENT, 0x10, 0x90))  # at 0x10
    + bytes((0x60, 0x7C, 0x40))
    + b"_second\0"
    + bytes((0xA0, 0x08, 0x90, 0x00))  # at 0x18, 8 bytes on, at 0x28; each 4 before the symbol
)


def test_binds_have_addresses_names_and_addends():
    lazy = bytes((0x70 | DATA_SEGMENT, 0x80, 0x01, 0x40)) + b"_lazy\0" + bytes((0x90, 0x00))
    lazy += bytes((0x70 | DATA_SEGMENT, 0x88, 0x01, 0x40)) + b"_late\0" + bytes((0x90, 0x00))
    actual = pointers(with_tables(DEMO, at_16=BIND_THREE, at_32=lazy))
    assert actual.problem is None
    assert {
        DATA.vmaddr + 0x10: ("_first", 0),
        DATA.vmaddr + 0x18: ("_second", -4),
        DATA.vmaddr + 0x28: ("_second", -4),
        DATA.vmaddr + 0x80: ("_lazy", 0),
        DATA.vmaddr + 0x88: ("_late", 0),
    } == {
        at: (actual.binds.names[symbol], addend)
        for at, symbol, addend in zip(
            actual.binds.places.tolist(),
            actual.binds.symbols.tolist(),
            actual.binds.addends.tolist(),
            strict=True,
        )
    }
    assert actual.symbol(Svma(DATA.vmaddr + 0x18)) == "_second"
    assert actual.symbol(Svma(DATA.vmaddr + 0x20)) is None


def test_pointers_before_an_invalid_opcode_are_returned():
    data = with_tables(
        DEMO,
        at_8=bytes((0x11, 0x20 | DATA_SEGMENT, 0x00, 0x51, 0x90)),
        at_16=BIND_THREE[:-1] + b"\xf0",
    )
    struct.pack_into("<Q", data, DATA.fileoff, DATA.vmaddr + 0x40)
    found = pointers(data)
    assert found.target(DATA.vmaddr) == DATA.vmaddr + 0x40
    assert len(found.binds) == 3
    assert "opcode" in str(found.problem)


def test_chains_of_early_arm64e_alternate_rebases_and_binds():
    table = (
        bytes((0xD0, 0x02))
        + bytes((0x11, 0x40))
        + b"_first\0"
        + bytes((0x51, 0x90, 0x40))
        + b"_second\0"
        + bytes((0x60, 0x10, 0x90, 0x70 | DATA_SEGMENT, 0x08, 0xD1, 0x00))
    )
    data = with_tables(DEMO, at_16=table)
    struct.pack_into("<I", data, 8, ARM64E)
    base = MachOFileContents(DEMO, "demo").image.header_svma
    words = {
        0x08: 1 << 51 | (base + 0x123),  # a pointer as it is
        0x10: 1 << 63 | 0xBEEF << 32 | 2 << 51 | 0x456,  # signed, from the header
        0x20: 1 << 62 | 1 << 51 | 1,  # the second import
        0x28: 3 << 62 | 0xBEEF << 32 | 0,  # the first, signed
    }
    for place, word in words.items():
        struct.pack_into("<Q", data, DATA.fileoff + place, word)
    actual = pointers(data)
    assert actual.problem is None
    at = DATA.vmaddr
    assert [at + 0x08, at + 0x10] == actual.rebases.places.tolist()
    assert [base + 0x123, base + 0x456] == actual.rebases.targets.tolist()
    assert actual.symbols(np.array([at + 0x20, at + 0x28], np.uint64)) == ["_second", "_first"]
    assert actual.binds.addends.tolist() == [16, 0]


def test_every_word_into_a_fixed_image_is_a_pointer():
    """Except for bound words."""
    data = with_tables(DEMO, at_16=BIND_THREE)
    data[DATA.fileoff : DATA.fileoff + DATA.filesize] = bytes(DATA.filesize)
    for place, word in ((0x08, DATA.vmaddr), (0x10, DATA.vmaddr), (0x30, 0x1234)):
        struct.pack_into("<Q", data, DATA.fileoff + place, word)
    actual = pointers(data)
    assert actual.target(Svma(DATA.vmaddr + 0x08)) == DATA.vmaddr
    assert actual.target(Svma(DATA.vmaddr + 0x10)) is None
    assert actual.symbol(Svma(DATA.vmaddr + 0x10)) == "_first"
    assert actual.target(Svma(DATA.vmaddr + 0x30)) is None
    assert DATA.vmaddr + 0x08 in actual.rebases.places.tolist()
    assert DATA.vmaddr + 0x10 not in actual.rebases.places.tolist()


def old_image() -> bytes:
    """Build an i386 library from before LC_DYLD_INFO: relocations and symbol pointers."""
    commands = 2 * SEGMENT_COMMAND.size + SECTION.size + SYMTAB_COMMAND.size + DYSYMTAB_COMMAND.size
    strings = b"\0_imported\0_other\0"
    linkedit = 0x1100
    symbols = struct.pack("<IBBHIIBBHI", 1, 1, 0, 0, 0, 11, 1, 0, 0, 0)
    relocations = struct.pack("<II", 0x1008, 0 | 1 << 27 | 2 << 25)  # external: _imported
    relocations += struct.pack("<II", 0x1000, 1 | 2 << 25)  # local
    relocations += struct.pack("<II", 0x80000000 | 2 << 28 | 0x1004, 0x4010)  # scattered
    relocations += struct.pack("<II", 0x100C, 1 | 1 << 25)  # half a word
    table = symbols + relocations + struct.pack("<I", 1) + strings
    at = {"symbols": linkedit, "external": linkedit + len(symbols)}
    at |= {"local": at["external"] + 8, "indirect": at["external"] + 32}
    data = bytearray(0x100)
    struct.pack_into("<4I", data, 0, 0x4020, 0x4030, 0, 0x4040)
    load = b"".join(
        [
            SEGMENT_COMMAND.pack(
                *(LC_SEGMENT, SEGMENT_COMMAND.size, b"__TEXT", 0x3000, 0x1000, 0, 0x1000),
                *(5, 5, 0, 0),
            ),
            SEGMENT_COMMAND.pack(
                *(LC_SEGMENT, SEGMENT_COMMAND.size + SECTION.size, b"__DATA", 0x4000),
                *(0x1000, 0x1000, 0x100, 3, 3, 1, 0),
            ),
            SECTION.pack(b"__nl", b"__DATA", 0x4080, 4, 0x1080, 2, 0, 0, 6, 0, 0),
            SYMTAB_COMMAND.pack(
                *(LC_SYMTAB, SYMTAB_COMMAND.size, at["symbols"], 2),
                *(linkedit + len(table) - len(strings), len(strings)),
            ),
            DYSYMTAB_COMMAND.pack(
                *(LC_DYSYMTAB, DYSYMTAB_COMMAND.size, *(0,) * 4, 0, 2, *(0,) * 6),
                *(at["indirect"], 1, at["external"], 1, at["local"], 3),
            ),
        ]
    )
    header = MACH_HEADER.pack(MH_MAGIC, 7, 3, FileType.DYLIB.value, 4, commands, 0)
    return (header + load).ljust(0x1000, b"\0") + bytes(data) + table


def test_relocations_of_old_images_are_followed():
    """Plain and scattered local ones; external ones, and pointers of the indirect symbols."""
    actual = pointers(old_image())
    assert actual.problem is None
    assert dict(
        zip(actual.rebases.places.tolist(), actual.rebases.targets.tolist(), strict=True)
    ) == {0x4000: 0x4020, 0x4004: 0x4030}
    assert actual.symbol(Svma(0x4008)) == "_imported"
    assert actual.symbol(Svma(0x4080)) == "_other"
    assert actual.target(Svma(0x400C)) is None


class Memory:
    """An image in an address space, with an unreadable page."""

    def __init__(self, data: bytes, start: int, missing: int) -> None:
        self.data, self.start, self.missing = data, start, missing

    def read(self, address: Avma, size: int) -> bytes:
        """Read bytes of the image, unless some are of the missing page."""
        at = address - self.start
        inside = at >= 0 and at + size <= len(self.data)
        if not inside or (at < self.missing + 0x4000 and at + size > self.missing):
            raise MemoryReadError(address, size)
        return self.data[at : at + size]


SLIDE = 0x7C4000


@pytest.mark.parametrize("bits", [39, 47])
def test_pointers_in_memory_lose_slide_and_signature(bits):
    """Pointers into the image; one by one, and by a scan of the readable data."""
    data = bytearray(write_chained_image(6, {0: 0}, data_size=0x100000 - DATA_OFFSET))
    data_svma = IMAGE_SVMA + DATA_OFFSET
    struct.pack_into("<Q", data, 8, CPU_TYPE_ARM64 | ARM64E << 32)
    target = IMAGE_SVMA + 0x3010
    for place, word in (
        (0x00, target + SLIDE),
        (0x08, target + SLIDE | 0x5A << bits),
        (0x10, 0x600000001000),
        (0x8000, target + SLIDE),
    ):
        struct.pack_into("<Q", data, DATA_OFFSET + place, word)
    memory = Memory(bytes(data), IMAGE_SVMA + SLIDE, 0x8000)
    contents = MachOMemoryContents(memory, Avma(IMAGE_SVMA + SLIDE), "loaded")
    actual = parse_pointers(contents, pac_mask=PacMask.of_width(bits))
    assert actual.target(Svma(data_svma)) == target
    assert actual.target(Svma(data_svma + 8)) == target
    assert actual.target(Svma(data_svma + 0x10)) is None
    assert actual.target(Svma(data_svma + 0x4000)) is None  # cannot be read
    assert actual.symbol(Svma(data_svma)) is None
    assert [data_svma, data_svma + 8, data_svma + 0x8000] == actual.rebases.places.tolist()
    heap = actual.addresses(np.array([data_svma + 0x10], np.uint64))
    assert (int(heap[0]) + SLIDE) % (1 << bits) == 0x600000001000 % (1 << bits)
