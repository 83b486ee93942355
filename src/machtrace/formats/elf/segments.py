"""Program headers and section headers, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from machtrace.formats.elf.headers import ElfHeader
from machtrace.formats.elf.structs import PF_X, PT_LOAD, SHF_EXECINSTR, SHT_NOBITS
from machtrace.errors import ElfError
from machtrace.model.address import FileOffset, Svma

PAGE_SIZE = 0x1000
"""The smallest page of any machine here; what the lowest segment's address is floored to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``Phdr``: what the loader maps, or where it finds something."""

    type: int
    """``p_type``: ``PT_LOAD`` and others; kept as a number, for systems add their own."""
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
        """Whether it is mapped to be run."""
        return self.type == PT_LOAD and bool(self.flags & PF_X)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """``Shdr``: a named range of the file."""

    name: str
    type: int
    flags: int
    address: Svma
    """0 where it is not loaded."""
    offset: FileOffset
    size: int
    link: int
    """Index of another section; which one depends on the type."""
    info: int
    entry_size: int

    @property
    def end(self) -> Svma:
        """The address after its last byte."""
        return Svma(self.address + self.size)

    @property
    def is_executable(self) -> bool:
        """Whether it holds instructions."""
        return bool(self.flags & SHF_EXECINSTR)

    @property
    def has_bytes(self) -> bool:
        """Whether the file holds its bytes; ``.bss`` and a debug file's ``.text`` have none."""
        return self.type != SHT_NOBITS


def read_segments(
    table: bytes | memoryview, header: ElfHeader, count: int, source: str
) -> tuple[Segment, ...]:
    """The ``count`` program headers in ``table``, which has just their bytes.

    Raises:
        ElfError: the table is cut short, or a segment goes beyond the end of the address space.
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
    """Where the image starts, and its size in bytes; ``(0, 0)`` where nothing is loaded.

    It starts at the page of the lowest ``PT_LOAD``. It ends with the last executable one, or with
    those after it that adjoin: what comes behind a gap and holds no code may have something
    else mapped before it.
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
