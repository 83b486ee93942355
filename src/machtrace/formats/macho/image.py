"""The header and load commands of a Mach-O as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from uuid import UUID

from machtrace.errors import MachOError
from machtrace.formats.macho.build_version import (
    BUILD_VERSION_COMMANDS,
    BuildVersion,
    Version,
    parse_build_version,
)
from machtrace.formats.macho.header import MAGICS, FileType, MachHeader, parse_header
from machtrace.formats.macho.load_commands import (
    LC_DYLD_CHAINED_FIXUPS,
    LC_DYLD_EXPORTS_TRIE,
    LC_DYLD_INFO,
    LC_DYLD_INFO_ONLY,
    LC_DYSYMTAB,
    LC_ENCRYPTION_INFO,
    LC_ENCRYPTION_INFO_64,
    LC_FUNCTION_STARTS,
    LC_ID_DYLIB,
    LC_LAZY_LOAD_DYLIB,
    LC_LOAD_DYLIB,
    LC_LOAD_UPWARD_DYLIB,
    LC_LOAD_WEAK_DYLIB,
    LC_MAIN,
    LC_REEXPORT_DYLIB,
    LC_SYMTAB,
    LC_UUID,
    LoadCommand,
    parse_load_commands,
)
from machtrace.formats.macho.segments import SEGMENT_COMMANDS, Section, Segment, parse_segment
from machtrace.formats.macho.structs import (
    DYLD_INFO_COMMAND,
    DYLIB_COMMAND,
    DYSYMTAB_COMMAND,
    ENCRYPTION_INFO_COMMAND,
    ENTRY_POINT_COMMAND,
    LINKEDIT_DATA_COMMAND,
    MACH_HEADER,
    MACH_HEADER_64_SIZE,
    SYMTAB_COMMAND,
    UUID_COMMAND,
    DyldInfoCommand,
    DysymtabCommand,
    EncryptionInfoCommand,
    EntryPointCommand,
    Layout,
    RowT,
    SymtabCommand,
)
from machtrace.frozen import dataclass
from machtrace.model.address import FileOffset, ImageOffset, Svma
from machtrace.model.arch import Arch

_LOAD_DYLIB_COMMANDS = frozenset(
    {
        LC_LOAD_DYLIB,
        LC_LOAD_WEAK_DYLIB,
        LC_REEXPORT_DYLIB,
        LC_LAZY_LOAD_DYLIB,
        LC_LOAD_UPWARD_DYLIB,
    }
)

HeaderReader = Callable[[int, int], memoryview]
"""``reader(offset, size)``: exactly ``size`` bytes, ``offset`` bytes after the header's start."""


@dataclass(frozen=True, slots=True)
class LinkeditData:
    """The location of a table, from a ``linkedit_data_command`` or equivalent fields."""

    offset: FileOffset
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class DylibName:
    """A library's name in an LC_ID_DYLIB or LC_LOAD_DYLIB."""

    name: str
    """The install name: the path that programs linked with it load."""
    current_version: Version
    compatibility_version: Version


