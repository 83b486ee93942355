"""Compressed sections (gABI, "Section Compression")."""

from __future__ import annotations

from machtrace.formats.elf.structs import ELFCOMPRESS_ZLIB, ElfLayout
from machtrace.errors import ElfError

SECTION_LIMIT = 256 << 20
"""Bytes decompressed; what claims more is told how to be read without."""
_BEST_RATIO = 1032
"""Deflate yields at most this many bytes a byte (RFC 1951: 258 bytes for two bits)."""
_STEP = 1 << 18
_REMEDY = "decompress it with: objcopy --decompress-debug-sections"


def decompress_section(data: memoryview, layout: ElfLayout, source: str) -> memoryview:
    """The bytes of a section with ``SHF_COMPRESSED`` set, whose stored bytes are ``data``.

    Raises:
        ElfError: it is cut short, not what it claims, compressed otherwise than by zlib, or
            larger than :data:`SECTION_LIMIT`.
    """
    if len(data) < layout.compression.size:
        raise ElfError("compression header cut short", source=source, offset=len(data))
    fields = layout.compression.unpack_from(data)
    kind, size, start = fields[0], fields[-2], layout.compression.size
    if kind != ELFCOMPRESS_ZLIB:
        raise ElfError(
            f"compression {kind} is not zlib",
            source=source,
            offset=0,
            remedy=_REMEDY,
        )
    packed = data[start:]
    if size > len(packed) * _BEST_RATIO:
        raise ElfError(f"{len(packed)} bytes cannot hold {size}", source=source, offset=start)
    if size > SECTION_LIMIT:
        raise ElfError(
            f"{size} bytes decompressed, above the limit of {SECTION_LIMIT}",
            source=source,
            offset=start,
            remedy=_REMEDY,
        )
    plain = bytearray(size)
    filled = _inflate(packed, plain, source, start)
    if filled != size:
        raise ElfError(f"{filled} bytes in place of {size}", source=source, offset=start)
    return memoryview(plain).toreadonly()


def _inflate(packed: memoryview, plain: bytearray, source: str, start: int) -> int:
    """Fills ``plain`` a step at a time, so that nothing is held twice; how much there was."""
    import zlib

    reader = zlib.decompressobj()
    pending: bytes | memoryview = b""
    taken = filled = 0
    while filled < len(plain) and not reader.eof:
        if not pending:
            pending = packed[taken : taken + _STEP]
            taken += len(pending)
        try:
            part = reader.decompress(pending, min(_STEP, len(plain) - filled))
        except zlib.error as error:
            raise ElfError(f"bad compressed data ({error})", source=source, offset=start) from None
        # Without input there may still be output that found no room before.
        if not part and not pending:
            break
        plain[filled : filled + len(part)] = part
        filled += len(part)
        pending = reader.unconsumed_tail
    return filled
