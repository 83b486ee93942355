"""The object files in a linked image's debug map, without the rest of its symbol table.

:mod:`machtrace.formats.macho.tables.symtab` parses all. This needs no numpy, and so is cheap for
images without a debug map.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents, read_table

N_OSO = 0x66
_TYPE_OFFSET = 4
"""The offset of ``n_type`` in an ``nlist``."""
_MAX_PATH_LENGTH = 1 << 12
_SHARED_NAMES = 16
"""Maximum size of all paths together, in string tables: beyond, they overlap on purpose."""


class ObjectStab(NamedTuple):
    """An N_OSO."""

    name: str
    """The object file's path, or ``archive(member)``."""
    modified: int
    """The modification time in seconds since 1970; 0 if omitted."""


def object_stabs(contents: MachOFileContents) -> tuple[ObjectStab, ...]:
    """Return the object files in the order of the symbol table; none without a debug map.

    Raises:
        MachOError: the symbol table is not in the file, or its paths overlap.
    """
    command, header = contents.image.symtab, contents.image.header
    if command is None or command.nsyms == 0:
        return ()
    order = "<" if header.little_endian else ">"
    layout = Struct(f"{order}IBBHQ" if header.is_64 else f"{order}IBBHI")
    size = command.nsyms * layout.size
    table = read_table(contents, command.symoff, size, "the symbol table")
    rows = list(_rows(bytes(table[_TYPE_OFFSET :: layout.size])))
    if not rows:
        return ()
    strings = read_table(contents, command.stroff, command.strsize, "the string table")
    room = _SHARED_NAMES * len(strings) + len(rows)
    stabs = []
    for row in rows:
        at, _, _, _, modified = layout.unpack_from(table, row * layout.size)
        name = bytes(strings[at : at + _MAX_PATH_LENGTH]).partition(b"\0")[0] if at else b""
        room -= len(name)
        if room < 0:
            raise MachOError(
                "the paths of object files overlap", source=contents.source, offset=command.stroff
            )
        stabs.append(ObjectStab(name.decode("utf-8", "surrogateescape"), modified))
    return tuple(stabs)


def _rows(types: bytes) -> Iterator[int]:
    row = types.find(N_OSO)
    while row >= 0:
        yield row
        row = types.find(N_OSO, row + 1)
