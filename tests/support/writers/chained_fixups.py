"""Images with chained fixups of every kind (``mach-o/fixup-chains.h``), made byte by byte.

The available linkers write two of the pointer formats and one of import tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import pack, pack_into

from machtrace.formats.macho.fixups.chained_formats import POINTER_FORMATS, PointerFormat
from machtrace.formats.macho.header import CPU_TYPE_ARM64, FileType
from machtrace.formats.macho.load_commands import LC_DYLD_CHAINED_FIXUPS, LC_SEGMENT_64
from machtrace.formats.macho.structs import (
    LINKEDIT_DATA_COMMAND,
    MACH_HEADER,
    MH_MAGIC_64,
    S_ATTR_PURE_INSTRUCTIONS,
    SECTION_64,
    SEGMENT_COMMAND_64,
)

IMAGE_SVMA = 1 << 32
"""Where the header of an image is."""
DATA_OFFSET = 0x4000
"""Where its data is, in the file and from the header."""
PAGE_SIZE = 0x1000
TEXT_OFFSET = 0x3000
"""Where its code is, from the header."""

_TEXT = (("__text", TEXT_OFFSET, DATA_OFFSET - TEXT_OFFSET),)
_NONE, _MULTI, _LAST = 0xFFFF, 0x8000, 0x8000
_READ_EXECUTE, _READ_WRITE, _READ = 5, 3, 1


@dataclass(frozen=True, slots=True)
class Import:
    """An imported symbol that a bind names."""

    name: str
    addend: int = 0
    library: int = -2
    """The ordinal of the library among those linked with, from 1; -2: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTable:
    """How imports are written."""

    imports: Sequence[Import] = ()
    imports_format: int = 1
    is_compressed: bool = False

    def table(self) -> tuple[bytes, bytes]:
        """Return the records, and the strings that they point into."""
        strings = bytearray(b"\0")
        records = bytearray()
        for entry in self.imports:
            library, at = entry.library, len(strings)
            strings += entry.name.encode() + b"\0"
            if self.imports_format == 3:
                records += pack("<Qq", library & 0xFFFF | at << 32, entry.addend)
                continue
            records += pack("<I", library & 0xFF | at << 9)
            if self.imports_format == 2:
                records += pack("<i", entry.addend)
        packed = zlib.compress(bytes(strings)) if self.is_compressed else bytes(strings)
        return bytes(records), packed


def write_chained_image(
    number: int,
    pointers: Mapping[int, int],
    *,
    data_size: int = 4 * PAGE_SIZE,
    imports: ImportTable | None = None,
    max_valid_pointer: int = 0,
    cpu: tuple[int, int] = (CPU_TYPE_ARM64, 0),
    contents: bytes = b"",
    sections: Sequence[tuple[str, int, int]] = (),
) -> bytes:
    """Write an image whose data has ``pointers``, chained.

    Args:
        number: of the pointer format.
        pointers: of each place in the data, ascending: the raw pointer without its distance to
            the next.
        data_size: in bytes, a multiple of the page size.
        imports: the symbols that binds name.
        max_valid_pointer: the field of the table.
        cpu: type and subtype.
        contents: what the data is besides.
        sections: of the data, each with its name, place and size; none: one for all.
    """
    pointer_format = POINTER_FORMATS[number]
    data = bytearray(contents.ljust(data_size, b"\0"))
    starts = _chained(data, pointers, pointer_format)
    payload = _payload(number, starts, imports or ImportTable(), max_valid_pointer)
    linkedit = DATA_OFFSET + data_size
    commands = (
        _segment("__TEXT", 0, DATA_OFFSET, _READ_EXECUTE, _TEXT)
        + _segment(
            "__DATA", DATA_OFFSET, data_size, _READ_WRITE, sections or [("__data", 0, data_size)]
        )
        + _segment("__LINKEDIT", linkedit, len(payload), _READ)
        + LINKEDIT_DATA_COMMAND.pack(
            LC_DYLD_CHAINED_FIXUPS, LINKEDIT_DATA_COMMAND.size, linkedit, len(payload)
        )
    )
    header = MACH_HEADER.pack(MH_MAGIC_64, *cpu, FileType.BUNDLE.value, 4, len(commands), 0x85)
    text = (header + bytes(4) + commands).ljust(DATA_OFFSET, b"\0")
    return text + bytes(data) + payload


def _segment(
    name: str,
    offset: int,
    size: int,
    protection: int,
    sections: Sequence[tuple[str, int, int]] = (),
) -> bytes:
    command = SEGMENT_COMMAND_64.pack(
        LC_SEGMENT_64, SEGMENT_COMMAND_64.size + len(sections) * SECTION_64.size, name.encode(),
        IMAGE_SVMA + offset, -(-size // PAGE_SIZE) * PAGE_SIZE, offset, size,
        protection, protection, len(sections), 0,
    )  # fmt: skip
    flags = S_ATTR_PURE_INSTRUCTIONS if name == "__TEXT" else 0
    return command + b"".join(
        SECTION_64.pack(
            section.encode(), name.encode(), IMAGE_SVMA + offset + at, length, offset + at,
            3, 0, 0, flags, 0, 0, 0,
        )
        for section, at, length in sections
    )  # fmt: skip


def _chained(
    data: bytearray, pointers: Mapping[int, int], pointer_format: PointerFormat
) -> list[list[int]]:
    """Write the pointers; of each page, the places in it where chains start."""
    code = "<Q" if pointer_format.size == 8 else "<I"
    farthest = ((1 << pointer_format.next_bits) - 1) * pointer_format.stride
    starts: list[list[int]] = [[] for _ in range(len(data) // PAGE_SIZE)]
    places = sorted(pointers)
    previous = -1
    ends = [*places[1:], len(data) + farthest + 1]
    for place, following in zip(places, ends, strict=False):
        page = place // PAGE_SIZE
        if previous // PAGE_SIZE != page or place - previous > farthest or previous < 0:
            starts[page].append(place % PAGE_SIZE)
        distance = following - place
        steps = distance // pointer_format.stride
        if distance > farthest or following // PAGE_SIZE != page:
            steps = 0
        pack_into(code, data, place, pointers[place] | steps << pointer_format.next_shift)
        previous = place
    return starts


def _payload(
    number: int, starts: list[list[int]], imports: ImportTable, max_valid_pointer: int
) -> bytes:
    firsts: list[int] = []
    lists: list[int] = []
    for page in starts:
        if len(page) > 1:
            firsts.append(_MULTI | (len(starts) + len(lists)))
            lists += [*page[:-1], page[-1] | _LAST]
        else:
            firsts.append(page[0] if page else _NONE)
    halves = pack(f"<{len(firsts) + len(lists)}H", *firsts, *lists)
    in_segment = pack(
        "<I2HQIH", 22 + len(halves), PAGE_SIZE, number, DATA_OFFSET, max_valid_pointer, len(firsts)
    )
    in_image = pack("<4I", 3, 0, 16, 0) + in_segment + halves
    in_image += bytes(-len(in_image) % 8)
    records, strings = imports.table()
    starts_offset = 32
    imports_offset = starts_offset + len(in_image)
    header = pack(
        "<7I", 0, starts_offset, imports_offset, imports_offset + len(records),
        len(imports.imports), imports.imports_format, int(imports.is_compressed),
    )  # fmt: skip
    return header.ljust(starts_offset, b"\0") + in_image + records + strings
