"""Images found by their headers alone, where nothing says which there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from machtrace.formats.macho.command_numbers import LC_REQ_DYLD
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.structs import MACH_HEADER, MACH_HEADER_64_SIZE, MH_MAGIC, MH_MAGIC_64
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion

PAGE_SIZE = 4096
"""Headers lie at the start of a page; pages of 16 KiB are pages of 4 KiB, too."""

LOADED_TYPES = frozenset(
    filetype.value
    for filetype in (FileType.EXECUTE, FileType.DYLIB, FileType.DYLINKER, FileType.BUNDLE)
)

_COMMAND_LIMIT = 1 << 16
_COMMANDS_SIZE_LIMIT = 1 << 24
_LEAST_COMMAND_SIZE = 8
_KNOWN_COMMAND_LIMIT = 0x100
"""Above every number of a load command, LC_REQ_DYLD not counted."""


def scan_headers(regions: Iterable[MemoryRegion], cputype: int) -> Iterator[Avma]:
    """Addresses of what looks like the header of a loaded image for ``cputype``.

    Only the first word of each page is read, and more where it is a Mach-O magic number.
    """
    for region in regions:
        first = -region.start % PAGE_SIZE
        words = (len(region.data) - first) // 4
        if words <= 0:
            continue
        view = np.frombuffer(region.data, "<u4", count=words, offset=first)[:: PAGE_SIZE // 4]
        for page in np.flatnonzero((view == MH_MAGIC_64) | (view == MH_MAGIC)).tolist():
            offset = first + page * PAGE_SIZE
            if _is_header(region.data[offset:], cputype):
                yield Avma(region.start + offset)


def _is_header(data: bytes | memoryview, cputype: int) -> bool:
    if len(data) < MACH_HEADER_64_SIZE + _LEAST_COMMAND_SIZE:
        return False
    row = MACH_HEADER.unpack(data)
    size = MACH_HEADER_64_SIZE if row.magic == MH_MAGIC_64 else MACH_HEADER.size
    first_command = int.from_bytes(data[size : size + 4], "little") & ~LC_REQ_DYLD
    return (
        row.cputype == cputype
        and row.filetype in LOADED_TYPES
        and 0 < row.ncmds <= _COMMAND_LIMIT
        and row.ncmds * _LEAST_COMMAND_SIZE <= row.sizeofcmds <= _COMMANDS_SIZE_LIMIT
        and 0 < first_command < _KNOWN_COMMAND_LIMIT
    )
