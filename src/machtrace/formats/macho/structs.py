"""Constants and records of Apple's headers, under the headers' own names.

Sources: ``mach-o/loader.h``, ``mach-o/fat.h``, ``mach/vm_prot.h``, ``mach-o/nlist.h``,
``mach-o/stab.h``. A record with a 32-bit and a 64-bit form has one row type and two layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

RowT = TypeVar("RowT")


class Layout(Generic[RowT]):
    """The layout of a record, in either byte order."""

    __slots__ = ("_big", "_little", "_make", "size")

    def __init__(self, make: Callable[..., RowT], fields: str) -> None:
        self._make = make
        self._little = Struct("<" + fields)
        self._big = Struct(">" + fields)
        self.size = self._little.size
        """The size in bytes."""

    def unpack(
        self, data: bytes | memoryview, offset: int = 0, *, little_endian: bool = True
    ) -> RowT:
        """Return the record at ``offset``; the caller checks that it is in ``data``."""
        layout = self._little if little_endian else self._big
        return self._make(*layout.unpack_from(data, offset))

    def unpack_all(self, data: bytes | memoryview, *, little_endian: bool = True) -> Iterator[RowT]:
        """Return the records of ``data``, whose size is a multiple of theirs."""
        layout = self._little if little_endian else self._big
        make = self._make
        return (make(*fields) for fields in layout.iter_unpack(data))

    def pack(self, *fields: Any, little_endian: bool = True) -> bytes:  # noqa: ANN401 (struct's own)
        """Return the bytes of a record."""
        return (self._little if little_endian else self._big).pack(*fields)


# --- mach-o/fat.h ---

FAT_MAGIC = 0xCAFEBABE
FAT_MAGIC_64 = 0xCAFEBABF


class FatArch(NamedTuple):
    """``struct fat_arch`` and ``struct fat_arch_64``."""

    cputype: int
    cpusubtype: int
    offset: int
    size: int
    align: int
    """The exponent of a power of 2."""
    reserved: int = 0


FAT_ARCH = Layout(FatArch, "IIIII")
FAT_ARCH_64 = Layout(FatArch, "IIQQII")

# --- mach-o/loader.h: the header ---

MH_MAGIC = 0xFEEDFACE
MH_MAGIC_64 = 0xFEEDFACF


class MachHeaderRow(NamedTuple):
    """``struct mach_header``, and ``struct mach_header_64`` without its last, reserved word."""

    magic: int
    cputype: int
    cpusubtype: int
    filetype: int
    ncmds: int
    sizeofcmds: int
    flags: int


MACH_HEADER = Layout(MachHeaderRow, "7I")
MACH_HEADER_64_SIZE = 32

# --- mach-o/loader.h: load commands ---


class SegmentCommand(NamedTuple):
    """``struct segment_command`` and ``struct segment_command_64``."""

    cmd: int
    cmdsize: int
    segname: bytes
    vmaddr: int
    vmsize: int
    fileoff: int
    filesize: int
    maxprot: int
    initprot: int
    nsects: int
    flags: int


SEGMENT_COMMAND = Layout(SegmentCommand, "II16s8I")
SEGMENT_COMMAND_64 = Layout(SegmentCommand, "II16s4Q4I")


class SectionRow(NamedTuple):
    """``struct section`` and ``struct section_64``."""

    sectname: bytes
    segname: bytes
    addr: int
    size: int
    offset: int
    align: int
    reloff: int
    nreloc: int
    flags: int
    reserved1: int
    reserved2: int
    reserved3: int = 0


SECTION = Layout(SectionRow, "16s16s9I")
SECTION_64 = Layout(SectionRow, "16s16sQQ8I")


class SymtabCommand(NamedTuple):
    """``struct symtab_command``."""

    cmd: int
    cmdsize: int
    symoff: int
    nsyms: int
    stroff: int
    strsize: int


SYMTAB_COMMAND = Layout(SymtabCommand, "6I")


class DysymtabCommand(NamedTuple):
    """``struct dysymtab_command``."""

    cmd: int
    cmdsize: int
    ilocalsym: int
    nlocalsym: int
    iextdefsym: int
    nextdefsym: int
    iundefsym: int
    nundefsym: int
    tocoff: int
    ntoc: int
    modtaboff: int
    nmodtab: int
    extrefsymoff: int
    nextrefsyms: int
    indirectsymoff: int
    nindirectsyms: int
    extreloff: int
    nextrel: int
    locreloff: int
    nlocrel: int


DYSYMTAB_COMMAND = Layout(DysymtabCommand, "20I")


class LinkeditDataCommand(NamedTuple):
    """``struct linkedit_data_command``: the location of a table in ``__LINKEDIT``."""

    cmd: int
    cmdsize: int
    dataoff: int
    datasize: int


LINKEDIT_DATA_COMMAND = Layout(LinkeditDataCommand, "4I")


class DyldInfoCommand(NamedTuple):
    """``struct dyld_info_command``."""

    cmd: int
    cmdsize: int
    rebase_off: int
    rebase_size: int
    bind_off: int
    bind_size: int
    weak_bind_off: int
    weak_bind_size: int
    lazy_bind_off: int
    lazy_bind_size: int
    export_off: int
    export_size: int


DYLD_INFO_COMMAND = Layout(DyldInfoCommand, "12I")


class DylibCommand(NamedTuple):
    """``struct dylib_command``, with the fields of its ``struct dylib``."""

    cmd: int
    cmdsize: int
    name: int
    """Offset of the name's bytes from the start of the command (``union lc_str``)."""
    timestamp: int
    current_version: int
    compatibility_version: int


