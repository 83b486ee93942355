"""Segments and their sections (``mach-o/loader.h``: ``segment_command``, ``section``)."""

from __future__ import annotations

from machtrace.errors import MachOError
from machtrace.formats.macho.load_commands import LC_SEGMENT, LC_SEGMENT_64, LoadCommand
from machtrace.formats.macho.structs import (
    S_ATTR_DEBUG,
    S_ATTR_PURE_INSTRUCTIONS,
    S_ATTR_SOME_INSTRUCTIONS,
    SECTION,
    SECTION_64,
    SECTION_ATTRIBUTES,
    SECTION_TYPE,
    SEGMENT_COMMAND,
    SEGMENT_COMMAND_64,
    VM_PROT_EXECUTE,
    VM_PROT_READ,
    VM_PROT_WRITE,
)
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset, Svma

SEGMENT_COMMANDS = frozenset({LC_SEGMENT, LC_SEGMENT_64})

S_ZEROFILL = 0x1
S_NON_LAZY_SYMBOL_POINTERS = 0x6
S_LAZY_SYMBOL_POINTERS = 0x7
S_SYMBOL_STUBS = 0x8
S_GB_ZEROFILL = 0xC
S_THREAD_LOCAL_ZEROFILL = 0x12

SECTION_TYPE_NAMES = {
    0x0: "S_REGULAR",
    0x1: "S_ZEROFILL",
    0x2: "S_CSTRING_LITERALS",
    0x3: "S_4BYTE_LITERALS",
    0x4: "S_8BYTE_LITERALS",
    0x5: "S_LITERAL_POINTERS",
    0x6: "S_NON_LAZY_SYMBOL_POINTERS",
    0x7: "S_LAZY_SYMBOL_POINTERS",
    0x8: "S_SYMBOL_STUBS",
    0x9: "S_MOD_INIT_FUNC_POINTERS",
    0xA: "S_MOD_TERM_FUNC_POINTERS",
    0xB: "S_COALESCED",
    0xC: "S_GB_ZEROFILL",
    0xD: "S_INTERPOSING",
    0xE: "S_16BYTE_LITERALS",
    0xF: "S_DTRACE_DOF",
    0x10: "S_LAZY_DYLIB_SYMBOL_POINTERS",
    0x11: "S_THREAD_LOCAL_REGULAR",
    0x12: "S_THREAD_LOCAL_ZEROFILL",
    0x13: "S_THREAD_LOCAL_VARIABLES",
    0x14: "S_THREAD_LOCAL_VARIABLE_POINTERS",
    0x15: "S_THREAD_LOCAL_INIT_FUNCTION_POINTERS",
    0x16: "S_INIT_FUNC_OFFSETS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section; its number in ``nlist`` is its index among all sections, from 1."""

    name: str
    segment_name: str
    """The section's own statement; in an object file, the containing segment has no name."""
    address: Svma
    size: int
    """In bytes."""
    offset: FileOffset
    """The file offset of the contents; 0 if the file has none, as in a dSYM."""
    align: int
    """The exponent of a power of 2."""
    flags: int
    reserved1: int
    """For stubs and symbol pointers: the index of the first one in the indirect symbols."""
    reserved2: int
    """For stubs: the size of each, in bytes."""
    reloff: FileOffset = FileOffset(0)
    nreloc: int = 0

    @property
    def end(self) -> Svma:
        """The address after the last byte."""
        return Svma(self.address + self.size)

    @property
    def type(self) -> int:
        """The section type: an ``S_`` constant."""
        return self.flags & SECTION_TYPE

    @property
    def type_name(self) -> str:
        """The name in ``loader.h``; the number if it is unknown."""
        return SECTION_TYPE_NAMES.get(self.type) or f"{self.type:#x}"

    @property
    def attributes(self) -> int:
        """The ``S_ATTR_`` bits."""
        return self.flags & SECTION_ATTRIBUTES

    @property
    def is_code(self) -> bool:
        """Whether the section has instructions.

        A dSYM's copy of the section list may lack the attributes: ``__TEXT,__text`` counts anyway.
        """
        if self.attributes & S_ATTR_DEBUG:
            return False
        return bool(self.attributes & (S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS)) or (
            self.name == "__text" and self.segment_name == "__TEXT"
        )

    @property
    def is_zerofill(self) -> bool:
        """Whether the contents are zeros that no file stores."""
        return self.type in (S_ZEROFILL, S_GB_ZEROFILL, S_THREAD_LOCAL_ZEROFILL)

    def __contains__(self, address: Svma) -> bool:
        return self.address <= address < self.address + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of the file and its address in memory."""

    name: str
    """The name; empty in an object file."""
    vmaddr: Svma
    vmsize: int
    """In bytes."""
    fileoff: FileOffset
    filesize: int
    """The size in the file, in bytes; the rest of ``vmsize`` is zeros."""
    maxprot: int
    initprot: int
    flags: int
    sections: tuple[Section, ...] = ()

    @property
    def end(self) -> Svma:
        """The address after the last byte."""
        return Svma(self.vmaddr + self.vmsize)

    @property
    def is_executable(self) -> bool:
        """Whether the segment is mapped executable."""
        return bool(self.initprot & VM_PROT_EXECUTE)

    def __contains__(self, address: Svma) -> bool:
        return self.vmaddr <= address < self.vmaddr + self.vmsize


def protection(bits: int) -> str:
    """Format ``VM_PROT`` bits: ``r-x``."""
    letters = ((VM_PROT_READ, "r"), (VM_PROT_WRITE, "w"), (VM_PROT_EXECUTE, "x"))
    return "".join(letter if bits & bit else "-" for bit, letter in letters)


def _name(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def parse_segment(command: LoadCommand, source: str) -> Segment:
    """Parse an LC_SEGMENT or LC_SEGMENT_64.

    Raises:
        MachOError: the command is too short for its sections, or its addresses or offsets wrap.
    """
    is_64 = command.cmd == LC_SEGMENT_64
    layout = SEGMENT_COMMAND_64 if is_64 else SEGMENT_COMMAND
    section_layout = SECTION_64 if is_64 else SECTION
    row = command.unpack(layout, source)
    name = _name(row.segname)
    room = (len(command.data) - layout.size) // section_layout.size
    if row.nsects > room:
        raise MachOError(
            f"segment {name!r} claims {row.nsects} sections, its command holds {room}",
            source=source,
            offset=command.offset,
        )
    limit = 1 << (64 if is_64 else 32)
    if row.vmaddr + row.vmsize > limit or row.fileoff + row.filesize > limit:
        raise MachOError(
            f"segment {name!r} goes beyond the end of the address space",
            source=source,
            offset=command.offset,
        )
    table = command.data[layout.size : layout.size + row.nsects * section_layout.size]
    rows = tuple(section_layout.unpack_all(table, little_endian=command.little_endian))
    # The end itself must be an address, since columns of ends are 64 bits wide.
    if any(section.addr + section.size > min(limit, (1 << 64) - 1) for section in rows):
        raise MachOError(
            f"a section of segment {name!r} goes beyond the end of the address space",
            source=source,
            offset=command.offset,
        )
    return Segment(
        name=name,
        vmaddr=Svma(row.vmaddr),
        vmsize=row.vmsize,
        fileoff=FileOffset(row.fileoff),
        filesize=row.filesize,
        maxprot=row.maxprot,
        initprot=row.initprot,
        flags=row.flags,
        sections=tuple(
            Section(
                name=_name(section.sectname),
                segment_name=_name(section.segname),
                address=Svma(section.addr),
                size=section.size,
                offset=FileOffset(section.offset),
                align=section.align,
                flags=section.flags,
                reserved1=section.reserved1,
                reserved2=section.reserved2,
                reloff=FileOffset(section.reloff),
                nreloc=section.nreloc,
            )
            for section in rows
        ),
    )
