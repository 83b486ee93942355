"""Small files with debug information, and the bundles that they lie in, made byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from machtrace.formats.macho.header import CPU_TYPE_ARM64, FileType
from machtrace.formats.macho.load_commands import LC_SEGMENT_64, LC_UUID
from machtrace.formats.macho.structs import (
    MACH_HEADER,
    MACH_HEADER_64_SIZE,
    MH_MAGIC_64,
    S_ATTR_DEBUG,
    SECTION_64,
    SEGMENT_COMMAND_64,
    UUID_COMMAND,
)
from tests.support.writers.macho import BuiltSlice, fat_file

_DATA_OFFSET = 0x400
_SLICE_ALIGNMENT = 0x1000


def dwarf_file(
    uuid: UUID,
    *,
    cputype: int = CPU_TYPE_ARM64,
    cpusubtype: int = 0,
    header_svma: int = 1 << 32,
    debug_info: bytes = b"\1\2\3\4",
) -> bytes:
    """Write a dSYM's Mach-O: ``__TEXT`` without its bytes, and ``__DWARF,__debug_info``.

    The latter makes no sense; it is there.
    """
    section = SECTION_64.pack(
        b"__debug_info", b"__DWARF", 0, len(debug_info),
        _DATA_OFFSET, 0, 0, 0, S_ATTR_DEBUG, 0, 0, 0,
    )  # fmt: skip
    commands = [
        UUID_COMMAND.pack(LC_UUID, UUID_COMMAND.size, uuid.bytes),
        _segment(b"__TEXT", header_svma, 0x4000, 0, 0, b""),
        _segment(b"__DWARF", header_svma + 0x8000, 0x1000, _DATA_OFFSET, len(debug_info), section),
    ]
    header = MACH_HEADER.pack(
        MH_MAGIC_64,
        cputype,
        cpusubtype,
        FileType.DSYM.value,
        len(commands),
        sum(map(len, commands)),
        0,
    )
    start = header.ljust(MACH_HEADER_64_SIZE, b"\0") + b"".join(commands)
    return start.ljust(_DATA_OFFSET, b"\0") + debug_info


def _segment(
    name: bytes, vmaddr: int, vmsize: int, fileoff: int, filesize: int, sections: bytes
) -> bytes:
    size = SEGMENT_COMMAND_64.size + len(sections)
    command = SEGMENT_COMMAND_64.pack(
        LC_SEGMENT_64, size, name, vmaddr, vmsize, fileoff, filesize, 5, 5,
        len(sections) // SECTION_64.size, 0,
    )  # fmt: skip
    return command + sections


class BuiltPart(NamedTuple):
    """A thin file that is to be a slice of a fat one."""

    cputype: int
    cpusubtype: int
    data: bytes


def fat_of(parts: Sequence[BuiltPart]) -> bytes:
    """Return a fat file of ``parts``, in their order."""
    rows, contents = [], []
    offset = _SLICE_ALIGNMENT
    for part in parts:
        rows.append(BuiltSlice(part.cputype, part.cpusubtype, offset, len(part.data)))
        contents.append((offset, part.data))
        offset += -(-len(part.data) // _SLICE_ALIGNMENT) * _SLICE_ALIGNMENT
    return fat_file(rows, contents)


def write_dsym(bundle: Path, name: str, data: bytes) -> Path:
    """Put ``data`` into the bundle as the DWARF of the binary ``name``; the file's path."""
    path = bundle / "Contents" / "Resources" / "DWARF" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def static_archive(members: Sequence[tuple[str, int, bytes]], *, long_names: str = "bsd") -> bytes:
    """Write a static library of (name, Unix time, contents), with a table of symbols before.

    Args:
        members: in their order.
        long_names: where names lie that do not fit: ``bsd`` before the contents, as on a Mac;
            ``gnu`` in a member of their own.
    """
    names = b"".join(f"{name}/\n".encode() for name, _, _ in members)
    table = "__.SYMDEF SORTED" if long_names == "bsd" else "/"
    parts = [b"!<arch>\n", _member(table, 0, bytes(4))]
    if long_names == "gnu":
        parts.append(_member("//", 0, names))
    at = 0
    for name, modified, data in members:
        if long_names == "gnu":
            parts.append(_member(f"/{at}", modified, data))
        else:
            padded = name.encode().ljust(-(-len(name) // 8) * 8 + 8, b"\0")
            parts.append(_member(f"#1/{len(padded)}", modified, padded + data))
        at += len(name) + 2
    return b"".join(parts)


def thin_archive(members: Sequence[tuple[str, int, int]]) -> bytes:
    """GNU's archive that only names files: (path, seconds since 1970, size)."""
    names = b"".join(f"{name}/\n".encode() for name, _, _ in members)
    parts = [b"!<thin>\n", _member("//", 0, names)]
    at = 0
    for name, modified, size in members:
        parts.append(_header(f"/{at}", modified, size))
        at += len(name) + 2
    return b"".join(parts)


def _member(name: str, modified: int, data: bytes) -> bytes:
    return _header(name, modified, len(data)) + data + b"\n" * (len(data) % 2)


def _header(name: str, modified: int, size: int) -> bytes:
    return f"{name:<16}{modified:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n".encode()
