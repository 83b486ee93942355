"""The links from an ELF image to its debug file: a name with a checksum, or a build-id.

GDB's manual, "Debugging Information in Separate Files", and elfutils' *debuginfod(8)*.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct

from machtrace.errors import FormatError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.frozen import dataclass
from machtrace.model.image import BuildId

_ALIGNMENT = 4
_CRC_SIZE = 4
_MAX_NAME_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class DebugLink:
    """``.gnu_debuglink``: the name of the debug file, and the checksum of its contents."""

    name: str
    """Without a folder."""
    crc: int
    """The CRC-32 of IEEE 802.3, of the whole file."""


def debug_link(contents: ElfFileContents) -> DebugLink | None:
    """Return the content of ``.gnu_debuglink``; None without one, or if it is malformed."""
    section = contents.image.section(".gnu_debuglink")
    if section is None or not section.has_bytes or section.size > _MAX_NAME_LENGTH:
        return None
    try:
        data = bytes(contents.read_section(section))
    except FormatError:
        return None
    name, end, _ = data.partition(b"\0")
    at = -(-(len(name) + 1) // _ALIGNMENT) * _ALIGNMENT
    crc = data[at : at + _CRC_SIZE]
    # A name with a folder could lead anywhere.
    if not end or len(crc) < _CRC_SIZE or b"/" in name or name in (b"", b".", b".."):
        return None
    value = Struct(f"{contents.image.layout.byte_order}I").unpack(crc)[0]
    return DebugLink(os.fsdecode(name), value)


def alternate_file(contents: ElfFileContents) -> tuple[str, BuildId] | None:
    """Return the file to which dwz moved shared debug information (``.gnu_debugaltlink``).

    Its name, which may be relative to the debug file's folder, and its build-id.
    """
    section = contents.image.section(".gnu_debugaltlink")
    if section is None or not section.has_bytes or section.size > _MAX_NAME_LENGTH:
        return None
    try:
        name, _, build_id = bytes(contents.read_section(section)).partition(b"\0")
    except FormatError:
        return None
    return (os.fsdecode(name), BuildId(build_id)) if name and build_id else None


def linked_paths(path: str, link: DebugLink, roots: tuple[str, ...]) -> Iterator[str]:
    """Return the paths of the file that ``link`` names, for the binary at ``path``; best first."""
    folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    yield os.path.join(folder, link.name)  # noqa: PTH118
    yield os.path.join(folder, ".debug", link.name)  # noqa: PTH118
    for root in roots:
        yield os.path.join(root, folder.lstrip("/"), link.name)  # noqa: PTH118
        yield os.path.join(root, link.name)  # noqa: PTH118


def has_checksum(data: memoryview, crc: int) -> bool:
    """Whether the CRC-32 of ``data`` is ``crc``."""
    import zlib

    return zlib.crc32(data) == crc