DYLIB_COMMAND = Layout(DylibCommand, "6I")


class BuildVersionCommand(NamedTuple):
    """``struct build_version_command``."""

    cmd: int
    cmdsize: int
    platform: int
    minos: int
    sdk: int
    ntools: int


BUILD_VERSION_COMMAND = Layout(BuildVersionCommand, "6I")


class VersionMinCommand(NamedTuple):
    """``struct version_min_command``."""

    cmd: int
    cmdsize: int
    version: int
    sdk: int


VERSION_MIN_COMMAND = Layout(VersionMinCommand, "4I")


class EntryPointCommand(NamedTuple):
    """``struct entry_point_command``."""

    cmd: int
    cmdsize: int
    entryoff: int
    stacksize: int


ENTRY_POINT_COMMAND = Layout(EntryPointCommand, "IIQQ")


class EncryptionInfoCommand(NamedTuple):
    """``struct encryption_info_command``, and its 64-bit twin without the padding."""

    cmd: int
    cmdsize: int
    cryptoff: int
    cryptsize: int
    cryptid: int
    """0 if nothing is encrypted (yet)."""


ENCRYPTION_INFO_COMMAND = Layout(EncryptionInfoCommand, "5I")


class UuidCommand(NamedTuple):
    """``struct uuid_command``."""

    cmd: int
    cmdsize: int
    uuid: bytes


UUID_COMMAND = Layout(UuidCommand, "II16s")


class SourceVersionCommand(NamedTuple):
    """``struct source_version_command``."""

    cmd: int
    cmdsize: int
    version: int
    """``A.B.C.D.E`` in 24, 10, 10, 10 and 10 bits."""


SOURCE_VERSION_COMMAND = Layout(SourceVersionCommand, "IIQ")


class StringCommand(NamedTuple):
    """``struct rpath_command``, ``struct dylinker_command`` and others with one string."""

    cmd: int
    cmdsize: int
    name: int
    """Offset of the string's bytes from the start of the command (``union lc_str``)."""


STRING_COMMAND = Layout(StringCommand, "III")


class NoteCommand(NamedTuple):
    """``struct note_command``."""

    cmd: int
    cmdsize: int
    data_owner: bytes
    offset: int
    size: int


NOTE_COMMAND = Layout(NoteCommand, "II16sQQ")


class FilesetEntryCommand(NamedTuple):
    """``struct fileset_entry_command``."""

    cmd: int
    cmdsize: int
    vmaddr: int
    fileoff: int
    entry_id: int
    """Offset of the name's bytes from the start of the command (``union lc_str``)."""
    reserved: int


FILESET_ENTRY_COMMAND = Layout(FilesetEntryCommand, "IIQQII")

# --- mach-o/loader.h: sections ---

SECTION_TYPE = 0x000000FF
SECTION_ATTRIBUTES = 0xFFFFFF00
S_ATTR_PURE_INSTRUCTIONS = 0x80000000
S_ATTR_SOME_INSTRUCTIONS = 0x00000400
S_ATTR_DEBUG = 0x02000000
INDIRECT_SYMBOL_LOCAL = 0x80000000
INDIRECT_SYMBOL_ABS = 0x40000000

# --- mach/vm_prot.h ---

VM_PROT_READ = 0x1
VM_PROT_WRITE = 0x2
VM_PROT_EXECUTE = 0x4


# --- mach-o/nlist.h ---

N_STAB = 0xE0
N_PEXT = 0x10
N_TYPE = 0x0E
N_EXT = 0x01
N_UNDF = 0x0
N_ABS = 0x2
N_INDR = 0xA
N_PBUD = 0xC
N_SECT = 0xE
N_ARM_THUMB_DEF = 0x0008
REDACTED_NAME = b"<redacted>"
"""The name of formerly local symbols in a shared cache (Libc, ``gen/backtrace.c``)."""

# --- mach-o/stab.h ---

STAB_NAMES = {
    0x20: "GSYM",
    0x22: "FNAME",
    0x24: "FUN",
    0x26: "STSYM",
    0x28: "LCSYM",
    0x2A: "MAIN",
    0x2E: "BNSYM",
    0x30: "PC",
    0x32: "AST",
    0x3A: "MAC_UNDEF",
    0x3C: "OPT",
    0x40: "RSYM",
    0x44: "SLINE",
    0x46: "DSLINE",
    0x48: "BSLINE",
    0x4E: "ENSYM",
    0x60: "SSYM",
    0x64: "SO",
    0x66: "OSO",
    0x68: "LIB",
    0x80: "LSYM",
    0x82: "BINCL",
    0x84: "SOL",
    0x86: "PARAMS",
    0x88: "VERSION",
    0x8A: "OLEVEL",
    0xA0: "PSYM",
    0xA2: "EINCL",
    0xA4: "ENTRY",
    0xC0: "LBRAC",
    0xC2: "EXCL",
    0xE0: "RBRAC",
    0xE2: "BCOMM",
    0xE4: "ECOMM",
    0xE8: "ECOML",
    0xFE: "LENG",
}
"""Names by ``n_type``, without ``N_``."""
