"""Call-frame information of Mach-O and ELF, with ``.eh_frame_hdr``, rows and expressions.

An input is a byte that picks the flavour, two bytes with the size of ``.eh_frame_hdr``, that
section, and the call-frame information. The sections lie at the addresses below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

from fuzz.frames import STACK, try_rule
from fuzz.mutation import Mutation, insert_token, place, write_number
from fuzz.programs import elf_programs, macho_programs
from fuzz.target import Target
from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.headers import Section, Segment
from machtrace.formats.elf.structs import (
    LAYOUTS,
    PF_X,
    PT_GNU_EH_FRAME,
    PT_LOAD,
    ElfLayout,
    ElfType,
)
from machtrace.formats.macho.contents import MachOContents
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.of_macho import call_frame_rules

HEADER_AT = Svma(0x4000)
FRAMES_AT = Svma(0x20000)
_START = 3
_LOOKUPS = 6
_SHT_PROGBITS = 1


@dataclass(frozen=True, slots=True)
class _Flavour:
    arch: Arch
    layout: ElfLayout | None
    """None of a Mach-O."""
    is_debug_frame: bool = False
    has_sections: bool = True


_NARROW, _BIG, _WIDE = LAYOUTS[1, 1], LAYOUTS[2, 2], LAYOUTS[2, 1]
FLAVOURS = (
    _Flavour(Arch.ARM64, None),
    _Flavour(Arch.X86_64, None),
    _Flavour(Arch.I386, None),
    _Flavour(Arch.X86_64, _WIDE),
    _Flavour(Arch.ARM64, _WIDE),
    _Flavour(Arch.I386, _NARROW),
    _Flavour(Arch.ARM, _NARROW),
    _Flavour(Arch.X86_64, _WIDE, is_debug_frame=True),
    _Flavour(Arch.ARM64, _BIG, is_debug_frame=True),
    _Flavour(Arch.X86_64, _WIDE, has_sections=False),
)


class _Bytes:
    """Both sections, readable by address."""

    source = "fuzz"
    slide = 0
    is_loaded = True

    def __init__(self, header: memoryview, frames: memoryview, image: Any) -> None:  # noqa: ANN401
        self._parts = ((HEADER_AT, header), (FRAMES_AT, frames))
        self.image = image

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        for start, data in self._parts:
            if start <= address <= address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise MemoryReadError(address, size)

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        return self.read_svma(Svma(offset), size)

    def read_section(self, section: Section) -> memoryview:
        return self.read_svma(section.address, section.size)


class _ElfImage:
    """The headers that :class:`CallFrameRules` reads."""

    def __init__(self, flavour: _Flavour, header: int, frames: int) -> None:
        assert flavour.layout is not None  # noqa: S101 (of ELF flavours only)
        self.arch, self.layout, self.type = flavour.arch, flavour.layout, ElfType.SHARED
        self._end = Svma(FRAMES_AT + frames)
        name = ".debug_frame" if flavour.is_debug_frame else ".eh_frame"
        self._sections = {}
        if flavour.has_sections:
            self._sections[name] = _section(name, FRAMES_AT, frames)
            if header:
                self._sections[".eh_frame_hdr"] = _section(".eh_frame_hdr", HEADER_AT, header)
        self._header = _segment(PT_GNU_EH_FRAME, HEADER_AT, header)

    def section(self, name: str) -> Section | None:
        return self._sections.get(name)

    def segment(self, kind: int) -> Segment | None:
        return self._header if kind == PT_GNU_EH_FRAME else None

    def loaded_end(self, address: Svma) -> Svma | None:
        return self._end if FRAMES_AT <= address < self._end else None


def _section(name: str, address: Svma, size: int) -> Section:
    return Section(
        name=name,
        type=_SHT_PROGBITS,
        flags=0,
        address=address,
        offset=FileOffset(address),
        size=size,
        link=0,
        info=0,
        entry_size=0,
    )


def _segment(kind: int, address: Svma, size: int) -> Segment:
    return Segment(
        type=kind,
        flags=PF_X if kind == PT_LOAD else 0,
        address=address,
        offset=FileOffset(address),
        file_size=size,
        memory_size=size,
        alignment=8,
    )


def _macho_image(flavour: _Flavour, size: int) -> SimpleNamespace:
    section = SimpleNamespace(address=FRAMES_AT, size=size)
    header = SimpleNamespace(arch=flavour.arch)
    return SimpleNamespace(header=header, section=lambda *_: section)


def run(data: bytes) -> None:
    """Index the section, and look rules up at starts of functions, within and outside of them."""
    if len(data) < _START:
        return
    flavour = FLAVOURS[data[0] % len(FLAVOURS)]
    header_size = int.from_bytes(data[1:_START], "little")
    header = memoryview(data)[_START : _START + header_size]
    frames = memoryview(data)[_START + header_size :]
    if flavour.layout is None:
        contents = _Bytes(header, frames, _macho_image(flavour, len(frames)))
        rules = call_frame_rules(cast(MachOContents, contents))
    else:
        contents = _Bytes(header, frames, _ElfImage(flavour, len(header), len(frames)))
        rules = CallFrameRules.of_elf(cast(ElfContents, contents))
    if rules is None:
        return
    for address in _addresses(rules):
        try:
            try_rule(rules.rule_for(Svma(address), interrupted=True), flavour.arch)
        except MachtraceError:
            continue
    for offset in (0, 24, len(frames) // 2 & ~3):
        try:
            try_rule(rules.rule_at_fde_offset(offset, FRAMES_AT), flavour.arch)
        except MachtraceError:
            continue


def _addresses(rules: CallFrameRules) -> list[int]:
    addresses = [0, (1 << 64) - 1]
    for table in rules._tables:  # noqa: SLF001 (the target needs the addresses to look up)
        try:
            starts = table._indexed.index.starts.tolist()  # noqa: SLF001
        except MachtraceError:
            continue
        step = max(1, len(starts) // _LOOKUPS)
        for at, start in enumerate(starts[::step][:_LOOKUPS]):
            addresses += (start, start + 4 + 20 * at)
    return addresses


def _seeds() -> Sequence[bytes]:
    seeds = []
    for program in macho_programs():
        section = program.image.section("__TEXT", "__eh_frame")
        numbers = [i for i, f in enumerate(FLAVOURS) if f.arch is program.image.arch]
        if section is not None and numbers:
            frames = bytes(program.read_svma(section.address, section.size))
            seeds += [_input(numbers[0], b"", frames), _input(2, b"", frames)]
    for elf in elf_programs():
        for number, flavour in enumerate(FLAVOURS):
            if flavour.layout is None or flavour.arch is not elf.image.arch:
                continue
            header = b"" if flavour.is_debug_frame else _section_bytes(elf, ".eh_frame_hdr")
            name = ".debug_frame" if flavour.is_debug_frame else ".eh_frame"
            frames = _section_bytes(elf, name) or _section_bytes(elf, ".eh_frame")
            seeds.append(_input(number, header, frames))
    return [*seeds, *(_input(number, b"", _rich()) for number in range(len(FLAVOURS)))]


def _section_bytes(elf: Any, name: str) -> bytes:  # noqa: ANN401
    section = elf.image.section(name)
    return b"" if section is None else bytes(elf.read_section(section))


def _input(flavour: int, header: bytes, frames: bytes) -> bytes:
    return bytes((flavour,)) + len(header).to_bytes(2, "little") + header + frames


def _record(ident: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 4)
    return pack("<2I", len(body) + 4, ident) + body


_LOOP = b"\x31\x2f\xfc\xff"
_LOAD = b"\x77\x08\x06\x23\x08"
_EXPRESSIONS = (b"\x70\x08\x06", _LOOP, _LOAD, b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22")
_INSTRUCTIONS = (
    b"\x0a",
    b"\x0b",
    b"\x41",
    b"\x02\x10",
    b"\x03\x10\x01",
    b"\x04\x10\x00\x01\x00",
    b"\x01" + pack("<Q", 0x100040),
    b"\x85\x02",
    b"\xc5",
    b"\x05\x06\x03",
    b"\x06\x06",
    b"\x07\x10",
    b"\x08\x06",
    b"\x09\x06\x03",
    b"\x0c\x07\x10",
    b"\x0d\x06",
    b"\x0e\x20",
    b"\x11\x06\x7e",
    b"\x12\x07\x7e",
    b"\x13\x7d",
    b"\x14\x06\x02",
    b"\x15\x06\x7e",
    b"\x2c",
    b"\x2d",
    b"\x2e\x10",
    b"\x2f\x06\x02",
    *(b"\x0f" + bytes((len(e),)) + e for e in _EXPRESSIONS),
    *(b"\x10\x06" + bytes((len(e),)) + e for e in _EXPRESSIONS),
    *(b"\x16\x05" + bytes((len(e),)) + e for e in _EXPRESSIONS),
    *(b"\x16\x10" + bytes((len(e),)) + e for e in _EXPRESSIONS),
)


def _rich() -> bytes:
    """A CIE with all augmentations, a signal frame's, and FDEs that use every instruction."""
    frames = _record(0, b"\x01zRS\0\x01\x78\x10\x01\x00" + b"\x0c\x07\x08\x90\x01")
    cut = [_INSTRUCTIONS[at : at + 9] for at in range(0, len(_INSTRUCTIONS), 9)]
    for at, part in enumerate(cut):
        body = pack("<2Q", 0x100000 + 0x100 * at, 0x100) + b"\0" + b"\x41".join(part)
        frames += _record(len(frames) + 4, body)
    personality = b"\x03zPLRBG\0\x01\x7c\x1e\x0b\x00" + pack("<Q", STACK) + b"\x0b\x0b"
    start = len(frames)
    frames += _record(0, personality + b"\x0c\x1f\x00")
    body = pack("<2I", 0x200000, 0x40) + b"\x04\0\0\0\0" + b"\x41\x0e\x10\x9e\x01\x2d"
    return frames + _record(len(frames) + 4 - start, body) + b"\0\0\0\0"


