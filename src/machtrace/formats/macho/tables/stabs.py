"""Which object files a linked image names, without reading the rest of its symbol table.

See :mod:`machtrace.formats.macho.tables.symtab`, which reads all; this needs no columns, and so
costs little where it is only asked whether there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import FileContents, read_table

N_OSO = 0x66
_TYPE_OFFSET = 4
"""Of ``n_type`` in an ``nlist``."""
_LONGEST_PATH = 1 << 12
_SHARED_NAMES = 16
"""How many times over the string table may be used before paths must be overlapping on purpose."""


class ObjectStab(NamedTuple):
    """An N_OSO."""

    name: str
    """The object file's path, or ``archive(member)``."""
    modified: int
    """When it was changed, in seconds since 1970; 0 where that was left out."""


def object_stabs(contents: FileContents) -> tuple[ObjectStab, ...]:
    """The object files in the order of the symbol table; none where there is no debug map.

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
    found = []
    for row in rows:
        at, _, _, _, modified = layout.unpack_from(table, row * layout.size)
        name = bytes(strings[at : at + _LONGEST_PATH]).partition(b"\0")[0] if at else b""
        room -= len(name)
        if room < 0:
            raise MachOError(
                "the paths of object files overlap", source=contents.source, offset=command.stroff
            )
        found.append(ObjectStab(name.decode("utf-8", "surrogateescape"), modified))
    return tuple(found)


def _rows(types: bytes) -> Iterator[int]:
    row = types.find(N_OSO)
    while row >= 0:
        yield row
        row = types.find(N_OSO, row + 1)
