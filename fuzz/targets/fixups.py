"""Pointers: chained fixups of all formats, rebase and bind opcodes, relocations.

An input is a Mach-O.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzz.mutation import Mutation, write_number
from fuzz.programs import macho_programs
from fuzz.target import ContractError, Target
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.chained_formats import POINTER_FORMATS
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.model.address import Svma
from machtrace.targets.emulator import PROGRAM
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    PAGE_SIZE,
    Import,
    ImportTable,
    write_chained_image,
)

_CACHE = Svma(0x180000000)
_LOOKUPS = 50


def run(data: bytes) -> None:
    """Read all pointers, and look some of them up."""
    pointers = parse_pointers(MachOFileContents(data, "fuzz"), shared_cache_base=_CACHE)
    rebases, binds = pointers.rebases, pointers.binds
    if len(rebases) + len(binds) > 2 * len(data) + 2:
        raise ContractError(f"{len(rebases)} and {len(binds)} pointers in {len(data)} bytes")
    for places in (rebases.places, binds.places):
        step = max(1, len(places) // _LOOKUPS)
        pointers.targets(places[::step])
        pointers.addresses(places[::step])
        pointers.symbols(places[::step])
        for at in places[::step].tolist():
            pointers.target(Svma(at))
            pointers.symbol(Svma(at))


def _seeds() -> Sequence[bytes]:
    seeds = [PROGRAM.read_bytes()]
    seeds += [
        bytes(program.data) for program in macho_programs() if program.image.dyld_info is not None
    ][:4]
    names = [Import("_printf"), Import("__ZTVN10__cxxabiv117__class_type_infoE", addend=16)]
    for number in POINTER_FORMATS:
        pointers: dict[int, int] = {}
        for place in range(8, 3 * PAGE_SIZE, 40):
            is_bind = place % 3 == 0 and number in (2, 6)
            pointers[place] = 1 << 63 | place & 1 if is_bind else place & 0xFFF
        table = ImportTable(
            imports=names, imports_format=1 + number % 3, is_compressed=number % 2 == 0
        )
        seeds.append(write_chained_image(number, pointers, imports=table))
    return seeds


def _payload(data: bytearray) -> int:
    """Where the table of an image that was made is; later commands may have moved."""
    return min(DATA_OFFSET + 4 * PAGE_SIZE, max(0, len(data) - 64))


def _change_header(data: bytearray, random: Random) -> None:
    """A number of the table's header."""
    choices = (0, 1, 2, 3, 32, len(data), random.getrandbits(8), 0xFFFFFFFF)
    write_number(data, _payload(data) + 4 * random.randrange(7), 4, random.choice(choices))


def _change_starts(data: bytearray, random: Random) -> None:
    """A number of the starts: sizes, formats, pages."""
    at = _payload(data) + 32 + 2 * random.randrange(32)
    choices = (0, 1, 8, 16, 0xFFFF, 0x8000, 0x8001, 0x1000, 0x4000, random.getrandbits(16))
    write_number(data, at, 2, random.choice(choices))


def _change_pointer(data: bytearray, random: Random) -> None:
    """A pointer in a chain."""
    at = DATA_OFFSET + 8 * random.randrange(3 * PAGE_SIZE // 8)
    if at + 8 <= len(data):
        write_number(data, at, 8, random.getrandbits(64))


def _fill_chains(data: bytearray, random: Random) -> None:
    """A run of pointers that all go to the next place: the longest chains."""
    at = DATA_OFFSET + 8 * random.randrange(3 * PAGE_SIZE // 8)
    word = random.choice((1 << 51, 1 << 52, 1 << 40, 1 << 26 | 1 << 58, 1 << 30 | 1 << 62))
    size = min(8 << random.randrange(14), max(0, len(data) - at)) & -8
    data[at : at + size] = word.to_bytes(8, "little") * (size // 8)


def _insert_opcodes(data: bytearray, random: Random) -> None:
    """Opcodes that repeat and skip, somewhere near the end."""
    at = max(0, len(data) - 1 - random.randrange(4096))
    tokens = (
        b"\x60\xff\xff\x7f",
        b"\x80\xff\xff\x03\x08",
        b"\xc0\xff\xff\x03\x08",
        b"\xd0\x10",
        b"\xd1",
        b"\x72\x00\x90",
        b"\x40_a\0",
    )
    token = random.choice(tokens)
    data[at : at + len(token)] = token


_MUTATIONS: tuple[Mutation, ...] = (
    _change_header,
    _change_starts,
    _change_starts,
    _change_pointer,
    _fill_chains,
    _insert_opcodes,
)

TARGET = Target("fixups", run, _seeds, _MUTATIONS)