def _change_record(data: bytearray, random: Random) -> None:
    """The length or the CIE of a record, found by going from one to the next."""
    at = _START + int.from_bytes(data[1:_START], "little")
    for _ in range(random.randrange(6)):
        size = int.from_bytes(data[at : at + 4], "little")
        if not 0 < size < len(data) - at:
            break
        at += 4 + size
    if at + 8 > len(data):
        return
    field = at + 4 * random.getrandbits(1)
    old = int.from_bytes(data[field : field + 4], "little")
    choices = (0, 4, old + random.randrange(-40, 41), len(data) - at, field - at, 0xFFFFFFFF)
    write_number(data, field, 4, random.choice(choices))


def _change_flavour(data: bytearray, random: Random) -> None:
    """The same bytes as those of another machine."""
    if data:
        data[0] = random.randrange(len(FLAVOURS))


def _extend_program(data: bytearray, random: Random) -> None:
    """Some instructions into a record, whose length grows with it."""
    at = _START + int.from_bytes(data[1:_START], "little")
    for _ in range(1 + random.randrange(6)):
        size = int.from_bytes(data[at : at + 4], "little")
        end = at + 4 + size
        if not 0 < size < len(data) - at:
            return
        if random.getrandbits(1):
            code = b"".join(random.choices(_INSTRUCTIONS, k=1 + random.randrange(8)))
            code += b"\0" * (-len(code) % 4)
            data[end:end] = code
            write_number(data, at, 4, size + len(code))
            return
        at = end


def _change_augmentation(data: bytearray, random: Random) -> None:
    """A letter or an encoding near the start of the records."""
    at = _START + int.from_bytes(data[1:_START], "little") + 8 + random.randrange(16)
    if at < len(data):
        data[at] = random.choice((*b"zPLRSBG\0e", 0x1B, 0x9B, 0x01, 0x0C, 0x50, 0xFF, 4))


def _repeat_instruction(data: bytearray, random: Random) -> None:
    """One instruction again and again, over what is there."""
    at = place(data, random)
    token = random.choice(_INSTRUCTIONS)
    count = min(len(data) - at, 1 << random.randrange(4, 12)) // len(token)
    data[at : at + count * len(token)] = token * count


_MUTATIONS: tuple[Mutation, ...] = (
    _change_record,
    _change_record,
    _change_flavour,
    _extend_program,
    _extend_program,
    _change_augmentation,
    _repeat_instruction,
    insert_token(_INSTRUCTIONS),
    insert_token(_EXPRESSIONS),
)

TARGET = Target("eh_frame", run, _seeds, _MUTATIONS)
