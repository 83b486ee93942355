"""``.gnu_debugdata``: names of local functions in stripped files, as Fedora and others ship them.

The section is an xz-compressed ELF file with a ``.symtab`` (GDB's manual, "MiniDebugInfo").
"""

from __future__ import annotations

from machtrace.formats.elf.contents import ElfContents, ElfFileContents
from machtrace.errors import ElfError

MINI_DEBUG_LIMIT = 64 << 20
"""Bytes decompressed; those of the largest programs take a few million."""
_MEMORY_LIMIT = 128 << 20


def mini_debug_contents(contents: ElfContents) -> ElfFileContents | None:
    """The file inside ``.gnu_debugdata``, to read symbols from; None where there is none.

    Its addresses are those of ``contents``.

    Raises:
        ElfError: it is not what it claims, or larger than :data:`MINI_DEBUG_LIMIT`.
    """
    import lzma

    section = contents.image.section(".gnu_debugdata")
    if section is None or not section.has_bytes or not isinstance(contents, ElfFileContents):
        return None
    source = f"{contents.source} .gnu_debugdata"
    packed = contents.read_section(section)
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_LIMIT)
    try:
        data = reader.decompress(packed, MINI_DEBUG_LIMIT)
    except (lzma.LZMAError, EOFError) as error:
        raise ElfError(f"bad compressed data ({error})", source=source, offset=0) from None
    if not reader.eof:
        raise ElfError("compressed data cut short or too large", source=source, offset=len(packed))
    return ElfFileContents(data, source)
