"""ELF images as readable bytes: as a file, or as loaded into a process.

Also the two forms of compressed bytes in them: compressed sections (gABI, "Section
Compression"), and ``.gnu_debugdata``, an xz-compressed ELF file with the names of a stripped file's
local functions (GDB's manual, "MiniDebugInfo").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.dynamic import read_soname
from machtrace.formats.elf.headers import (
    HEADER_SIZE,
    ElfHeader,
    Section,
    Segment,
    build_id_in,
    first_section,
    read_header,
    read_sections,
    read_segments,
)
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import (
    ELFCOMPRESS_ZLIB,
    PN_XNUM,
    PT_NOTE,
    SHF_COMPRESSED,
    SHT_NOTE,
    ElfLayout,
)
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.image import BuildId, ImageFormat
from machtrace.model.memory import MemoryReader

SECTION_LIMIT = 256 << 20
"""The largest decompressed section, in bytes."""
_BEST_RATIO = 1032
"""The largest ratio of deflate (RFC 1951: 258 bytes for two bits)."""
_STEP = 1 << 18
_REMEDY = "decompress it with: objcopy --decompress-debug-sections"


def decompress_section(data: memoryview, layout: ElfLayout, source: str) -> memoryview:
    """Return the bytes of a section with ``SHF_COMPRESSED`` set, stored as ``data``.

    Raises:
        ElfError: it is cut short, contradicts its header, is not compressed by zlib, or is larger
            than :data:`SECTION_LIMIT`.
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
        raise ElfError(
            f"decompressed to {filled} bytes, expected {size}", source=source, offset=start
        )
    return memoryview(plain).toreadonly()


def _inflate(packed: memoryview, plain: bytearray, source: str, start: int) -> int:
    """Fill ``plain`` in steps, so that no bytes are in memory twice; return the count."""
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
        # Without input there may still be output that did not fit before.
        if not part and not pending:
            break
        plain[filled : filled + len(part)] = part
        filled += len(part)
        pending = reader.unconsumed_tail
    return filled


_NOTES_LIMIT = 1 << 16
"""Bytes of all notes together that are searched for the build-id; those of a program are a few
hundred, and any number of headers may refer to the same notes."""

_NoteRange = tuple[int, int, int]
"""The offset or address of notes, their size in bytes and their alignment."""

MEMORY_READ_LIMIT = 1 << 28
"""The most bytes of one read from memory. A file's size limits the sizes in its headers; memory has
no such limit."""


class ElfFileContents:
    """An ELF file; a memory map of it is not copied.

    Raises:
        ElfError: it is no ELF, or its headers are not inside it.
    """

    format: ClassVar[Literal[ImageFormat.ELF]] = ImageFormat.ELF
    is_loaded: ClassVar[Literal[False]] = False
    slide: ClassVar[Literal[0]] = 0

    def __init__(self, data: bytes | memoryview, source: str) -> None:
        self.source = source
        self.data = memoryview(data).cast("B").toreadonly()
        """The whole file."""
        header = read_header(self.data, source)
        segments = self._read_segments(header)
        sections = read_sections(self.data, header, source)
        image = ElfImage(header=header, segments=segments, sections=sections)
        self._loaded = tuple((s.address, s.file_size, s.offset) for s in image.load_segments)
        self.image = image
        """The parsed headers."""
        self.image = replace(image, build_id=self._build_id(image), soname=read_soname(self, image))

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.ImageContents.read_svma`.

        Bytes that a segment has only in memory (``.bss``) cannot be read.
        """
        for begins, file_size, offset in self._loaded:
            delta = address - begins
            if delta >= 0 and 0 <= size <= file_size - delta:
                begin = offset + delta
                if begin + size <= len(self.data):
                    return self.data[begin : begin + size]
        raise MemoryReadError(address, size)

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.ImageContents.read_file`."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise MemoryReadError(offset, size)
        return self.data[offset : offset + size]

    def read_section(self, section: Section, /) -> memoryview:
        """Return the bytes of ``section``, decompressed if necessary.

        Raises:
            ElfError: they are not inside the file, or malformed.
        """
        if not section.has_bytes:
            return memoryview(b"")
        try:
            data = self.read_file(section.offset, section.size)
        except MemoryReadError:
            raise ElfError(
                f"section {section.name} of {section.size} bytes is outside the file",
                source=self.source,
                offset=section.offset,
            ) from None
        if section.flags & SHF_COMPRESSED:
            return decompress_section(data, self.image.layout, f"{self.source} {section.name}")
        return data

    def _read_segments(self, header: ElfHeader) -> tuple[Segment, ...]:
        count = header.program_header_count
        if count == PN_XNUM:
            count = first_section(self.data, header, self.source)[7]
        at, size = header.program_headers_offset, count * header.program_header_size
        if at + size > len(self.data):
            raise ElfError(
                f"{count} program headers do not fit the file's {len(self.data)} bytes",
                source=self.source,
                offset=at,
            )
        return read_segments(self.data[at : at + size], header, count, self.source)

    def _build_id(self, image: ElfImage) -> BuildId | None:
        ranges = [(s.offset, s.file_size, s.alignment) for s in image.segments if s.type == PT_NOTE]
        ranges += [(s.offset, s.size, 4) for s in image.sections if s.type == SHT_NOTE]
        for offset, size, alignment in _within_limit(ranges):
            notes = self.data[offset : offset + size]
            build_id = build_id_in(notes, image.layout, alignment=alignment)
            if build_id is not None:
                return build_id
        return None


