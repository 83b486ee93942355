"""The ELF header, program headers, section headers and notes (gABI, chapters 4 and 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import ElfError
from machtrace.formats.elf.structs import (
    IDENT_SIZE,
    LAYOUTS,
    MAGIC,
    NT_GNU_BUILD_ID,
    PF_X,
    PT_LOAD,
    SHF_EXECINSTR,
    SHN_XINDEX,
    SHT_NOBITS,
    ElfLayout,
    ElfType,
)
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BuildId

HEADER_SIZE = 64
"""Bytes that hold any whole header; the 32-bit one has 52 bytes."""

_ARCHITECTURES = {
    # e_machine and whether the file is 64-bit. x32 (62 in 32-bit) is left out: its pointers are
    # not those of any Arch.
    (3, False): Arch.I386,
    (40, False): Arch.ARM,
    (62, True): Arch.X86_64,
    (183, True): Arch.ARM64,
    (183, False): Arch.ARM64_32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """``Ehdr``, with its counts as stored: extended ones are resolved elsewhere."""

    layout: ElfLayout
    type: ElfType
    arch: Arch
    entry: int
    """The Svma of the first instruction; 0 without one."""
    program_headers_offset: int
    """File offset."""
    program_header_size: int
    program_header_count: int
    section_headers_offset: int
    """File offset; 0 without section headers."""
    section_header_size: int
    section_header_count: int
    section_names_index: int
    """The index of the section with the names of sections."""
    flags: int
    """``e_flags``, which depend on the machine."""

    @property
    def arch_name(self) -> str:
        """The architecture's name, as in a Mach-O's header."""
        return self.arch.value


def read_header(data: bytes | memoryview, source: str) -> ElfHeader:
    """Parse the header at the start of ``data``, of which :data:`HEADER_SIZE` bytes suffice.

    Raises:
        ElfError: it is no ELF, cut short, or of an unsupported kind or machine.
    """

    def fail(message: str, offset: int) -> ElfError:
        return ElfError(message, source=source, offset=offset)

    ident = bytes(data[:IDENT_SIZE])
    if not ident.startswith(MAGIC):
        raise fail("not an ELF file", 0)
    if len(ident) < IDENT_SIZE:
        raise fail("ELF header cut short", len(ident))
    layout = LAYOUTS.get((ident[4], ident[5]))
    if layout is None:
        raise fail(f"unknown ELF class {ident[4]} or byte order {ident[5]}", 4)
    end = IDENT_SIZE + layout.header.size
    if len(data) < end:
        raise fail("ELF header cut short", len(data))
    kind, machine, _, entry, phoff, shoff, flags, _, phsize, phnum, shsize, shnum, names = (
        layout.header.unpack(data[IDENT_SIZE:end])
    )
    try:
        elf_type = ElfType(kind)
    except ValueError:
        raise fail(f"unknown ELF type {kind}", IDENT_SIZE) from None
    arch = _ARCHITECTURES.get((machine, layout.is_64))
    if arch is None:
        bits = 64 if layout.is_64 else 32
        raise fail(f"ELF machine {machine} ({bits}-bit) is not supported", IDENT_SIZE + 2)
    if phnum and phsize != layout.program_header.size:
        # Loaders require it, too, and it limits what has to be read.
        raise fail(f"unsupported program header size {phsize}", IDENT_SIZE)
    return ElfHeader(
        layout=layout,
        type=elf_type,
        arch=arch,
        entry=entry,
        program_headers_offset=phoff,
        program_header_size=phsize,
        program_header_count=phnum,
        section_headers_offset=shoff,
        section_header_size=shsize,
        section_header_count=shnum,
        section_names_index=names,
        flags=flags,
    )


PAGE_SIZE = 0x1000
"""The smallest page size; the lowest segment's address is rounded down to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``Phdr``: a range that the loader maps, or uses otherwise."""

    type: int
    """``p_type``: ``PT_LOAD`` and others; a number, because systems add their own."""
    flags: int
    address: Svma
    offset: FileOffset
    file_size: int
    memory_size: int
    alignment: int

    @property
    def end(self) -> Svma:
        """The address after its last byte in memory."""
        return Svma(self.address + self.memory_size)

    @property
    def is_executable(self) -> bool:
        """Whether it is mapped executable."""
        return self.type == PT_LOAD and bool(self.flags & PF_X)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """``Shdr``: a named range of the file."""

    name: str
    type: int
    flags: int
    address: Svma
    """0 if it is not loaded."""
    offset: FileOffset
    size: int
    link: int
    """The index of a related section, depending on the type."""
    info: int
    entry_size: int

    @property
    def end(self) -> Svma:
        """The address after its last byte."""
        return Svma(self.address + self.size)

    @property
    def is_executable(self) -> bool:
        """Whether it has instructions."""
        return bool(self.flags & SHF_EXECINSTR)

    @property
    def has_bytes(self) -> bool:
        """Whether the file has its bytes; ``.bss`` and a debug file's ``.text`` have none."""
        return self.type != SHT_NOBITS


