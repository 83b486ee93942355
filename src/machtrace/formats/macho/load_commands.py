"""Load commands, as a list of byte ranges (``mach-o/loader.h``: ``struct load_command``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from machtrace.errors import MachOError
from machtrace.formats.macho.command_numbers import COMMAND_NAMES
from machtrace.formats.macho.header import MachHeader
from machtrace.formats.macho.structs import Layout, RowT

_HEADER_SIZE = 8
_ALIGNMENT = 4
"""Of 64-bit files it should be 8, but cores and some linkers write multiples of 4."""


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """One load command, not yet interpreted."""

    cmd: int
    offset: int
    """Bytes from the start of the Mach-O header."""
    data: memoryview
    """All of it, ``cmd`` and ``cmdsize`` included."""
    little_endian: bool = True

    @property
    def name(self) -> str:
        """As in ``loader.h``; the number where it is not there."""
        return COMMAND_NAMES.get(self.cmd) or f"{self.cmd:#x}"

    def unpack(self, layout: Layout[RowT], source: str) -> RowT:
        """Its fields.

        Raises:
            MachOError: it is shorter than its fields.
        """
        if len(self.data) < layout.size:
            raise MachOError(
                f"{self.name} takes {layout.size} bytes, its cmdsize is {len(self.data)}",
                source=source,
                offset=self.offset,
            )
        return layout.unpack(self.data, little_endian=self.little_endian)

    def text(self, start: int) -> str:
        """The string that begins ``start`` bytes into it (``union lc_str``).

        It ends at the first NUL or at the command's end; empty if it begins outside.
        """
        return bytes(self.data[start:]).partition(b"\0")[0].decode("utf-8", "replace")


def parse_load_commands(
    header: MachHeader, data: bytes | memoryview, source: str
) -> tuple[LoadCommand, ...]:
    """Split ``data``, the ``sizeofcmds`` bytes after the header, into commands.

    Raises:
        MachOError: the commands do not fill ``ncmds`` and ``sizeofcmds`` as they claim.
    """
    view = memoryview(data)
    if header.ncmds * _HEADER_SIZE > len(view):
        raise MachOError(
            f"{header.ncmds} load commands do not fit in the {len(view)} bytes they are given",
            source=source,
            offset=16,
        )
    order: Literal["little", "big"] = "little" if header.little_endian else "big"
    commands = []
    at = 0
    for index in range(header.ncmds):
        cmd = int.from_bytes(view[at : at + 4], order)
        size = int.from_bytes(view[at + 4 : at + 8], order)
        if size < _HEADER_SIZE or size % _ALIGNMENT or at + size > len(view):
            raise MachOError(
                f"load command {index} of {header.ncmds} has the size {size}, "
                f"{len(view) - at} bytes are left",
                source=source,
                offset=header.size + at,
            )
        commands.append(
            LoadCommand(cmd, header.size + at, view[at : at + size], header.little_endian)
        )
        at += size
    return tuple(commands)
