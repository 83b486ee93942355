"""Small Mach-O files, thin and fat, of any width and byte order, made byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from machtrace.formats.macho.header import CPU_TYPE_ARM64, FileType
from machtrace.formats.macho.load_commands import (
    LC_DYLD_EXPORTS_TRIE,
    LC_FUNCTION_STARTS,
    LC_SEGMENT,
    LC_SEGMENT_64,
    LC_SYMTAB,
    LC_UUID,
)
from machtrace.formats.macho.structs import (
    FAT_ARCH,
    FAT_ARCH_64,
    FAT_MAGIC,
    FAT_MAGIC_64,
    LINKEDIT_DATA_COMMAND,
    MACH_HEADER,
    MH_MAGIC,
    MH_MAGIC_64,
    N_EXT,
    N_SECT,
    S_ATTR_PURE_INSTRUCTIONS,
    SECTION,
    SECTION_64,
    SEGMENT_COMMAND,
    SEGMENT_COMMAND_64,
    SYMTAB_COMMAND,
    UUID_COMMAND,
)

_NOBODY = UUID("01234567-89ab-cdef-0123-456789abcdef")
TEXT_OFFSET = 0x400
"""Where ``__text`` begins, from the header."""


class BuiltSymbol(NamedTuple):
    """An ``nlist`` entry to be, with its name."""

    name: str
    n_value: int
    n_type: int = N_SECT | N_EXT
    n_sect: int = 1
    n_desc: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinFile:
    """A Mach-O to be: ``__TEXT`` with one section of code, and ``__LINKEDIT``."""

    cputype: int = CPU_TYPE_ARM64
    cpusubtype: int = 0
    is_64: bool = True
    little_endian: bool = True
    filetype: FileType = FileType.BUNDLE
    vmaddr: int = 0
    """Address of ``__TEXT``."""
    code: bytes = bytes(64)
    symbols: tuple[BuiltSymbol, ...] = ()
    function_starts: bytes = b""
    """As encoded."""
    exports_trie: bytes = b""
    """As encoded."""
    uuid: UUID = _NOBODY

    def build(self) -> bytes:
        """Return the file's bytes."""
        order = "<" if self.little_endian else ">"
        nlist = Struct(order + ("IBBHQ" if self.is_64 else "IBBHI"))
        rows, names, at = [], [b"\0"], 1
        for symbol in self.symbols:
            kind = (symbol.n_type, symbol.n_sect, symbol.n_desc)
            rows.append(nlist.pack(at, *kind, symbol.n_value))
            names.append(symbol.name.encode() + b"\0")
            at += len(names[-1])
        table, strings = b"".join(rows), b"".join(names)
        linkedit_at = (TEXT_OFFSET + len(self.code) + 0xFF) & ~0xFF
        parts = (table, strings, self.function_starts, self.exports_trie)
        places = [linkedit_at]
        for part in parts:
            places.append(places[-1] + len(part))
        linkedit = b"".join(parts)

        commands = [
            self._segment("__TEXT", self.vmaddr, 0, linkedit_at, 5, self._text()),
            self._segment(
                "__LINKEDIT", self.vmaddr + linkedit_at, linkedit_at, len(linkedit), 1, b""
            ),
            UUID_COMMAND.pack(
                LC_UUID, UUID_COMMAND.size, self.uuid.bytes, little_endian=self.little_endian
            ),
            SYMTAB_COMMAND.pack(
                LC_SYMTAB,
                SYMTAB_COMMAND.size,
                places[0],
                len(self.symbols),
                places[1],
                len(strings),
                little_endian=self.little_endian,
            ),
            self._linkedit_data(LC_FUNCTION_STARTS, places[2], len(self.function_starts)),
            self._linkedit_data(LC_DYLD_EXPORTS_TRIE, places[3], len(self.exports_trie)),
        ]
        header = self._header(commands)
        return (header.ljust(TEXT_OFFSET, b"\0") + self.code).ljust(linkedit_at, b"\0") + linkedit

    def _header(self, commands: list[bytes]) -> bytes:
        header = MACH_HEADER.pack(
            MH_MAGIC_64 if self.is_64 else MH_MAGIC,
            self.cputype,
            self.cpusubtype,
            self.filetype.value,
            len(commands),
            sum(map(len, commands)),
            0,
            little_endian=self.little_endian,
        )
        return header + bytes(4 if self.is_64 else 0) + b"".join(commands)

    def _text(self) -> bytes:
        fields: tuple[int, ...] = (
            self.vmaddr + TEXT_OFFSET,
            len(self.code),
            TEXT_OFFSET,
            2,
            0,
            0,
            S_ATTR_PURE_INSTRUCTIONS,
            0,
            0,
        )
        layout = SECTION
        if self.is_64:
            layout, fields = SECTION_64, (*fields, 0)
        return layout.pack(b"__text", b"__TEXT", *fields, little_endian=self.little_endian)

    def _segment(
        self, name: str, vmaddr: int, offset: int, size: int, protection: int, sections: bytes
    ) -> bytes:
        layout, command, section = SEGMENT_COMMAND, LC_SEGMENT, SECTION
        if self.is_64:
            layout, command, section = SEGMENT_COMMAND_64, LC_SEGMENT_64, SECTION_64
        return (
            layout.pack(
                command,
                layout.size + len(sections),
                name.encode(),
                vmaddr,
                size,
                offset,
                size,
                protection,
                protection,
                len(sections) // section.size,
                0,
                little_endian=self.little_endian,
            )
            + sections
        )

    def _linkedit_data(self, command: int, offset: int, size: int) -> bytes:
        return LINKEDIT_DATA_COMMAND.pack(
            command, LINKEDIT_DATA_COMMAND.size, offset, size, little_endian=self.little_endian
        )


class BuiltSlice(NamedTuple):
    """A row of a fat header to be; ``offset`` and ``size`` may lie."""

    cputype: int
    cpusubtype: int
    offset: int
    size: int


def fat_file(
    slices: Sequence[BuiltSlice],
    contents: Sequence[tuple[int, bytes]],
    *,
    wide: bool = False,
    little_endian: bool = False,
) -> bytes:
    """Write a fat header with ``slices``, and ``contents`` each at its offset.

    Args:
        slices: the rows of the header.
        contents: bytes, and where they go.
        wide: whether offsets are of 64 bits (FAT_MAGIC_64).
        little_endian: the header's byte order; Apple's tools write it big-endian.
    """
    magic = FAT_MAGIC_64 if wide else FAT_MAGIC
    data = bytearray(Struct("<II" if little_endian else ">II").pack(magic, len(slices)))
    for row in slices:
        if wide:
            data += FAT_ARCH_64.pack(*row, 12, 0, little_endian=little_endian)
        else:
            data += FAT_ARCH.pack(*row, 12, little_endian=little_endian)
    for offset, content in contents:
        data += bytes(max(0, offset + len(content) - len(data)))
        data[offset : offset + len(content)] = content
    return bytes(data)
