"""The parsed headers of an ELF file, as one value."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.formats.elf.headers import ElfHeader, Section, Segment, loaded_range
from machtrace.formats.elf.structs import PT_LOAD, ElfLayout, ElfType
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BuildId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfImage:
    """An ELF file's headers, read from a file or from memory."""

    header: ElfHeader
    segments: tuple[Segment, ...]
    """Program headers, in the file's order."""
    sections: tuple[Section, ...] = ()
    """Section headers, in the file's order; none if read from memory, or stripped."""
    build_id: BuildId | None = None
    soname: str | None = None
    """``DT_SONAME``."""

    @property
    def arch(self) -> Arch:
        """The architecture of its code."""
        return self.header.arch

    @property
    def layout(self) -> ElfLayout:
        """The width and byte order."""
        return self.header.layout

    @property
    def type(self) -> ElfType:
        """The file type: executable, shared object, core or object file."""
        return self.header.type

    @property
    def header_svma(self) -> Svma:
        """The page of the lowest ``PT_LOAD``, where the header is loaded."""
        return loaded_range(self.segments)[0]

    @property
    def size(self) -> int:
        """Bytes from :attr:`header_svma` to the end of the code; see :func:`loaded_range`."""
        return loaded_range(self.segments)[1]

    @property
    def identifier(self) -> BuildId | None:
        """The build-id, named like a Mach-O's UUID."""
        return self.build_id

    @property
    def has_code(self) -> bool:
        """Whether the instructions are included, which debug files lack."""
        text = self.section(".text")
        return text is None or text.has_bytes

    @property
    def has_dwarf(self) -> bool:
        """Whether a ``.debug_info`` is present and not empty, compressed or not."""
        sections = (self.section(name) for name in (".debug_info", ".zdebug_info"))
        return any(
            section is not None and section.has_bytes and section.size for section in sections
        )

    @property
    def symbol_count(self) -> int:
        """Entries of ``.symtab``."""
        section = self.section(".symtab")
        if section is None or not section.has_bytes or not section.entry_size:
            return 0
        return section.size // section.entry_size

    @property
    def load_segments(self) -> Iterator[Segment]:
        """The ``PT_LOAD`` segments."""
        return (segment for segment in self.segments if segment.type == PT_LOAD)

    @property
    def code_ranges(self) -> tuple[tuple[int, int], ...]:
        """The (start, end) of executable sections, else segments, in Svmas; ascending."""
        ranges = [(int(s.address), int(s.end)) for s in self.sections if s.is_executable]
        if not ranges:
            ranges = [
                (int(segment.address), int(segment.address) + segment.file_size)
                for segment in self.segments
                if segment.is_executable
            ]
        return tuple(sorted((low, high) for low, high in ranges if low < high))

    def segment(self, kind: int) -> Segment | None:
        """Return the first segment of type ``kind`` (a ``PT_`` number)."""
        return next((segment for segment in self.segments if segment.type == kind), None)

    def section(self, name: str) -> Section | None:
        """Return the first section named ``name``."""
        return next((section for section in self.sections if section.name == name), None)

    def file_offset_of(self, address: Svma) -> FileOffset | None:
        """Return the file offset of the byte at ``address``; None if the file does not have it."""
        for segment in self.load_segments:
            delta = address - segment.address
            if 0 <= delta < segment.file_size:
                return FileOffset(segment.offset + delta)
        return None

    def loaded_end(self, address: Svma) -> Svma | None:
        """Return the end of the file's bytes of the segment that holds ``address``."""
        for segment in self.load_segments:
            if segment.address <= address < segment.address + segment.file_size:
                return Svma(segment.address + segment.file_size)
        return None
