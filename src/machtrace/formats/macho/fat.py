"""Fat files: several Mach-O files for several CPUs in one (``mach-o/fat.h``)."""

from __future__ import annotations

from machtrace.errors import MachOError
from machtrace.formats.macho.header import arch_name, arch_of, is_macho, parse_header
from machtrace.formats.macho.structs import FAT_ARCH, FAT_ARCH_64, FAT_MAGIC, FAT_MAGIC_64, FatArch
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset
from machtrace.model.arch import Arch

_HEADER_SIZE = 8
_FAT_MAGICS = {
    magic.to_bytes(4, order): (magic == FAT_MAGIC_64, order == "little")
    for magic in (FAT_MAGIC, FAT_MAGIC_64)
    for order in ("little", "big")
}
_MAX_SLICES = 43
"""A Java class file has the same magic, followed by its format's version, which is at least 45 (The
Java Virtual Machine Specification, section 4.1)."""


@dataclass(frozen=True, slots=True)
class FatSlice:
    """One thin Mach-O: a slice of a fat file, or a whole file."""

    cputype: int
    cpusubtype: int
    offset: FileOffset
    """The file offset of its header."""
    size: int
    """In bytes."""
    data: memoryview

    @property
    def arch(self) -> Arch | None:
        """The architecture; None for an unsupported one, such as ppc."""
        return arch_of(self.cputype, self.cpusubtype)

    @property
    def arch_name(self) -> str:
        """The name that ``lipo`` prints, of any CPU."""
        return arch_name(self.cputype, self.cpusubtype)


def is_fat(data: bytes | memoryview) -> bool:
    """Return whether ``data`` starts with a fat header, and not with a Java class file's."""
    magic = _FAT_MAGICS.get(bytes(data[:4]))
    if magic is None:
        return False
    count = int.from_bytes(data[4:8], "little" if magic[1] else "big")
    return count <= _MAX_SLICES or int.from_bytes(data[:4], "big") != FAT_MAGIC


def parse_slices(data: bytes | memoryview, source: str) -> tuple[FatSlice, ...]:
    """Return the Mach-O files in ``data``: those of a fat file in its order, or ``data`` itself.

    Raises:
        MachOError: ``data`` is neither, or its slices overlap, nest or overrun it.
    """
    view = memoryview(data)
    if not is_fat(view):
        header = parse_header(view, source)
        return (FatSlice(header.cputype, header.cpusubtype, FileOffset(0), len(view), view),)
    rows = parse_rows(view, source)
    wide, _ = _FAT_MAGICS[bytes(view[:4])]
    row_size = (FAT_ARCH_64 if wide else FAT_ARCH).size
    _check_ranges(rows, _HEADER_SIZE + len(rows) * row_size, len(view), source, row_size)
    return tuple(_slice(row, view, source) for row in rows)


def parse_rows(data: bytes | memoryview, source: str) -> tuple[FatArch, ...]:
    """Return the table of a fat file; what its rows refer to is not checked.

    Raises:
        MachOError: the header is truncated, or counts more slices than the file has room for.
    """
    wide, little_endian = _FAT_MAGICS[bytes(data[:4])]
    layout = FAT_ARCH_64 if wide else FAT_ARCH
    if len(data) < _HEADER_SIZE:
        raise MachOError("the fat header is truncated", source=source, offset=0)
    count = int.from_bytes(data[4:8], "little" if little_endian else "big")
    if count == 0 or _HEADER_SIZE + count * layout.size > len(data):
        raise MachOError(
            f"the fat header counts {count} slices, the file has {len(data)} bytes",
            source=source,
            offset=4,
        )
    table = data[_HEADER_SIZE : _HEADER_SIZE + count * layout.size]
    return tuple(layout.unpack_all(table, little_endian=little_endian))


def _slice(row: FatArch, view: memoryview, source: str) -> FatSlice:
    data = view[row.offset : row.offset + row.size]
    if not is_macho(data):
        raise MachOError(
            f"the {arch_name(row.cputype, row.cpusubtype)} slice holds no Mach-O",
            source=source,
            offset=row.offset,
            remedy="extract the slices with lipo -thin; unpack static libraries with ar",
        )
    return FatSlice(row.cputype, row.cpusubtype, FileOffset(row.offset), row.size, data)


def _check_ranges(
    rows: tuple[FatArch, ...], table_end: int, file_size: int, source: str, row_size: int
) -> None:
    """Raise an error if slices overlap each other or the header, or exceed the file."""
    last_end, last_name = table_end, "the fat header"
    for index, row in sorted(enumerate(rows), key=lambda numbered: numbered[1].offset):
        name = f"the {arch_name(row.cputype, row.cpusubtype)} slice"
        where = _HEADER_SIZE + index * row_size
        if row.offset + row.size > file_size:
            raise MachOError(
                f"{name} ends at {row.offset + row.size:#x}, the file at {file_size:#x}",
                source=source,
                offset=where,
                remedy="copy or download the file again; its end is missing",
            )
        if row.offset < last_end:
            raise MachOError(
                f"{name} starts at {row.offset:#x}, inside {last_name}, "
                f"which ends at {last_end:#x}",
                source=source,
                offset=where,
                remedy="rebuild the file with lipo -create from its thin files",
            )
        last_end, last_name = row.offset + row.size, name