def read_segments(
    table: bytes | memoryview, header: ElfHeader, count: int, source: str
) -> tuple[Segment, ...]:
    """Parse ``count`` program headers; ``table`` has just their bytes.

    Raises:
        ElfError: the table is cut short, or a segment ends beyond the address space.
    """
    layout, stride = header.layout, header.program_header_size
    if len(table) < count * stride:
        raise ElfError("program headers cut short", source=source, offset=len(table))
    # The end itself has to be an address: columns of ends are 64 bits wide.
    limit = min(1 << (8 * layout.pointer_size), (1 << 64) - 1)
    segments: list[Segment] = []
    for index in range(count):
        fields = layout.program_header.unpack_from(table, index * stride)
        if layout.is_64:
            kind, flags, offset, address, _, file_size, memory_size, alignment = fields
        else:
            kind, offset, address, _, file_size, memory_size, flags, alignment = fields
        if kind == PT_LOAD and address + memory_size > limit:
            raise ElfError(
                f"segment {index} goes beyond the end of the address space",
                source=source,
                offset=header.program_headers_offset + index * stride,
            )
        segments.append(
            Segment(
                type=kind,
                flags=flags,
                address=Svma(address),
                offset=FileOffset(offset),
                file_size=file_size,
                memory_size=memory_size,
                alignment=alignment,
            )
        )
    return tuple(segments)


def loaded_range(segments: Iterable[Segment]) -> tuple[Svma, int]:
    """Return the start of the image and its size in bytes; ``(0, 0)`` if nothing is loaded.

    It starts at the page of the lowest ``PT_LOAD``. It ends with the last executable segment, or
    with adjoining ones after that: after a gap without code, something else may be mapped.
    """
    loaded = sorted((s for s in segments if s.type == PT_LOAD), key=lambda s: s.address)
    if not loaded:
        return Svma(0), 0
    start = loaded[0].address // PAGE_SIZE * PAGE_SIZE
    end = max((s.end for s in loaded if s.is_executable), default=start)
    for segment in loaded:
        page = max(PAGE_SIZE, segment.alignment)
        if segment.address // page * page > -(-end // page) * page:
            break
        end = max(end, segment.end)
    return Svma(start), end - start


_NAME_LIMIT = 256
"""Bytes of a section's name that are read; real ones are far shorter, and a string table without
NULs must not be copied once per section."""

_LAST_ADDRESS = (1 << 64) - 1

_RawSection = tuple[int, int, int, int, int, int, int, int, int, int]


def read_sections(data: memoryview, header: ElfHeader, source: str) -> tuple[Section, ...]:
    """Parse the sections of the file ``data``; none without section headers.

    Raises:
        ElfError: the table or its names are not inside the file, a section ends beyond the address
            space, or its entries are larger than the file.
    """
    rows = _raw_sections(data, header, source)
    if not rows:
        return ()
    _check(rows, header, len(data), source)
    names_index = header.section_names_index
    if names_index == SHN_XINDEX:
        names_index = rows[0][6]
    names = _names(data, rows, names_index, source)
    return tuple(
        Section(
            name=_name_at(names, name),
            type=kind,
            flags=flags,
            address=Svma(address),
            offset=FileOffset(offset),
            size=size,
            link=link,
            info=info,
            entry_size=entry_size,
        )
        for name, kind, flags, address, offset, size, link, info, _, entry_size in rows
    )


