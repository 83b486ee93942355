"""The bytes of a 32-bit executable: header, load commands, segments, ``__LINKEDIT``."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct, pack
from typing import NamedTuple

from machtrace.formats.macho.build_version import BUILD_VERSION_COMMANDS
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.load_commands import (
    LC_DATA_IN_CODE,
    LC_DYLD_INFO_ONLY,
    LC_DYSYMTAB,
    LC_FUNCTION_STARTS,
    LC_MAIN,
    LC_SEGMENT,
    LC_SYMTAB,
    LC_UUID,
)
from machtrace.formats.macho.structs import (
    DYLD_INFO_COMMAND,
    DYSYMTAB_COMMAND,
    ENTRY_POINT_COMMAND,
    INDIRECT_SYMBOL_LOCAL,
    LINKEDIT_DATA_COMMAND,
    MACH_HEADER,
    MH_MAGIC,
    N_ARM_THUMB_DEF,
    N_EXT,
    N_PEXT,
    N_SECT,
    SECTION,
    SEGMENT_COMMAND,
    SYMTAB_COMMAND,
    UUID_COMMAND,
    VM_PROT_EXECUTE,
    VM_PROT_READ,
    VM_PROT_WRITE,
)
from tests.support.linker32.layout import HEADER_NAMES, Layout, LinkError, OutputSection, aligned
from tests.support.writers.function_lists import uleb, write_exports_trie

_NLIST = Struct("<IBBHI")
_DATA_IN_CODE = Struct("<IHH")
_MH_NOUNDEFS = 0x1
_REFERENCED_DYNAMICALLY = 0x10
_ALT_ENTRY = 0x200
_MAX_PROTECTION = VM_PROT_READ | VM_PROT_WRITE | VM_PROT_EXECUTE
_UUID_AT_LENGTH = 16


class _Segment(NamedTuple):
    name: str
    vmaddr: int
    vmsize: int
    fileoff: int
    filesize: int
    protection: int
    sections: Sequence[OutputSection] = ()

    def command(self) -> bytes:
        sections = b"".join(
            SECTION.pack(
                section.name.encode(),
                section.segment.encode(),
                section.address,
                section.size,
                0 if section.is_zerofill else section.address - self.vmaddr + self.fileoff,
                section.align,
                0,
                0,
                section.flags,
                section.reserved1,
                section.reserved2,
            )
            for section in self.sections
        )
        protection = self.protection
        return (
            SEGMENT_COMMAND.pack(
                LC_SEGMENT,
                SEGMENT_COMMAND.size + len(sections),
                self.name.encode(),
                self.vmaddr,
                self.vmsize,
                self.fileoff,
                self.filesize,
                _MAX_PROTECTION if protection else 0,
                protection,
                len(self.sections),
                0,
            )
            + sections
        )

    def bytes(self) -> bytes:
        data = bytearray(self.filesize)
        for section in self.sections:
            at = section.address - self.vmaddr
            data[at : at + len(section.data)] = section.data
        return bytes(data)


def write_executable(layout: Layout, entry: str, page_size: int, *, is_stripped: bool) -> bytes:
    """Write the file of a program whose sections are all laid out and linked.

    Raises:
        LinkError: nothing defines ``entry``, or the load commands do not fit before the code.
    """
    base = layout.header_address
    text = layout.in_segment("__TEXT")
    data = layout.in_segment("__DATA")
    text_size = aligned(text[-1].address + text[-1].size - base, page_size)
    segments = [
        _Segment("__PAGEZERO", 0, base, 0, 0, 0),
        _Segment("__TEXT", base, text_size, 0, text_size, VM_PROT_READ | VM_PROT_EXECUTE, text),
    ]
    if data:
        vmaddr = base + text_size
        stored = [s.address + s.size for s in data if not s.is_zerofill]
        size = aligned(max(stored, default=vmaddr) - vmaddr, page_size)
        vmsize = aligned(data[-1].address + data[-1].size - vmaddr, page_size)
        segments.append(
            _Segment("__DATA", vmaddr, vmsize, text_size, size, VM_PROT_READ | VM_PROT_WRITE, data)
        )
    end = segments[-1].vmaddr + segments[-1].vmsize
    fileoff = segments[-1].fileoff + segments[-1].filesize
    linkedit, commands = _linkedit(layout, fileoff, is_stripped=is_stripped)
    vmsize = aligned(len(linkedit), page_size)
    segments.append(_Segment("__LINKEDIT", end, vmsize, fileoff, len(linkedit), VM_PROT_READ))
    body = b"".join(segment.bytes() for segment in segments[1:-1])
    image = layout.units[0].file.contents.image
    start = layout.definition(entry)
    offset = layout.address_named(entry) - base
    if start is not None and start[1].n_desc & N_ARM_THUMB_DEF:
        offset |= 1  # dyld calls the command's address as it is
    commands = [
        *(segment.command() for segment in segments),
        *commands,
        UUID_COMMAND.pack(LC_UUID, UUID_COMMAND.size, _uuid(body)),
        *(bytes(command.data) for command in image.commands_of(*BUILD_VERSION_COMMANDS)),
        ENTRY_POINT_COMMAND.pack(LC_MAIN, ENTRY_POINT_COMMAND.size, offset, 0),
    ]
    header = MACH_HEADER.pack(
        MH_MAGIC,
        image.header.cputype,
        image.header.cpusubtype,
        FileType.EXECUTE.value,
        len(commands),
        sum(map(len, commands)),
        _MH_NOUNDEFS,
    ) + b"".join(commands)
    if base + len(header) > text[0].address:
        msg = f"load commands of {len(header)} bytes"
        raise LinkError(msg)
    return header + body[len(header) :] + linkedit


def _uuid(body: bytes) -> bytes:
    digest = bytearray(sha256(body).digest()[:_UUID_AT_LENGTH])
    digest[6] = digest[6] & 0x0F | 0x30  # version 3, which ld64 writes too
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def _linkedit(layout: Layout, at: int, *, is_stripped: bool) -> tuple[bytes, list[bytes]]:
    """The bytes of ``__LINKEDIT``, at this file offset, and the commands that describe them."""
    starts, in_code = _function_starts(layout), _data_in_code(layout)
    symbols = _Symbols(layout, is_stripped=is_stripped)
    indirect = _indirect_symbols(layout, symbols)
    trie = write_exports_trie(_exports(layout))
    parts = (starts, in_code, symbols.table, indirect, bytes(symbols.names), trie)
    places = [at]
    for part in parts:
        places.append(places[-1] + len(part))
    counts = symbols.counts
    indirect_place = (places[3] if indirect else 0, len(indirect) // 4)
    return b"".join(parts), [
        SYMTAB_COMMAND.pack(
            LC_SYMTAB,
            SYMTAB_COMMAND.size,
            places[2],
            sum(counts[1::2]),
            places[4],
            len(symbols.names),
        ),
        DYSYMTAB_COMMAND.pack(
            LC_DYSYMTAB, DYSYMTAB_COMMAND.size, *counts, *(6 * (0,)), *indirect_place, *(4 * (0,))
        ),
        DYLD_INFO_COMMAND.pack(
            LC_DYLD_INFO_ONLY, DYLD_INFO_COMMAND.size, *(8 * (0,)), places[5], len(trie)
        ),
        LINKEDIT_DATA_COMMAND.pack(
            LC_FUNCTION_STARTS, LINKEDIT_DATA_COMMAND.size, places[0], len(starts)
        ),
        LINKEDIT_DATA_COMMAND.pack(
            LC_DATA_IN_CODE, LINKEDIT_DATA_COMMAND.size, places[1], len(in_code)
        ),
    ]


def _function_starts(layout: Layout) -> bytes:
    starts: set[int] = set()
    for unit in layout.units:
        for symbol, output, address in unit.symbols():
            piece = unit.placed[symbol.n_sect][1]
            if piece.section.is_code and not symbol.n_desc & _ALT_ENTRY and output.size:
                is_thumb = bool(symbol.n_desc & N_ARM_THUMB_DEF)
                starts.add(address - layout.header_address | is_thumb)
    encoded, last = b"", 0
    for start in sorted(starts):
        encoded += uleb(start - last)
        last = start
    return (encoded + b"\0").ljust(aligned(len(encoded) + 1, 4), b"\0")


def _exports(layout: Layout) -> dict[str, int]:
    """Return the exported names and their offsets from the header."""
    exports = {HEADER_NAMES[0]: 0}
    for unit in layout.units:
        for symbol, _, address in unit.symbols():
            if symbol.n_type & (N_EXT | N_PEXT) == N_EXT:
                exports[symbol.name] = address - layout.header_address
    return exports


def _data_in_code(layout: Layout) -> bytes:
    rows = []
    for unit in layout.units:
        for address, size, kind in unit.file.data_in_code:
            rows.append((unit.address(address) - layout.header_address, size, kind))
    return b"".join(_DATA_IN_CODE.pack(*row) for row in sorted(rows))


class _Symbols:
    """The symbol table: local symbols, external ones, undefined ones."""

    def __init__(self, layout: Layout, *, is_stripped: bool) -> None:
        self.names = bytearray(b" \0")
        self._groups: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        self._undefined: dict[str, int] = {}
        header = layout.header_address
        self._add(HEADER_NAMES[0], N_SECT | N_EXT, 1, _REFERENCED_DYNAMICALLY, header)
        numbers = {id(section): number for number, section in enumerate(layout.sections, 1)}
        for unit in () if is_stripped else layout.units:
            for symbol, output, address in unit.symbols():
                n_sect = numbers[id(output)]
                self._add(symbol.name, symbol.n_type, n_sect, symbol.n_desc, address)
        for name in layout.undefined:
            self._undefined[name] = len(self._groups[2])
            self._add(name, N_EXT, 0, 0, 0)
        self.names += bytes(-len(self.names) % 4)

    def _add(self, name: str, n_type: int, n_sect: int, n_desc: int, address: int) -> None:
        row = _NLIST.pack(len(self.names), n_type, n_sect, n_desc, address)
        self._groups[(1 if n_sect else 2) if n_type & N_EXT else 0].append(row)
        self.names.extend(name.encode() + b"\0")

    @property
    def table(self) -> bytes:
        """The entries."""
        return b"".join(row for group in self._groups for row in group)

    @property
    def counts(self) -> tuple[int, ...]:
        """First and number of each group."""
        local, external, undefined = map(len, self._groups)
        return 0, local, local, external, local + external, undefined

    def number(self, name: str) -> int:
        """Return the ordinal of an undefined symbol's library; others are no matter of dyld's."""
        if name not in self._undefined:
            return INDIRECT_SYMBOL_LOCAL
        return len(self._groups[0]) + len(self._groups[1]) + self._undefined[name]


def _indirect_symbols(layout: Layout, symbols: _Symbols) -> bytes:
    numbers: list[int] = []
    for section in layout.sections:
        section.reserved1 = len(numbers) if section.indirect else 0
        numbers += [symbols.number(name) for name in section.indirect]
    return pack(f"<{len(numbers)}I", *numbers)