@dataclass(frozen=True, kw_only=True)  # without slots, for its cached properties
class MachOImage:
    """A parsed header with its load commands, without contents."""

    source: str
    """The name in errors."""
    header: MachHeader
    commands: tuple[LoadCommand, ...]
    segments: tuple[Segment, ...]
    uuid: UUID | None = None
    build_version: BuildVersion | None = None
    id_dylib: DylibName | None = None
    """A library's own name."""
    load_dylibs: tuple[DylibName, ...] = ()
    """Linked libraries, in the order of two-level ``nlist`` ordinals, which start at 1."""
    entry: EntryPointCommand | None = None
    """LC_MAIN; ``entryoff`` is a :data:`FileOffset`, and so counts from the header."""
    symtab: SymtabCommand | None = None
    dysymtab: DysymtabCommand | None = None
    dyld_info: DyldInfoCommand | None = None
    function_starts: LinkeditData | None = None
    exports_trie: LinkeditData | None = None
    """From LC_DYLD_EXPORTS_TRIE, else from LC_DYLD_INFO; None if it is empty."""
    chained_fixups: LinkeditData | None = None
    encryption_info: EncryptionInfoCommand | None = None

    @property
    def arch(self) -> Arch:
        """The architecture.

        Raises:
            MachOError: the architecture is not supported.
        """
        arch = self.header.arch
        if arch is None:
            raise MachOError(
                f"unsupported architecture {self.header.arch_name}",
                source=self.source,
                offset=4,
                remedy="pass a file for arm, arm64 or x86",
            )
        return arch

    @property
    def identifier(self) -> UUID | None:
        """The UUID, by the name that an ELF image's build-id has, too."""
        return self.uuid

    @property
    def size(self) -> int:
        """Bytes from :attr:`header_svma` to the end of ``__TEXT``; 0 in an object file."""
        return 0 if self.text_segment is None else self.text_segment.vmsize

    @property
    def has_code(self) -> bool:
        """Whether the instructions are included, which a dSYM lacks."""
        return self.header.filetype is not FileType.DSYM

    @property
    def has_dwarf(self) -> bool:
        """Whether there is a ``__debug_info`` that is not empty, compressed or not."""
        found = (self.section("__DWARF", name) for name in ("__debug_info", "__zdebug_info"))
        return any(section is not None and section.size for section in found)

    @property
    def symbol_count(self) -> int:
        """Entries of the symbol table."""
        return 0 if self.symtab is None else self.symtab.nsyms

    @property
    def install_name(self) -> str | None:
        """A library's install name."""
        return None if self.id_dylib is None else self.id_dylib.name

    @cached_property
    def text_segment(self) -> Segment | None:
        """The segment with the header: ``__TEXT``, else the first at file offset 0.

        None in an object file, whose only segment has no name.
        """
        for segment in self.segments:
            if segment.name == "__TEXT":
                return segment
        for segment in self.segments:
            if segment.fileoff == 0 and segment.filesize and segment.name:
                return segment
        return None

    @property
    def header_svma(self) -> Svma:
        """The stated address of the Mach-O header; 0 in an object file."""
        text = self.text_segment
        return Svma(0) if text is None else text.vmaddr

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in the order of ``nlist.n_sect``, which starts at 1."""
        return tuple(section for segment in self.segments for section in segment.sections)

    @cached_property
    def code_sections(self) -> tuple[Section, ...]:
        """The sections with instructions, by address."""
        code = (section for section in self.sections if section.is_code and section.size)
        return tuple(sorted(code, key=lambda section: section.address))

    def segment(self, name: str) -> Segment | None:
        """Return the first segment of this name."""
        return next((segment for segment in self.segments if segment.name == name), None)

    def section(self, segment: str, name: str) -> Section | None:
        """Return the first section with these names; see :attr:`Section.segment_name`."""
        for section in self.sections:
            if section.name == name and section.segment_name == segment:
                return section
        return None

    def section_at(self, address: Svma) -> Section | None:
        """Return the section that contains ``address``."""
        return next((section for section in self.sections if address in section), None)

    def segment_at(self, address: Svma) -> Segment | None:
        """Return the segment that contains ``address``, if it has contents: not ``__PAGEZERO``."""
        for segment in self.segments:
            if address in segment and (segment.filesize or segment.initprot):
                return segment
        return None

    def offset_of(self, address: Svma) -> ImageOffset:
        """Return the offset from the header; negative before it."""
        return ImageOffset(address - self.header_svma)

    def svma_of(self, offset: ImageOffset) -> Svma:
        """Return the stated address at ``offset`` from the header."""
        return Svma(offset + self.header_svma)

    def commands_of(self, *kinds: int) -> Iterable[LoadCommand]:
        """Return the load commands of these kinds, in order."""
        return (command for command in self.commands if command.cmd in kinds)


def parse_image(read: HeaderReader, source: str) -> MachOImage:
    """Parse the header and the load commands after it.

    Of a command that should be unique, the first counts. Segments need not come first: in a dSYM,
    LC_SYMTAB does.

    Raises:
        MachOError: the header or a command is malformed.
        MemoryReadError: raised by ``read``.
    """
    header = parse_header(_start(read), source)
    commands = parse_load_commands(header, read(header.size, header.sizeofcmds), source)
    first: dict[int, LoadCommand] = {}
    for command in commands:
        first.setdefault(command.cmd, command)

    def fields(layout: Layout[RowT], *kinds: int) -> RowT | None:
        command = next((first[kind] for kind in kinds if kind in first), None)
        return None if command is None else command.unpack(layout, source)

    def linkedit(kind: int) -> LinkeditData | None:
        row = fields(LINKEDIT_DATA_COMMAND, kind)
        return None if row is None else LinkeditData(FileOffset(row.dataoff), row.datasize)

    dyld_info = fields(DYLD_INFO_COMMAND, LC_DYLD_INFO_ONLY, LC_DYLD_INFO)
    uuid = fields(UUID_COMMAND, LC_UUID)
    exports_trie = linkedit(LC_DYLD_EXPORTS_TRIE)
    if exports_trie is None and dyld_info is not None:
        exports_trie = LinkeditData(FileOffset(dyld_info.export_off), dyld_info.export_size)
    versions = (parse_build_version(c, source) for c in commands if c.cmd in BUILD_VERSION_COMMANDS)
    return MachOImage(
        source=source,
        header=header,
        commands=commands,
        segments=tuple(parse_segment(c, source) for c in commands if c.cmd in SEGMENT_COMMANDS),
        uuid=None if uuid is None else UUID(bytes=uuid.uuid),
        build_version=next(versions, None),
        id_dylib=_dylib(first[LC_ID_DYLIB], source) if LC_ID_DYLIB in first else None,
        load_dylibs=tuple(_dylib(c, source) for c in commands if c.cmd in _LOAD_DYLIB_COMMANDS),
        entry=fields(ENTRY_POINT_COMMAND, LC_MAIN),
        symtab=fields(SYMTAB_COMMAND, LC_SYMTAB),
        dysymtab=fields(DYSYMTAB_COMMAND, LC_DYSYMTAB),
        dyld_info=dyld_info,
        function_starts=linkedit(LC_FUNCTION_STARTS),
        exports_trie=exports_trie if exports_trie is not None and exports_trie.size else None,
        chained_fixups=linkedit(LC_DYLD_CHAINED_FIXUPS),
        encryption_info=fields(ENCRYPTION_INFO_COMMAND, LC_ENCRYPTION_INFO_64, LC_ENCRYPTION_INFO),
    )


def _start(read: HeaderReader) -> memoryview:
    # There may be no more than a 32-bit header, so the magic decides how much to read.
    magic = read(0, 4)
    kind = MAGICS.get(bytes(magic))
    if kind is None:
        return magic
    return read(0, MACH_HEADER_64_SIZE if kind[0] else MACH_HEADER.size)


def _dylib(command: LoadCommand, source: str) -> DylibName:
    row = command.unpack(DYLIB_COMMAND, source)
    return DylibName(
        command.text(row.name),
        Version.unpack(row.current_version),
        Version.unpack(row.compatibility_version),
    )