def first_section(data: memoryview, header: ElfHeader, source: str) -> _RawSection:
    """Parse section 0, which has the counts that do not fit the header.

    Raises:
        ElfError: it is not inside the file.
    """
    layout, at = header.layout.section_header, header.section_headers_offset
    if header.section_header_size < layout.size or not at or at + layout.size > len(data):
        raise ElfError("section headers are outside the file", source=source, offset=at)
    row: _RawSection = layout.unpack_from(data, at)
    return row


def _raw_sections(data: memoryview, header: ElfHeader, source: str) -> list[_RawSection]:
    at, stride = header.section_headers_offset, header.section_header_size
    if not at:
        return []
    count = header.section_header_count or first_section(data, header, source)[5]
    layout = header.layout.section_header
    if count and (stride < layout.size or at + count * stride > len(data)):
        raise ElfError(
            f"{count} section headers of {stride} bytes do not fit the file's {len(data)}",
            source=source,
            offset=at,
        )
    return [layout.unpack_from(data, at + index * stride) for index in range(count)]


def _check(rows: list[_RawSection], header: ElfHeader, file_size: int, source: str) -> None:
    # The end itself has to be an address: columns of ends are 64 bits wide.
    limit = min(1 << (8 * header.layout.pointer_size), _LAST_ADDRESS)
    for index, (_, _, _, address, _, size, _, _, _, entry_size) in enumerate(rows):
        at = header.section_headers_offset + index * header.section_header_size
        if address + size > limit:
            raise ElfError(
                f"section {index} goes beyond the end of the address space",
                source=source,
                offset=at,
            )
        if entry_size > file_size:
            raise ElfError(
                f"section {index} has entries of {entry_size} bytes, the file has {file_size}",
                source=source,
                offset=at,
            )


def _names(data: memoryview, rows: list[_RawSection], index: int, source: str) -> memoryview:
    if not 0 < index < len(rows):
        return memoryview(b"")
    _, kind, _, _, offset, size, *_ = rows[index]
    if kind == SHT_NOBITS:
        return memoryview(b"")
    if offset + size > len(data):
        raise ElfError("section names are outside the file", source=source, offset=offset)
    return data[offset : offset + size]


def _name_at(names: memoryview, offset: int) -> str:
    return bytes(names[offset : offset + _NAME_LIMIT]).split(b"\0", 1)[0].decode("utf-8", "replace")


_WIDE_ALIGNMENT = 8


class Note(NamedTuple):
    """A named record in a ``PT_NOTE`` segment or ``SHT_NOTE`` section."""

    owner: bytes
    """Without the final NUL."""
    type: int
    description: bytes


def read_notes(
    data: bytes | memoryview, layout: ElfLayout, *, alignment: int = 4
) -> Iterator[Note]:
    """Parse the notes in ``data``, up to a record that is cut short.

    ``alignment`` is the segment's. Only if it is 8 (``.note.gnu.property``) are records padded to 8
    bytes; every other producer pads to 4, even in 64-bit files, whatever the gABI states.
    """
    padding = _WIDE_ALIGNMENT if alignment == _WIDE_ALIGNMENT else 4
    at, head = 0, layout.note.size
    while at + head <= len(data):
        name_size, description_size, kind = layout.note.unpack_from(data, at)
        name_at = at + head
        # The name starts right after the three words; from there on offsets are padded.
        description_at = -(-(name_at + name_size) // padding) * padding
        end = description_at + description_size
        if end > len(data):
            return
        owner = bytes(data[name_at : name_at + name_size]).rstrip(b"\0")
        yield Note(owner, kind, bytes(data[description_at:end]))
        at = -(-end // padding) * padding


def build_id_in(
    data: bytes | memoryview, layout: ElfLayout, *, alignment: int = 4
) -> BuildId | None:
    """Return the ``NT_GNU_BUILD_ID`` in the notes ``data``."""
    for note in read_notes(data, layout, alignment=alignment):
        if note.type == NT_GNU_BUILD_ID and note.owner == b"GNU" and note.description:
            return BuildId(note.description)
    return None
