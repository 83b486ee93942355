"""The section header table of a file."""

from __future__ import annotations

from machtrace.formats.elf.headers import ElfHeader
from machtrace.formats.elf.segments import Section
from machtrace.formats.elf.structs import SHN_XINDEX, SHT_NOBITS
from machtrace.errors import ElfError
from machtrace.model.address import FileOffset, Svma

_NAME_LIMIT = 256
"""Bytes of a section's name that are kept; real ones are far shorter, and a string table without
NULs must not be copied once a section."""

_LAST_ADDRESS = (1 << 64) - 1

_RawSection = tuple[int, int, int, int, int, int, int, int, int, int]


def read_sections(data: memoryview, header: ElfHeader, source: str) -> tuple[Section, ...]:
    """The sections of the file ``data``; none where it has no section headers.

    Raises:
        ElfError: the table or its names are not inside the file, a section goes beyond the end of
            the address space, or its entries are larger than the file.
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
    """Section 0, which holds the counts that do not fit the header.

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
