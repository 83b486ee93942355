"""Maps core files, and names the kind of a file that is not one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from machtrace.errors import CoreFileError, FileAccessError
from machtrace.formats.object_file import Signature, signature
from machtrace.mapped_file import mapped_file

_FOREIGN = {
    b"MDMP": (
        "a minidump, not a core",
        "give a Mach-O or ELF core; lldb -c reads minidumps",
    ),
    b"\x1f\x8b": ("a file compressed by gzip", "decompress it first, with gunzip"),
    b"\x28\xb5\x2f\xfd": ("a file compressed by zstd", "decompress it first, with unzstd"),
    b"\xfd7zXZ": ("a file compressed by xz", "decompress it first, with unxz"),
    b"BZh": ("a file compressed by bzip2", "decompress it first, with bunzip2"),
    b"\x04\x22\x4d\x18": ("a file compressed by lz4", "decompress it first, with unlz4"),
    b"PK\x03\x04": ("a zip archive", "unpack it first, with unzip"),
}
"""Other files, by their first bytes: the kind, and the remedy."""

_ELF_BIG_ENDIAN = 2
"""``EI_DATA``: ``ELFDATA2MSB``."""
_ELF_CORE = 4
"""``e_type``: ``ET_CORE``."""


def map_core(path: str) -> memoryview:
    """Map a core file; the mapping lives as long as a view of it.

    Raises:
        FileAccessError: the file does not exist, is not regular, or cannot be read.
        CoreFileError: it is empty, or neither a thin Mach-O nor an ELF core.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error
    if stat.S_ISDIR(mode):
        raise FileAccessError(path, "is a directory, not a core")
    if not stat.S_ISREG(mode):
        # Opening a pipe would wait for a writer.
        raise FileAccessError(path, "not a regular file")
    data = _map(path)
    if not len(data):
        raise CoreFileError("the file is empty", source=path, offset=0)
    if not (signature(data) is Signature.MACHO or _elf_type(data) == _ELF_CORE):
        raise _foreign(data, path)
    return data


def is_elf_core(path: str) -> bool:
    """Whether the core at ``path`` is an ELF one; raises as :func:`map_core` does."""
    return signature(map_core(path)) is Signature.ELF


def map_file(path: str) -> memoryview | None:
    """Map any regular file; None if it cannot be mapped."""
    try:
        return _map(path) if stat.S_ISREG(Path(path).stat().st_mode) else None
    except (OSError, ValueError, FileAccessError):
        return None


def _map(path: str) -> memoryview:
    try:
        with Path(path).open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return memoryview(b"")
            return mapped_file(file.fileno())
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error


def _refused(path: str, error: OSError | ValueError) -> FileAccessError:
    if isinstance(error, FileNotFoundError):
        return FileAccessError(path, "no such file")
    # ValueError: a NUL in the path, or a file that became empty meanwhile.
    return FileAccessError(path, getattr(error, "strerror", None) or str(error))


def _foreign(data: memoryview, path: str) -> CoreFileError:
    head = bytes(data[:20])
    if _elf_type(data) is not None:
        return CoreFileError(
            "an ELF file, not a core",
            source=path,
            offset=16,
            remedy="pass a core; machtrace sample -- PROGRAM starts a program, machtrace image "
            "describes other ELF files",
        )
    if signature(data) is Signature.FAT_MACHO:
        return CoreFileError(
            "a fat Mach-O, not a core",
            source=path,
            offset=0,
            remedy="pass a core; machtrace image describes other Mach-O files",
        )
    for magic, (what, remedy) in _FOREIGN.items():
        if head.startswith(magic):
            return CoreFileError(what, source=path, offset=0, remedy=remedy)
    return CoreFileError(
        f"not a core: it starts with {head[:8].hex(' ')}",
        source=path,
        offset=0,
        remedy="pass a core as written by a crash, machtrace snapshot, gdb's gcore or lldb's "
        "process save-core",
    )


def _elf_type(data: memoryview) -> int | None:
    """Return ``e_type``; None if the file is not ELF."""
    head = bytes(data[:18])
    if signature(head) is not Signature.ELF or len(head) < 18:  # noqa: PLR2004 (bytes)
        return None
    is_big = head[5] == _ELF_BIG_ENDIAN
    return int.from_bytes(head[16:18], "big" if is_big else "little")
