"""What a file says that it is, from its first bytes: for looking at very many files."""

from __future__ import annotations

import os
from uuid import UUID

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.errors import FormatError
from machtrace.formats.macho.command_numbers import LC_UUID
from machtrace.formats.macho.fat import is_fat, parse_slices
from machtrace.formats.macho.header import is_macho, parse_header
from machtrace.formats.macho.load_commands import parse_load_commands
from machtrace.formats.macho.structs import UUID_COMMAND
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import Identifier

_ELF_MAGIC = b"\x7fELF"
_FIRST = 1 << 12
"""Bytes read of every file: enough for the load commands of most."""
_MOST_COMMANDS = 1 << 24
"""Bytes of load commands that are searched; those of the largest caches take some 100 KB."""


def identifiers_of(path: str) -> tuple[Identifier, ...]:
    """The identifiers of all images in a file; none where it is no image file.

    Raises:
        OSError, FormatError: it cannot be read, or only starts like an image.
    """
    # A named pipe must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        start = os.read(descriptor, _FIRST)
        if is_macho(start):
            return _thin(descriptor, start, path)
    finally:
        os.close(descriptor)
    if start.startswith(_ELF_MAGIC):
        build_id = ElfFileContents(open_image_file(path), path).image.build_id
        return () if build_id is None else (build_id,)
    if is_fat(start):
        found = (_uuid(part.data, path) for part in parse_slices(open_image_file(path), path))
        return tuple(uuid for uuid in found if uuid is not None)
    return ()


def _thin(descriptor: int, start: bytes, path: str) -> tuple[UUID, ...]:
    header = parse_header(start, path)
    size = header.size + header.sizeofcmds
    if size > len(start):
        if size > _MOST_COMMANDS:
            raise FormatError(f"{size} bytes of load commands", source=path, offset=0)
        start += os.read(descriptor, size - len(start))
    uuid = _uuid(start, path)
    return () if uuid is None else (uuid,)


def _uuid(data: bytes | memoryview, path: str) -> UUID | None:
    header = parse_header(data, path)
    commands = parse_load_commands(
        header, memoryview(data)[header.size : header.size + header.sizeofcmds], path
    )
    for command in commands:
        if command.cmd == LC_UUID:
            return UUID(bytes=command.unpack(UUID_COMMAND, path).uuid)
    return None