class ElfMemoryContents:
    """An ELF image in a process's memory: the vdso, a deleted file, a file of another system.

    Only the headers, the notes and the dynamic section are read at once. Section headers are not
    loaded: :attr:`image` has segments only.

    Raises:
        ElfError: the ELF header is missing or malformed.
        MemoryReadError: the headers could not be read.
    """

    format: ClassVar[Literal[ImageFormat.ELF]] = ImageFormat.ELF
    is_loaded: ClassVar[Literal[True]] = True

    def __init__(self, memory: MemoryReader, load_address: Avma, source: str) -> None:
        self.source = source
        self._memory = memory
        header = read_header(memory.read(load_address, HEADER_SIZE), source)
        count = header.program_header_count
        size = count * header.program_header_size
        at = load_address + header.program_headers_offset
        segments = read_segments(memory.read(Avma(at), size), header, count, source)
        image = ElfImage(header=header, segments=segments)
        self.slide = load_address - image.header_svma
        """The Avma of a byte less its Svma."""
        self.image = image
        """The parsed headers."""
        self.image = replace(
            image,
            build_id=self._build_id(image),
            soname=read_soname(self, image, slide=self.slide),
        )

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.ImageContents.read_svma`."""
        for segment in self.image.load_segments:
            delta = address - segment.address
            room = min(segment.memory_size - delta, MEMORY_READ_LIMIT)
            if delta >= 0 and 0 <= size <= room:
                return memoryview(self._memory.read(Avma(address + self.slide), size))
        raise MemoryReadError(address, size)

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.ImageContents.read_file`.

        Only bytes that a segment loads can be read.
        """
        for segment in self.image.load_segments:
            delta = offset - segment.offset
            if delta >= 0 and 0 <= size <= segment.file_size - delta:
                return self.read_svma(Svma(segment.address + delta), size)
        raise MemoryReadError(offset, size)

    def _build_id(self, image: ElfImage) -> BuildId | None:
        notes_at = [
            (s.address, s.memory_size, s.alignment) for s in image.segments if s.type == PT_NOTE
        ]
        for address, size, alignment in _within_limit(notes_at):
            try:
                notes = self.read_svma(Svma(address), size)
            except MemoryReadError:
                continue
            build_id = build_id_in(notes, image.layout, alignment=alignment)
            if build_id is not None:
                return build_id
        return None


ElfContents: TypeAlias = ElfFileContents | ElfMemoryContents


def _within_limit(ranges: Iterable[_NoteRange]) -> Iterator[_NoteRange]:
    """Yield each range once, up to :data:`_NOTES_LIMIT` bytes together; the last is truncated."""
    room = _NOTES_LIMIT
    for start, size, alignment in dict.fromkeys(ranges):
        counted = min(size, room)
        if counted:
            yield start, counted, alignment
        room -= counted


MINI_DEBUG_LIMIT = 64 << 20
"""The most bytes decompressed; those of the largest programs are a few million."""
_MEMORY_LIMIT = 128 << 20


_MAX_NAME_LENGTH = 1 << 16
_NAME_CHUNK = 256


def read_symbol_section(contents: ElfContents, kind: int) -> tuple[memoryview, memoryview] | None:
    """Return the bytes of the section of type ``kind``, a symbol table, and those of its strings.

    None if the file has none, and for an image in memory. Rows are ``Elf32_Sym`` or ``Elf64_Sym``.

    Raises:
        ElfError: the table or its strings are not in the file.
    """
    image = contents.image
    section = next((s for s in image.sections if s.type == kind), None)
    if section is None or contents.is_loaded:
        return None
    size = SYMBOL_SIZE[image.layout.is_64]
    if section.entry_size != size:
        message = f"section {section.name} has entries of {section.entry_size} bytes, not {size}"
        raise ElfError(message, source=contents.source, offset=section.offset)
    if not section.link < len(image.sections):
        message = f"section {section.name} names no string table"
        raise ElfError(message, source=contents.source, offset=section.offset)
    table = contents.read_section(section)
    return table[: len(table) // size * size], contents.read_section(image.sections[section.link])


SYMBOL_SIZE = {True: 24, False: 16}
"""Bytes of a symbol, by whether the image is 64-bit."""


def read_symbol_name(strings: memoryview, start: int) -> bytes:
    """Return the name at ``start`` as the table spells it, at most 64 KiB; empty for 0."""
    name = b""
    while start and len(name) < _MAX_NAME_LENGTH:
        chunk = bytes(strings[start + len(name) : start + len(name) + _NAME_CHUNK])
        head, end, _ = chunk.partition(b"\0")
        name += head
        if end or not chunk:
            break
    return name[:_MAX_NAME_LENGTH]


def without_version(name: bytes) -> str:
    """Decode a name without its version, which linkers write as ``name@@VERSION`` or ``name@…``."""
    at = name.find(b"@")
    return (name[:at] if at > 0 else name).decode("utf-8", "backslashreplace")


def mini_debug_contents(contents: ElfContents) -> ElfFileContents | None:
    """Return the file inside ``.gnu_debugdata``, which has symbols; None without that section.

    Its addresses are those of ``contents``.

    Raises:
        ElfError: it is malformed, or larger than :data:`MINI_DEBUG_LIMIT`.
    """
    import lzma

    section = contents.image.section(".gnu_debugdata")
    if section is None or not section.has_bytes or contents.is_loaded:
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
