"""Compressed sections (gABI, "Section Compression")."""

from __future__ import annotations

from machtrace.elf.structs import ELFCOMPRESS_ZLIB, ElfLayout
from machtrace.errors import ElfError

_BEST_RATIO = 1032
"""Deflate yields at most this many bytes a byte (RFC 1951: 258 bytes for two bits)."""


def decompress_section(data: memoryview, layout: ElfLayout, source: str) -> memoryview:
    """The bytes of a section with ``SHF_COMPRESSED`` set, whose stored bytes are ``data``.

    Raises:
        ElfError: it is cut short, not what it claims, or compressed otherwise than by zlib.
    """
    import zlib

    if len(data) < layout.compression.size:
        raise ElfError("compression header cut short", source=source, offset=len(data))
    fields = layout.compression.unpack_from(data)
    kind, size, start = fields[0], fields[-2], layout.compression.size
    if kind != ELFCOMPRESS_ZLIB:
        raise ElfError(
            f"compression {kind} is not zlib",
            source=source,
            offset=0,
            remedy="decompress it with: objcopy --decompress-debug-sections",
        )
    packed = data[start:]
    if size > len(packed) * _BEST_RATIO:
        raise ElfError(f"{len(packed)} bytes cannot hold {size}", source=source, offset=start)
    if not size:
        return memoryview(b"")
    try:
        plain = zlib.decompressobj().decompress(packed, size)
    except zlib.error as error:
        raise ElfError(f"bad compressed data ({error})", source=source, offset=start) from None
    if len(plain) != size:
        raise ElfError(f"{len(plain)} bytes in place of {size}", source=source, offset=start)
    return memoryview(plain)
