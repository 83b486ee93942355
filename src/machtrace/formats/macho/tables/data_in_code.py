"""Data among the instructions: LC_DATA_IN_CODE (``mach-o/loader.h``, ``data_in_code_entry``)."""

from __future__ import annotations

from struct import Struct

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.formats.macho.load_commands import LC_DATA_IN_CODE
from machtrace.formats.macho.structs import LINKEDIT_DATA_COMMAND
from machtrace.model.address import ImageOffset, Svma

_ENTRY = Struct("<IHH")


def parse_data_in_code(contents: MachOContents) -> tuple[tuple[Svma, Svma], ...]:
    """Return the (start, end) of each table among code, ascending.

    Raises:
        MachOError: the command's table is not in the file, or not a whole number of entries.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    command = next(iter(contents.image.commands_of(LC_DATA_IN_CODE)), None)
    if command is None:
        return ()
    place = command.unpack(LINKEDIT_DATA_COMMAND, contents.source)
    if place.datasize % _ENTRY.size:
        raise MachOError(
            f"{place.datasize} bytes of data-in-code entries of {_ENTRY.size} bytes",
            source=contents.source,
            offset=place.dataoff,
        )
    if not place.datasize:
        return ()
    data = read_table(contents, place.dataoff, place.datasize, "the table of data in code")
    ranges = []
    for offset, length, _ in _ENTRY.iter_unpack(data):
        start = contents.image.svma_of(ImageOffset(offset))
        ranges.append((start, Svma(start + length)))
    return tuple(sorted(ranges))
