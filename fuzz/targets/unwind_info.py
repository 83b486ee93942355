"""``__unwind_info``: its tables, and the rules of compact encodings of all architectures.

An input is a byte that picks the architecture, and the section, which also serves as the code in
which x86 encodings look for the size of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from struct import pack, unpack_from
from types import SimpleNamespace
from typing import cast

from fuzz.frames import try_rule
from fuzz.mutation import Mutation, insert_token, place, write_number
from fuzz.programs import macho_programs
from fuzz.target import Target
from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.rules import UnwindRule, frame_pointer_rule
from machtrace.unwinder.sources.compact import CompactRules

ARCHITECTURES = (Arch.ARM64, Arch.X86_64, Arch.I386, Arch.ARMV7K, Arch.ARM64_32, Arch.ARM64E)
_HEADER_SIZE = 28
_LOOKUPS = 10


_IMAGE = SimpleNamespace(offset_of=lambda address: address, svma_of=lambda offset: offset)


@dataclass(frozen=True, slots=True)
class _Contents:
    """An image that starts at 0, with the section as all its code."""

    data: memoryview
    image: SimpleNamespace = field(default_factory=lambda: _IMAGE)
    source: str = "fuzz"

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        if address < 0 or address + size > len(self.data):
            raise MemoryReadError(address, size)
        return self.data[address : address + size]


@dataclass(frozen=True, slots=True)
class _CallFrames:
    arch: Arch

    def rule_at_fde_offset(self, offset: int, lookup: Svma, /) -> UnwindRule | None:
        return frame_pointer_rule(self.arch) if (offset ^ lookup) & 1 else None


def run(data: bytes) -> None:
    """Parse the section, and look rules up at both ends and in the middle of some pages."""
    if not data:
        return
    arch = ARCHITECTURES[data[0] % len(ARCHITECTURES)]
    section = memoryview(data)[1:]
    info = UnwindInfo(section, "fuzz")
    contents = cast(MachOContents, _Contents(section))
    rules = CompactRules(contents, arch, info, _CallFrames(arch))
    for offset in _offsets(section):
        try:
            try_rule(rules.rule_for(Svma(offset), interrupted=False), arch)
            entry = info.find(ImageOffset(offset))
            if entry is not None:
                info.personality(entry)
                info.lsda(entry)
        except MachtraceError:
            continue
    try:
        info.function_starts()
    except MachtraceError:
        return


def _offsets(section: memoryview) -> list[int]:
    """Where functions may start, by the words of the section itself."""
    words = len(section) // 4
    step = max(1, words // _LOOKUPS)
    offsets = [unpack_from("<I", section, 4 * at)[0] for at in range(0, words, step)][:_LOOKUPS]
    index, count = unpack_from("<2I", section, 20)
    for at in (0, count // 2, count - 2):
        if 0 <= index + 12 * at <= len(section) - 4:
            offsets.append(unpack_from("<I", section, index + 12 * at)[0] + 4)
    return offsets


def _seeds() -> Sequence[bytes]:
    seeds = []
    for program in macho_programs():
        section = program.image.section("__TEXT", "__unwind_info")
        if section is not None and program.image.arch in ARCHITECTURES:
            number = ARCHITECTURES.index(program.image.arch)
            seeds.append(bytes((number,)) + program.read_svma(section.address, section.size))
    return [*seeds, *(bytes((number,)) + _regular(number) for number in range(6))]


def _regular(salt: int) -> bytes:
    """A section with a regular page, which linkers write where a compressed one is not shorter."""
    page = pack("<I2H", 2, 8, 6)
    for at in range(6):
        page += pack("<2I", 0x1000 + 0x40 * at, (1 + (at + salt) % 5) << 24 | 0x10041 * at)
    start = _HEADER_SIZE + 8 + 4 + 2 * 12
    header = pack("<7I", 1, _HEADER_SIZE, 2, _HEADER_SIZE + 8, 1, _HEADER_SIZE + 12, 2)
    index = pack("<6I", 0x1000, start, start, 0x1200, 0, start)
    return header + pack("<3I", 0x02001000, 0x04000000, 0x2000) + index + page


def _change_header(data: bytearray, random: Random) -> None:
    """A number of the header: a place, or a count."""
    at = 1 + 4 * random.randrange(_HEADER_SIZE // 4)
    number = random.choice((0, 1, len(data), len(data) // 12, random.getrandbits(8), 0x15555555))
    write_number(data, at, 4, number)


def _change_index(data: bytearray, random: Random) -> None:
    """A number of the first-level index."""
    if len(data) < 1 + _HEADER_SIZE:
        return
    index, count = unpack_from("<2I", data, 21)
    at = index + 12 * random.randrange(max(1, min(count, 64))) + 4 * random.randrange(3)
    if at + 4 < len(data):
        choices = (0, random.randrange(len(data)), random.getrandbits(16), 0xFFFFFFFF)
        write_number(data, 1 + at, 4, random.choice(choices))


def _change_page(data: bytearray, random: Random) -> None:
    """A field of the header of a page."""
    if len(data) < 1 + _HEADER_SIZE:
        return
    (index,) = unpack_from("<I", data, 21)
    if index + 8 < len(data) - 1:
        (page,) = unpack_from("<I", data, 1 + index + 4)
        at = 1 + page + 2 * random.randrange(6)
        if at < len(data):
            write_number(data, at, 2, random.choice((0, 2, 3, 12, len(data), 0xFFFF)))


def _change_encoding(data: bytearray, random: Random) -> None:
    """An aligned word, by an encoding of some mode."""
    at = 1 + (place(data, random) & -4)
    encoding = random.getrandbits(32) & 0xF0FFFFFF | random.randrange(7) << 24
    write_number(data, at, 4, encoding)


_MUTATIONS: tuple[Mutation, ...] = (
    _change_header,
    *(_change_index, _change_index, _change_index, _change_index),
    *(_change_page, _change_page, _change_page),
    _change_encoding,
    _change_encoding,
    _change_encoding,
    insert_token([pack("<I2H", 2, 8, 9), pack("<I4H", 3, 12, 9, 48, 2)]),
)

TARGET = Target("unwind_info", run, _seeds, _MUTATIONS)
