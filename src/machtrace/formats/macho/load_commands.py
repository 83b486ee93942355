"""Load commands as byte ranges, and their kinds (``mach-o/loader.h``: ``struct load_command``)."""

from __future__ import annotations

from typing import Literal

from machtrace.errors import MachOError
from machtrace.formats.macho.header import MachHeader
from machtrace.formats.macho.structs import Layout, RowT
from machtrace.frozen import dataclass

LC_REQ_DYLD = 0x80000000
LC_SEGMENT = 0x1
LC_SYMTAB = 0x2
LC_THREAD = 0x4
LC_UNIXTHREAD = 0x5
LC_DYSYMTAB = 0xB
LC_LOAD_DYLIB = 0xC
LC_ID_DYLIB = 0xD
LC_LOAD_DYLINKER = 0xE
LC_ID_DYLINKER = 0xF
LC_LOAD_WEAK_DYLIB = 0x18 | LC_REQ_DYLD
LC_SEGMENT_64 = 0x19
LC_UUID = 0x1B
LC_RPATH = 0x1C | LC_REQ_DYLD
LC_CODE_SIGNATURE = 0x1D
LC_SEGMENT_SPLIT_INFO = 0x1E
LC_REEXPORT_DYLIB = 0x1F | LC_REQ_DYLD
LC_LAZY_LOAD_DYLIB = 0x20
LC_ENCRYPTION_INFO = 0x21
LC_DYLD_INFO = 0x22
LC_DYLD_INFO_ONLY = 0x22 | LC_REQ_DYLD
LC_LOAD_UPWARD_DYLIB = 0x23 | LC_REQ_DYLD
LC_VERSION_MIN_MACOSX = 0x24
LC_VERSION_MIN_IPHONEOS = 0x25
LC_FUNCTION_STARTS = 0x26
LC_MAIN = 0x28 | LC_REQ_DYLD
LC_DATA_IN_CODE = 0x29
LC_SOURCE_VERSION = 0x2A
LC_DYLIB_CODE_SIGN_DRS = 0x2B
LC_ENCRYPTION_INFO_64 = 0x2C
LC_LINKER_OPTIMIZATION_HINT = 0x2E
LC_VERSION_MIN_TVOS = 0x2F
LC_VERSION_MIN_WATCHOS = 0x30
LC_NOTE = 0x31
LC_BUILD_VERSION = 0x32
LC_DYLD_EXPORTS_TRIE = 0x33 | LC_REQ_DYLD
LC_DYLD_CHAINED_FIXUPS = 0x34 | LC_REQ_DYLD
LC_FILESET_ENTRY = 0x35 | LC_REQ_DYLD
LC_ATOM_INFO = 0x36
LC_FUNCTION_VARIANTS = 0x37
LC_FUNCTION_VARIANT_FIXUPS = 0x38

COMMAND_NAMES = {
    value: name
    for name, value in tuple(globals().items())
    if name.startswith("LC_") and name != "LC_REQ_DYLD"
} | {
    0x3: "LC_SYMSEG",
    0x6: "LC_LOADFVMLIB",
    0x7: "LC_IDFVMLIB",
    0x8: "LC_IDENT",
    0x9: "LC_FVMFILE",
    0xA: "LC_PREPAGE",
    0x10: "LC_PREBOUND_DYLIB",
    0x11: "LC_ROUTINES",
    0x12: "LC_SUB_FRAMEWORK",
    0x13: "LC_SUB_UMBRELLA",
    0x14: "LC_SUB_CLIENT",
    0x15: "LC_SUB_LIBRARY",
    0x16: "LC_TWOLEVEL_HINTS",
    0x17: "LC_PREBIND_CKSUM",
    0x1A: "LC_ROUTINES_64",
    0x27: "LC_DYLD_ENVIRONMENT",
    0x2D: "LC_LINKER_OPTION",
    0x39: "LC_TARGET_TRIPLE",
    0x3A: "LC_LAZY_LOAD_DYLIB_INFO",
}
"""The name of every load command in ``loader.h``."""


_HEADER_SIZE = 8
_ALIGNMENT = 4
"""Documented as 8 for 64-bit files, but cores and some linkers write multiples of 4."""


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """One load command, not yet interpreted."""

    cmd: int
    offset: int
    """Bytes from the start of the Mach-O header."""
    data: memoryview
    """The whole command, ``cmd`` and ``cmdsize`` included."""
    little_endian: bool = True

    @property
    def name(self) -> str:
        """The name in ``loader.h``; the number if it is unknown."""
        return COMMAND_NAMES.get(self.cmd) or f"{self.cmd:#x}"

    def unpack(self, layout: Layout[RowT], source: str) -> RowT:
        """Return the command's fields.

        Raises:
            MachOError: the command is shorter than its fields.
        """
        if len(self.data) < layout.size:
            raise MachOError(
                f"{self.name} takes {layout.size} bytes, its cmdsize is {len(self.data)}",
                source=source,
                offset=self.offset,
            )
        return layout.unpack(self.data, little_endian=self.little_endian)

    def text(self, start: int) -> str:
        """Return the string at ``start`` in the command (``union lc_str``).

        It ends at the first NUL or with the command; empty if it starts outside.
        """
        return bytes(self.data[start:]).partition(b"\0")[0].decode("utf-8", "replace")


def parse_load_commands(
    header: MachHeader, data: bytes | memoryview, source: str
) -> tuple[LoadCommand, ...]:
    """Split ``data``, the ``sizeofcmds`` bytes after the header, into commands.

    Raises:
        MachOError: the commands contradict ``ncmds`` or ``sizeofcmds``.
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
