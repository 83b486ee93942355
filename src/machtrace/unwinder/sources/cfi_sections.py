"""Where an image has its call-frame information, and how an address is found in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.elf.contents import ElfContents, ElfFileContents
from machtrace.formats.elf.structs import ElfType
from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents
from machtrace.model.address import Svma
from machtrace.unwinder.sources.cfi_translation import RegisterNumbering

if TYPE_CHECKING:  # both bring numpy, which is not needed before there is something to look up
    from machtrace.formats.dwarf.frame_index import FrameIndex
    from machtrace.formats.elf.eh_frame_hdr import EhFrameHeader


@dataclass(slots=True)
class IndexedSection:
    """A section, and its index once that was asked for."""

    section: CallFrameSection
    numbering: RegisterNumbering
    _build: Callable[[CallFrameSection], FrameIndex]
    _index: FrameIndex | None = field(default=None, init=False)

    @property
    def index(self) -> FrameIndex:
        """Its FDEs by address.

        Raises:
            MemoryReadError: it could not be read.
        """
        if self._index is None:
            self._index = self._build(self.section)
        return self._index


def section_of_macho(contents: MachOContents) -> IndexedSection | None:
    """``__TEXT,__eh_frame``; None where there is none."""
    found = contents.image.section("__TEXT", "__eh_frame")
    arch = contents.image.header.arch
    if found is None or not found.size or arch is None:
        return None
    address = found.address
    section = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=found.size,
        arch=arch,
        source=f"{contents.source} __TEXT,__eh_frame",
        address=address,
    )
    numbering = RegisterNumbering(arch, is_darwin_eh_frame=True)
    return IndexedSection(section, numbering, _scan)


def sections_of_elf(contents: ElfContents) -> tuple[IndexedSection, ...]:
    """``.eh_frame`` and ``.debug_frame``, those that are there."""
    if contents.image.type is ElfType.RELOCATABLE:
        return ()
    found = (_eh_frame(contents), _debug_frame(contents))
    return tuple(section for section in found if section is not None)


def _eh_frame(contents: ElfContents) -> IndexedSection | None:
    from machtrace.formats.elf.eh_frame_hdr import read_eh_frame_header

    image = contents.image
    try:
        header = read_eh_frame_header(contents)
    except (ElfError, MemoryReadError):
        header = None
    found = image.section(".eh_frame")
    end: Svma | None
    if found is not None:
        address, end = found.address, found.end if found.has_bytes else None
    elif header is not None and header.eh_frame is not None:
        address, end = header.eh_frame, image.loaded_end(header.eh_frame)
    else:
        return None
    if end is None or end <= address:
        return None
    section = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=end - address,
        arch=image.arch,
        source=f"{contents.source} .eh_frame",
        address=address,
        little_endian=image.layout.little_endian,
        ends_at_terminator=found is None,
    )

    def build(section: CallFrameSection) -> FrameIndex:
        index = None if header is None else _from_header(contents, header, section)
        return _scan(section) if index is None else index

    return IndexedSection(section, RegisterNumbering(image.arch), build)


def _from_header(
    contents: ElfContents, header: EhFrameHeader, section: CallFrameSection
) -> FrameIndex | None:
    import numpy as np

    from machtrace.formats.dwarf.frame_index import FrameIndex
    from machtrace.formats.elf.eh_frame_hdr import read_frame_table

    table = read_frame_table(contents, header)
    if table is None:
        return None
    return FrameIndex(table.starts, table.descriptions - np.uint64(section.address))


def _debug_frame(contents: ElfContents) -> IndexedSection | None:
    found = contents.image.section(".debug_frame")
    if found is None or not found.has_bytes or not isinstance(contents, ElfFileContents):
        return None
    try:
        data = contents.read_section(found)
    except ElfError:
        return None

    def read(offset: int, size: int) -> memoryview:
        if offset < 0 or offset + size > len(data):
            raise MemoryReadError(offset, size)
        return data[offset : offset + size]

    section = CallFrameSection(
        read=read,
        size=len(data),
        arch=contents.image.arch,
        source=f"{contents.source} .debug_frame",
        is_eh_frame=False,
        little_endian=contents.image.layout.little_endian,
    )
    return IndexedSection(section, RegisterNumbering(contents.image.arch), _scan)


def _scan(section: CallFrameSection) -> FrameIndex:
    from machtrace.formats.dwarf.frame_index import build_index

    return build_index(section)
