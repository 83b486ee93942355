"""The object files of a static library, each made an image that can be scanned as any other.

An object file refers to symbols by relocations (``mach-o/reloc.h``, ``mach-o/arm64/reloc.h``,
``mach-o/x86_64/reloc.h``). They are applied as a linker would, with stubs and pointers for symbols
of other files; nothing is resolved across object files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from machtrace.errors import FormatError, MachOError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import is_fat, parse_rows
from machtrace.formats.macho.header import FileType, arch_of
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.static_archive import archive_members, is_static_archive
from machtrace.formats.macho.structs import N_SECT, N_STAB, N_TYPE
from machtrace.formats.macho.tables.symtab import SymbolRows, parse_symbols
from machtrace.model.arch import Arch
from machtrace.model.text import printable

_BASE = 0x100000000
_MSG_SEND_STUB = "_objc_msgSend$"
_LC_SEGMENT_64, _LC_SYMTAB, _LC_DYSYMTAB, _LC_LOAD_DYLIB = 0x19, 0x2, 0xB, 0xC
_LC_DYLD_INFO_ONLY, _LC_LINKER_OPTION = 0x80000022, 0x2D
_STUB_SIZE, _MESSAGE_STUB_SIZE = 16, 32
_MAX_BYTES = 1 << 28
"""Bytes of a section, and of all sections together beyond the size of the file."""
_MASK = (1 << 64) - 1
_HEADER = struct.Struct("<IIIIIIII")
_SECTION = struct.Struct("<16s16sQQIIIIIIII")
_ZERO_FILL = (1, 12, 18)
_ARM_BRANCH, _ARM_PAGE, _ARM_OFFSET, _ARM_GOT_PAGE, _ARM_GOT_OFFSET, _ARM_ADDEND = 2, 3, 4, 5, 6, 10
_X86_BRANCH, _X86_GOT_LOAD, _X86_GOT = 2, 3, 4
_X86_SIGNED = frozenset({1, 2, 3, 4, 6, 7, 8})
_UNSIGNED, _ARM_SUBTRACTOR, _X86_SUBTRACTOR = 0, 1, 5


def archive_for(data: memoryview, preferred: tuple[Arch, ...], source: str) -> memoryview | None:
    """Return the static library in ``data``, of a fat file that of the best CPU; None if none."""
    if is_static_archive(data):
        return data
    if not is_fat(data):
        return None
    rows = {arch_of(row.cputype, row.cpusubtype): row for row in parse_rows(data, source)}
    for arch in (*preferred, *rows):
        row = rows.get(arch)
        if row is not None:
            part = data[row.offset : row.offset + row.size]
            return part if is_static_archive(part) else None
    return None


def linked_members(
    data: memoryview, source: str, problems: list[MachtraceError]
) -> Iterator[MachOFileContents]:
    """Yield the object files of a static library, each as an image; malformed ones are problems."""
    for member in archive_members(data, source):
        name = f"{source}({printable(member.name)})"
        if member.data is None:
            problems.append(FormatError("a thin archive's member", source=name, offset=0))
            continue
        try:
            yield linked_object(MachOFileContents(member.data, name))
        except MachtraceError as error:
            problems.append(error)


def linked_object(contents: MachOFileContents) -> MachOFileContents:
    """Return an object file as an image; any other file unchanged.

    Raises:
        MachOError: a table is not in the file, or its CPU is neither arm64 nor x86-64.
    """
    if contents.image.header.filetype is not FileType.OBJECT:
        return contents
    arch = contents.image.arch
    if not arch.is_arm64 and arch is not Arch.X86_64:
        raise MachOError(
            f"an object file for {arch.value} is not searched", source=contents.source, offset=0
        )
    return MachOFileContents(_Linker(contents).run(), contents.source)


class _Linker:
    def __init__(self, contents: MachOFileContents) -> None:
        self._contents = contents
        self._sections = contents.image.sections
        self._symbols: SymbolRows = parse_symbols(contents)
        self._values: list[int] = self._symbols.n_value.tolist()
        self._types: list[int] = self._symbols.n_type.tolist()
        self._section_numbers: list[int] = self._symbols.n_sect.tolist()
        self._is_arm = contents.image.arch.is_arm64
        self._data = bytearray()
        self._moves: list[int] = []
        self._headers: list[bytes] = []
        self._stubs: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._pointers: list[tuple[int, str | None]] = []
        """The offset of each pointer, and its symbol; None if it points into the image."""

    def run(self) -> memoryview:
        frameworks = self._frameworks()
        size = _HEADER.size + 72 + 80 * (len(self._sections) + 5) + 24 + 80 + 48
        size += sum(len(framework) for framework in frameworks)
        self._data = bytearray(size)
        if 8 * sum(section.nreloc for section in self._sections) > len(self._contents.data):
            raise MachOError("relocations overlap", source=self._contents.source, offset=0)
        relocations = [(section, self._relocations(section)) for section in self._sections]
        for section in self._sections:
            self._place(section)
        self._add_stubs(relocations)
        for number, (section, rows) in enumerate(relocations):
            self._relocate(section, self._moves[number], rows)
        return memoryview(self._finished(size, frameworks))

    # --- sections ---

    def _align(self, size: int = 16) -> int:
        self._data.extend(bytes(-len(self._data) % size))
        return len(self._data)

    def _place(self, section: Section) -> None:
        start = self._align(1 << min(section.align, 12))
        if section.type not in _ZERO_FILL:
            end = section.offset + section.size
            if end > len(self._contents.data):
                raise MachOError(
                    "a section is not in the file", source=self._contents.source, offset=start
                )
            self._data += self._contents.data[section.offset : end]
        else:
            self._data.extend(bytes(min(section.size, _MAX_BYTES)))
        if section.size > _MAX_BYTES or len(self._data) > len(self._contents.data) + _MAX_BYTES:
            raise MachOError("the sections are too large", source=self._contents.source, offset=0)
        self._moves.append(_BASE + start - section.address)
        self._add_header(
            section.name, section.segment_name, start, section.size, section.flags, section.align
        )

    def _add_header(
        self,
        name: str,
        segment: str,
        start: int,
        size: int,
        flags: int,
        align: int = 4,
        reserved: tuple[int, int] = (0, 0),
    ) -> None:
        fields = (_BASE + start, size, start, align, 0, 0, flags, *reserved, 0)
        self._headers.append(_SECTION.pack(_sixteen(name), _sixteen(segment), *fields))

    def _relocations(self, section: Section) -> list[tuple[int, int, int, int, bool, int]]:
        """Return the relocations: offset, kind, length, number, whether of a symbol, addend."""
        end = section.reloff + 8 * section.nreloc
        if end > len(self._contents.data):
            raise MachOError(
                "the relocations are not in the file",
                source=self._contents.source,
                offset=min(section.reloff, len(self._contents.data)),
            )
        raw = np.frombuffer(self._contents.data[section.reloff : end], "<u4").reshape(-1, 2)
        rows: list[tuple[int, int, int, int, bool, int]] = []
        addend = 0
        for at, info in raw.tolist():
            kind, length, number = info >> 28, info >> 25 & 3, info & 0xFFFFFF
            if self._is_arm and kind == _ARM_ADDEND:
                addend = number - (1 << 24) if number >> 23 else number
                continue
            is_symbol = bool(info >> 27 & 1)
            limit = len(self._values) if is_symbol else len(self._sections) + 1
            size = 8 if kind == _UNSIGNED else 4
            if at + max(size, 1 << length) <= section.size and number < limit:
                rows.append((at, kind, length, number, is_symbol, addend))
            addend = 0
        return rows

    # --- symbols of other files ---

    def _is_defined(self, number: int) -> bool:
        kind = self._types[number]
        within = 0 < self._section_numbers[number] <= len(self._sections)
        return not kind & N_STAB and kind & N_TYPE == N_SECT and within

    def _add_stubs(
        self, relocations: list[tuple[Section, list[tuple[int, int, int, int, bool, int]]]]
    ) -> None:
        branches: dict[int, None] = {}
        slots: dict[int, None] = {}
        branch = _ARM_BRANCH if self._is_arm else _X86_BRANCH
        loads = (_ARM_GOT_PAGE, _ARM_GOT_OFFSET, 7) if self._is_arm else (_X86_GOT_LOAD, _X86_GOT)
        for _, rows in relocations:
            for _, kind, _, number, is_symbol, _ in rows:
                if is_symbol and kind in loads:
                    slots[number] = None
                elif is_symbol and kind == branch and not self._is_defined(number):
                    branches[number] = None
        messages = {
            number: name[len(_MSG_SEND_STUB) :]
            for number in branches
            if (name := self._symbols.name(number)).startswith(_MSG_SEND_STUB)
        }
        plain = [number for number in branches if number not in messages]
        self._order = [*plain, *slots]
        start = self._align()
        for index, number in enumerate(plain):
            self._stubs[number] = start + index * _STUB_SIZE
        self._data.extend(bytes(_STUB_SIZE * len(plain)))
        size = _STUB_SIZE * len(plain)
        self._add_header("__stubs", "__TEXT", start, size, 0x80000408, 4, (0, _STUB_SIZE))
        start = self._align()
        for index, number in enumerate(slots):
            self._slots[number] = start + index * 8
            if self._is_defined(number):
                self._data += struct.pack("<Q", self._address(number))
                self._pointers.append((start + index * 8, None))
            else:
                self._data.extend(bytes(8))
                self._pointers.append((start + index * 8, self._symbols.name(number)))
        self._add_header("__got", "__DATA", start, 8 * len(slots), 6, 3, (len(plain), 0))
        self._add_message_stubs(messages)

    def _add_message_stubs(self, messages: dict[int, str]) -> None:
        """Add the stubs that set a selector and call ``objc_msgSend``."""
        start = self._align()
        names: list[int] = []
        for selector in messages.values():
            names.append(len(self._data))
            self._data += selector.encode() + b"\0"
        size = len(self._data) - start
        self._add_header("__objc_methname", "__TEXT", start, size, 2, 0)
        selectors = self._align()
        for at in names:
            self._pointers.append((len(self._data), None))
            self._data += struct.pack("<Q", _BASE + at)
        self._add_header("__objc_selrefs", "__DATA", selectors, 8 * len(names), 0x10000005, 3)
        stubs = self._align(_MESSAGE_STUB_SIZE)
        for index, number in enumerate(messages):
            at = len(self._data)
            self._stubs[number] = at
            slot = selectors + 8 * index
            if self._is_arm:
                page = (slot >> 12) - (at >> 12)
                adrp = 0x90000001 | (page & 3) << 29 | (page >> 2 & 0x7FFFF) << 5
                load = 0xF9400021 | (slot & 0xFFF) >> 3 << 10
                code = struct.pack("<III", adrp, load, 0xD61F0200)  # adrp, ldr x1, br x16
            else:
                code = b"\x48\x8b\x35" + struct.pack("<i", slot - (at + 7)) + b"\xff\x25\0\0\0\0"
            self._data += code.ljust(_MESSAGE_STUB_SIZE, b"\0")
        size = _MESSAGE_STUB_SIZE * len(messages)
        self._add_header("__objc_stubs", "__TEXT", stubs, size, 0x80000400, 5)

    # --- relocations ---

    def _address(self, number: int) -> int:
        """Return the address of a symbol; 0 if another file defines it."""
        if not self._is_defined(number):
            return 0
        move = self._moves[self._section_numbers[number] - 1]
        return (self._values[number] + move) & _MASK

    def _relocate(
        self, section: Section, move: int, rows: list[tuple[int, int, int, int, bool, int]]
    ) -> None:
        if section.segment_name == "__DWARF" or section.name in ("__eh_frame", "__compact_unwind"):
            return
        subtractor = _ARM_SUBTRACTOR if self._is_arm else _X86_SUBTRACTOR
        is_difference = False
        for at, kind, length, number, is_symbol, addend in rows:
            place = section.address + move - _BASE + at
            if kind == subtractor:
                is_difference = True
            elif kind == _UNSIGNED:
                if not is_difference and length == 3:  # noqa: PLR2004 - 8 bytes
                    self._point(place, number, is_symbol=is_symbol)
                is_difference = False
            elif self._is_arm:
                if is_symbol:
                    self._relocate_arm(place, kind, number, addend)
            elif kind in _X86_SIGNED:
                self._relocate_x86(place, kind, number, move, is_symbol=is_symbol)

    def _point(self, place: int, number: int, *, is_symbol: bool) -> None:
        stored = int.from_bytes(self._data[place : place + 8], "little")
        if is_symbol and not self._is_defined(number):
            self._pointers.append((place, self._symbols.name(number)))
            return
        if is_symbol:
            stored += self._address(number)
        elif number:
            stored += self._moves[number - 1]
        self._data[place : place + 8] = struct.pack("<Q", stored & _MASK)
        self._pointers.append((place, None))

    def _target(self, kind: int, number: int, got: tuple[int, ...], branch: int) -> int:
        if kind in got:
            return _BASE + self._slots[number]
        if kind == branch and number in self._stubs:
            return _BASE + self._stubs[number]
        return self._address(number)

    def _relocate_arm(self, place: int, kind: int, number: int, addend: int) -> None:
        word = int.from_bytes(self._data[place : place + 4], "little")
        got = (_ARM_GOT_PAGE, _ARM_GOT_OFFSET)
        target = self._target(kind, number, got, _ARM_BRANCH) + addend
        if target <= 0:
            return
        if kind == _ARM_BRANCH:
            word = word & 0xFC000000 | (target - _BASE - place >> 2) & 0x03FFFFFF
        elif kind in (_ARM_PAGE, _ARM_GOT_PAGE):
            page = (target >> 12) - (_BASE + place >> 12)
            word = word & 0x9F00001F | (page & 3) << 29 | (page >> 2 & 0x7FFFF) << 5
        elif kind in (_ARM_OFFSET, _ARM_GOT_OFFSET):
            # A load's offset counts in units of its size, which its two highest bits state.
            is_load = word & 0x3B000000 == 0x39000000  # noqa: PLR2004 - LDR or STR, unsigned offset
            scale = word >> 30 if is_load else 0
            if is_load and word & 0x04800000 == 0x04800000:  # noqa: PLR2004 - of 16 bytes
                scale = 4
            word = word & ~(0xFFF << 10) | ((target & 0xFFF) >> scale) << 10
        else:
            return
        self._data[place : place + 4] = struct.pack("<I", word)

    def _relocate_x86(
        self, place: int, kind: int, number: int, move: int, *, is_symbol: bool
    ) -> None:
        (stored,) = struct.unpack_from("<i", self._data, place)
        if is_symbol:
            target = self._target(kind, number, (_X86_GOT_LOAD, _X86_GOT), _X86_BRANCH)
            if not target:
                return
            stored += target - (_BASE + place + 4)
        elif number:
            stored += self._moves[number - 1] - move
        if -(1 << 31) <= stored < 1 << 31:
            struct.pack_into("<i", self._data, place, stored)

    # --- the image ---

    def _frameworks(self) -> list[bytes]:
        """Return a load command for each framework that the object file requests."""
        commands: dict[bytes, None] = {}
        for command in self._contents.image.commands_of(_LC_LINKER_OPTION):
            words = bytes(command.data[12:]).split(b"\0")
            for option, name in pairwise(words):
                if option == b"-framework" and name:
                    text = name + b"\0" * (8 - len(name) % 8)
                    head = struct.pack("<6I", _LC_LOAD_DYLIB, 24 + len(text), 24, 0, 0, 0)
                    commands[head + text] = None
        return list(commands)

    def _symbol_table(self) -> tuple[bytes, bytes, int]:
        names = bytearray(b"\0")
        rows = bytearray()
        count = 0
        self._new_numbers: dict[int, int] = {}
        for number, kind in enumerate(self._types):
            if kind & N_STAB:
                continue
            self._new_numbers[number] = count
            count += 1
            value = self._address(number)
            rows += struct.pack(
                "<IBBHQ",
                len(names),
                kind,
                self._section_numbers[number] if value else 0,
                0,
                value,
            )
            names += self._symbols.name_bytes(number) + b"\0"
        return bytes(rows), bytes(names), count

    def _finished(self, size: int, frameworks: list[bytes]) -> bytearray:
        rows, names, count = self._symbol_table()
        indirect = struct.pack(
            f"<{len(self._order)}I", *(self._new_numbers.get(each, 0) for each in self._order)
        )
        content = len(self._data)
        tables: list[tuple[int, int]] = []
        for table in (self._rebases(), self._binds(), rows, names, indirect):
            tables.append((self._align(8), len(table)))
            self._data += table
        rebases, binds, symbols, strings, indirects = tables
        commands = [
            struct.pack(
                "<II16sQQQQIIII",
                _LC_SEGMENT_64,
                72 + 80 * len(self._headers),
                b"__TEXT",
                _BASE,
                content,
                0,
                content,
                7,
                7,
                len(self._headers),
                0,
            )
            + b"".join(self._headers),
            struct.pack("<12I", _LC_DYLD_INFO_ONLY, 48, *rebases, *binds, 0, 0, 0, 0, 0, 0),
            struct.pack("<6I", _LC_SYMTAB, 24, symbols[0], count, *strings),
            struct.pack(
                "<20I", _LC_DYSYMTAB, 80, *([0] * 12), indirects[0], len(self._order), 0, 0, 0, 0
            ),
            *frameworks,
        ]
        joined = b"".join(commands)
        magic, cpu, subtype = struct.unpack_from("<III", self._contents.data)
        head = _HEADER.pack(magic, cpu, subtype, 6, len(commands), len(joined), 0, 0)
        if len(head) + len(joined) > size:
            raise MachOError("too many commands", source=self._contents.source, offset=0)
        self._data[: len(head) + len(joined)] = head + joined
        return self._data

    def _rebases(self) -> bytes:
        inside = sorted(at for at, symbol in self._pointers if symbol is None)
        return b"\x11" + b"".join(b"\x20" + _uleb(at) + b"\x51" for at in inside) + b"\0"

    def _binds(self) -> bytes:
        bound = sorted((at, symbol) for at, symbol in self._pointers if symbol is not None)
        return b"\x11\x51" + b"".join(
            b"\x40" + symbol.encode("utf-8", "surrogateescape") + b"\0\x70" + _uleb(at) + b"\x90"
            for at, symbol in bound
        ) + b"\0"  # fmt: skip


def _sixteen(name: str) -> bytes:
    return name.encode("utf-8", "replace")[:16]


def _uleb(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
