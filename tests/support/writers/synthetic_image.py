"""Small Mach-O images for tests, as they lie in memory, made byte by byte.

Every function is :data:`FUNCTION_SIZE` bytes of real code: it pushes a frame record, calls the next
function and returns. Symbols, function starts and compact unwind information are there, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, pack
from uuid import NAMESPACE_URL, UUID, uuid5

from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64, FileType
from machtrace.formats.macho.load_commands import (
    LC_BUILD_VERSION,
    LC_FUNCTION_STARTS,
    LC_ID_DYLIB,
    LC_ID_DYLINKER,
    LC_MAIN,
    LC_SEGMENT_64,
    LC_SYMTAB,
    LC_UUID,
)
from machtrace.formats.macho.structs import (
    BUILD_VERSION_COMMAND,
    DYLIB_COMMAND,
    ENTRY_POINT_COMMAND,
    LINKEDIT_DATA_COMMAND,
    MACH_HEADER,
    MACH_HEADER_64_SIZE,
    MH_MAGIC_64,
    N_EXT,
    N_SECT,
    S_ATTR_PURE_INSTRUCTIONS,
    S_ATTR_SOME_INSTRUCTIONS,
    SECTION_64,
    SEGMENT_COMMAND_64,
    SYMTAB_COMMAND,
)
from machtrace.model.address import ImageOffset, Svma
from machtrace.model.arch import Arch
from tests.support.writers.function_lists import uleb

FUNCTION_SIZE = 32
"""Bytes of each function."""
TEXT_OFFSET = 0x1000
"""Bytes from the header to the first function."""

_PROGRAM_SVMA = 1 << 32
_MH_DYLDLINK = 0x4
_PLATFORM_MACOS = 1
_MACOS_13 = 13 << 16
_READ_EXECUTE = 5
_READ_WRITE = 3
_READ = 1
_NLIST_64 = Struct("<IBBHQ")
_UNWIND_VERSION = 1
_REGULAR_PAGE = 2


@dataclass(frozen=True, slots=True)
class _Machine:
    cputype: int
    cpusubtype: int
    page: int
    code: bytes
    """Code of one function; its call goes to the code that follows."""
    call: int
    """Where in the function the call is."""
    after_call: int
    encoding: int
    """In ``__unwind_info``: a frame record."""


_MACHINES = {
    Arch.ARM64: _Machine(
        CPU_TYPE_ARM64,
        0,
        0x4000,
        pack(
            "<8I",
            0xA9BF7BFD,  # stp x29, x30, [sp, #-16]!
            0x910003FD,  # mov x29, sp
            0xD10043FF,  # sub sp, sp, #16
            0x94000005,  # bl  .+20
            0x910003BF,  # mov sp, x29
            0xA8C17BFD,  # ldp x29, x30, [sp], #16
            0xD65F03C0,  # ret
            0xD503201F,  # nop
        ),
        12,
        16,
        0x04000000,
    ),
    Arch.X86_64: _Machine(
        CPU_TYPE_X86_64,
        3,
        0x1000,
        (
            b"\x55"  # pushq %rbp
            b"\x48\x89\xe5"  # movq %rsp, %rbp
            b"\x48\x83\xec\x10"  # subq $16, %rsp
            b"\xe8\x13\x00\x00\x00"  # callq .+24
            b"\x48\x83\xc4\x10"  # addq $16, %rsp
            b"\x5d"  # popq %rbp
            b"\xc3"  # retq
        ).ljust(FUNCTION_SIZE, b"\x90"),
        8,
        13,
        0x01000000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticImage:
    """An image, at no particular address yet."""

    path: str
    uuid: UUID
    arch: Arch
    header_svma: Svma
    text_size: int
    """Bytes of ``__TEXT``."""
    data: bytes
    """From the header to the end of the last segment, as mapped."""
    functions: tuple[str, ...]
    """Their names in the symbol table, in the order of their code."""

    def call_of(self, function: int) -> ImageOffset:
        """Return the address of this function's call instruction; its frame is set up."""
        machine = _MACHINES[self.arch]
        return ImageOffset(TEXT_OFFSET + function * FUNCTION_SIZE + machine.call)

    def return_address_of(self, function: int) -> ImageOffset:
        """Return the address that this function's call pushes, or leaves in the link register."""
        machine = _MACHINES[self.arch]
        return ImageOffset(TEXT_OFFSET + function * FUNCTION_SIZE + machine.after_call)


