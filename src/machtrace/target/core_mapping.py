"""From the path of a core to its bytes; or to the words for what the file is instead."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from machtrace.errors import CoreFileError, FileAccessError
from machtrace.macho.header import is_macho

_DESCRIBE = "give a core; machtrace image describes other Mach-O files"
_FOREIGN = {
    b"\xca\xfe\xba\xbe": ("a fat Mach-O, not a core", _DESCRIBE),
    b"\xca\xfe\xba\xbf": ("a fat Mach-O, not a core", _DESCRIBE),
    b"MDMP": (
        "a minidump, not a Mach-O core",
        "give a Mach-O core; lldb -c reads minidumps",
    ),
    b"\x1f\x8b": ("a file compressed by gzip", "decompress it first, with gunzip"),
    b"\x28\xb5\x2f\xfd": ("a file compressed by zstd", "decompress it first, with unzstd"),
    b"\xfd7zXZ": ("a file compressed by xz", "decompress it first, with unxz"),
    b"BZh": ("a file compressed by bzip2", "decompress it first, with bunzip2"),
    b"\x04\x22\x4d\x18": ("a file compressed by lz4", "decompress it first, with unlz4"),
    b"PK\x03\x04": ("a zip archive", "unpack it first, with unzip"),
}
"""What people give for a core, by first bytes: what it is, and what to do."""

_ELF_MAGIC = b"\x7fELF"
_ELF_BIG_ENDIAN = 2
"""``EI_DATA``: ``ELFDATA2MSB``."""
_ELF_CORE = 4
"""``e_type``: ``ET_CORE``."""


def map_core(path: str) -> memoryview:
    """The file's bytes, mapped and not read; the mapping lives as long as a view of it.

    Raises:
        FileAccessError: there is no such file, it is none, or it cannot be read.
        CoreFileError: it is empty, or something else than a thin Mach-O.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error
    if stat.S_ISDIR(mode):
        raise FileAccessError(path, "a directory, not a core")
    if not stat.S_ISREG(mode):
        # To open a pipe would wait for whoever writes into it.
        raise FileAccessError(path, "not a regular file")
    data = _map(path)
    if not len(data):
        raise CoreFileError("the file is empty", source=path, offset=0)
    if not is_macho(data):
        raise _foreign(data, path)
    return data


def _map(path: str) -> memoryview:
    try:
        with Path(path).open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error


def _refused(path: str, error: OSError | ValueError) -> FileAccessError:
    if isinstance(error, FileNotFoundError):
        return FileAccessError(path, "no such file")
    # ValueError: a NUL in the path, or a file that became empty meanwhile.
    return FileAccessError(path, getattr(error, "strerror", None) or str(error))


def _foreign(data: memoryview, path: str) -> CoreFileError:
    head = bytes(data[:20])
    if head.startswith(_ELF_MAGIC) and len(head) >= len(_ELF_MAGIC) + 14:
        order = "big" if head[5] == _ELF_BIG_ENDIAN else "little"
        if int.from_bytes(head[16:18], order) == _ELF_CORE:  # type: ignore[arg-type]
            return CoreFileError(
                "an ELF core; this version reads Mach-O cores",
                source=path,
                offset=16,
                remedy="read it with: gdb PROGRAM CORE",
            )
        return CoreFileError(
            "an ELF file, not a core", source=path, offset=16, remedy="give a Mach-O core"
        )
    for magic, (what, remedy) in _FOREIGN.items():
        if head.startswith(magic):
            return CoreFileError(what, source=path, offset=0, remedy=remedy)
    return CoreFileError(
        f"not a core: it starts with {head[:8].hex(' ')}",
        source=path,
        offset=0,
        remedy="give a Mach-O core, as lldb's process save-core or a crash writes it",
    )
