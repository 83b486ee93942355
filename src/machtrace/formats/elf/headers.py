"""The ELF header: what kind of file it is, and where its tables are."""

from __future__ import annotations

from dataclasses import dataclass

from machtrace.formats.elf.structs import IDENT_SIZE, LAYOUTS, MAGIC, ElfLayout, ElfType
from machtrace.errors import ElfError
from machtrace.model.arch import Arch

HEADER_SIZE = 64
"""Bytes to read to have any header whole; the 32-bit one is 52 bytes long."""

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
    """``Ehdr``, with counts as they stand in it: the extended ones are resolved elsewhere."""

    layout: ElfLayout
    type: ElfType
    arch: Arch
    entry: int
    """Svma of the first instruction; 0 where there is none."""
    program_headers_offset: int
    """File offset."""
    program_header_size: int
    program_header_count: int
    section_headers_offset: int
    """File offset; 0 where there are no section headers."""
    section_header_size: int
    section_header_count: int
    section_names_index: int
    """Which section holds the names of sections."""
    flags: int
    """``e_flags``; the processor's own."""


def read_header(data: bytes | memoryview, source: str) -> ElfHeader:
    """The header at the start of ``data``, of which :data:`HEADER_SIZE` bytes are enough.

    Raises:
        ElfError: it is no ELF, cut short, or of a kind or machine that is not known here.
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
        # Loaders insist on it too; and it bounds what has to be read.
        raise fail(f"program headers of {phsize} bytes", IDENT_SIZE)
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