def synthetic_image(
    path: str,
    arch: Arch = Arch.ARM64,
    *,
    filetype: FileType = FileType.DYLIB,
    functions: int = 32,
    data: tuple[str, bytes] | None = None,
) -> SyntheticImage:
    """Create an image for arm64 or x86_64; its UUID follows from its path.

    Args:
        path: the install name, if it is a library.
        arch: what it is for.
        filetype: program, library, bundle or dyld.
        functions: how many it has.
        data: name and bytes of a section to have in a ``__DATA`` segment.
    """
    return _Linker(path, arch, filetype, functions, data).link()


class _Linker:
    def __init__(
        self,
        path: str,
        arch: Arch,
        filetype: FileType,
        functions: int,
        data: tuple[str, bytes] | None,
    ) -> None:
        self.path = path
        self.arch = arch
        self.machine = _MACHINES[arch]
        self.filetype = filetype
        self.section_name, self.section_data = data or ("", b"")
        stem = "".join(c if c.isalnum() else "_" for c in path.rpartition("/")[2])
        self.names = tuple(f"_{stem}_function_{number}" for number in range(functions))
        self.svma = _PROGRAM_SVMA if filetype is FileType.EXECUTE else 0
        self.uuid = uuid5(NAMESPACE_URL, path)

    def link(self) -> SyntheticImage:
        code = self.machine.code * len(self.names)
        text_end = TEXT_OFFSET + len(code)
        unwind = self._unwind_info(text_end)
        text_size = self._paged(text_end + len(unwind))
        data_size = self._paged(len(self.section_data))
        linkedit_at = text_size + data_size
        linkedit, tables = self._linkedit(linkedit_at)
        linkedit_size = self._paged(len(linkedit))

        commands = [self._segment("__PAGEZERO", 0, _PROGRAM_SVMA, 0, 0, 0)] if self.svma else []
        text = self._section("__text", "__TEXT", TEXT_OFFSET, len(code), is_code=True)
        text += self._section("__unwind_info", "__TEXT", text_end, len(unwind))
        commands.append(
            self._segment("__TEXT", self.svma, text_size, 0, text_size, _READ_EXECUTE, text)
        )
        if data_size:
            section = self._section(self.section_name, "__DATA", text_size, len(self.section_data))
            commands.append(
                self._segment(
                    "__DATA",
                    self.svma + text_size,
                    data_size,
                    text_size,
                    data_size,
                    _READ_WRITE,
                    section,
                )
            )
        commands.append(
            self._segment(
                "__LINKEDIT",
                self.svma + linkedit_at,
                linkedit_size,
                linkedit_at,
                len(linkedit),
                _READ,
            )
        )
        commands += [*self._identity(), *tables]
        header = MACH_HEADER.pack(
            MH_MAGIC_64,
            self.machine.cputype,
            self.machine.cpusubtype,
            self.filetype.value,
            len(commands),
            sum(map(len, commands)),
            _MH_DYLDLINK,
        ).ljust(MACH_HEADER_64_SIZE, b"\0")
        start = header + b"".join(commands)
        assert len(start) <= TEXT_OFFSET
        mapped = (start.ljust(TEXT_OFFSET, b"\0") + code + unwind).ljust(text_size, b"\0")
        mapped += self.section_data.ljust(data_size, b"\0")
        return SyntheticImage(
            path=self.path,
            uuid=self.uuid,
            arch=self.arch,
            header_svma=Svma(self.svma),
            text_size=text_size,
            data=mapped + linkedit.ljust(linkedit_size, b"\0"),
            functions=self.names,
        )

    def _paged(self, size: int) -> int:
        return -(-size // self.machine.page) * self.machine.page

    def _segment(
        self,
        name: str,
        vmaddr: int,
        vmsize: int,
        fileoff: int,
        filesize: int,
        protection: int,
        sections: bytes = b"",
    ) -> bytes:
        size = SEGMENT_COMMAND_64.size + len(sections)
        count = len(sections) // SECTION_64.size
        return (
            SEGMENT_COMMAND_64.pack(
                LC_SEGMENT_64, size, name.encode(), vmaddr, vmsize, fileoff, filesize,
                protection, protection, count, 0,
            )
            + sections
        )  # fmt: skip

    def _section(
        self, name: str, segment: str, offset: int, size: int, *, is_code: bool = False
    ) -> bytes:
        flags = S_ATTR_PURE_INSTRUCTIONS | S_ATTR_SOME_INSTRUCTIONS if is_code else 0
        return SECTION_64.pack(
            name.encode(),
            segment.encode(),
            self.svma + offset,
            size,
            offset,
            4,
            0,
            0,
            flags,
            0,
            0,
            0,
        )

    def _identity(self) -> list[bytes]:
        commands = [
            pack("<2I16s", LC_UUID, 24, self.uuid.bytes),
            BUILD_VERSION_COMMAND.pack(
                LC_BUILD_VERSION, BUILD_VERSION_COMMAND.size, _PLATFORM_MACOS, _MACOS_13,
                _MACOS_13, 0,
            ),
        ]  # fmt: skip
        name = self.path.encode() + b"\0"
        name = name.ljust(-(-len(name) // 8) * 8, b"\0")
        if self.filetype is FileType.EXECUTE:
            commands.append(
                ENTRY_POINT_COMMAND.pack(LC_MAIN, ENTRY_POINT_COMMAND.size, TEXT_OFFSET, 0)
            )
        elif self.filetype is FileType.DYLIB:
            size = DYLIB_COMMAND.size
            commands.append(
                DYLIB_COMMAND.pack(LC_ID_DYLIB, size + len(name), size, 2, 1 << 16, 1 << 16) + name
            )
        elif self.filetype is FileType.DYLINKER:
            name += bytes((4 - len(name)) % 8)
            commands.append(pack("<3I", LC_ID_DYLINKER, 12 + len(name), 12) + name)
        return commands

    def _linkedit(self, at: int) -> tuple[bytes, list[bytes]]:
        """The bytes of ``__LINKEDIT``, at this file offset, and the commands that describe them."""
        starts = uleb(TEXT_OFFSET) + bytes([FUNCTION_SIZE]) * (len(self.names) - 1) + b"\0"
        starts = starts.ljust(-(-len(starts) // 8) * 8, b"\0")
        strings = bytearray(b" \0")
        symbols = bytearray()
        for number, name in enumerate(self.names):
            value = self.svma + TEXT_OFFSET + number * FUNCTION_SIZE
            symbols += _NLIST_64.pack(len(strings), N_SECT | N_EXT, 1, 0, value)
            strings += name.encode() + b"\0"
        symbols_at = at + len(starts)
        return starts + bytes(symbols + strings), [
            LINKEDIT_DATA_COMMAND.pack(
                LC_FUNCTION_STARTS, LINKEDIT_DATA_COMMAND.size, at, len(starts)
            ),
            SYMTAB_COMMAND.pack(
                LC_SYMTAB, SYMTAB_COMMAND.size, symbols_at, len(self.names),
                symbols_at + len(symbols), len(strings),
            ),
        ]  # fmt: skip

    def _unwind_info(self, text_end: int) -> bytes:
        """Write one regular page with one entry, which all functions share."""
        encoding = self.machine.encoding
        header, index, page = 28, 32, 56
        return (
            pack("<7I", _UNWIND_VERSION, header, 1, index, 0, index, 2)
            + pack("<I", encoding)
            + pack("<3I", TEXT_OFFSET, page, page)
            + pack("<3I", text_end, 0, page)
            + pack("<I2H", _REGULAR_PAGE, 8, 1)
            + pack("<2I", TEXT_OFFSET, encoding)
        )


def synthetic_dyld(arch: Arch, image_infos: bytes) -> SyntheticImage:
    """Return a dyld whose ``__DATA,__all_image_info`` section has these bytes."""
    return synthetic_image(
        "/usr/lib/dyld",
        arch,
        filetype=FileType.DYLINKER,
        data=("__all_image_info", image_infos),
    )
