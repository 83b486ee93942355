"""ELF's structures, for both widths and both byte orders.

Source: *System V Application Binary Interface*, chapters 4 and 5 (``elf.h``: ``Elf32_Ehdr`` …
``Elf64_Dyn``). The order of fields differs between the widths only in ``Phdr`` and ``Sym``.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from struct import Struct

from machtrace.frozen import dataclass

MAGIC = b"\x7fELF"
IDENT_SIZE = 16
"""``EI_NIDENT``."""

PN_XNUM = 0xFFFF
"""``e_phnum`` if the count is in section 0's ``sh_info``."""
SHN_XINDEX = 0xFFFF
"""``e_shstrndx`` if the index is in section 0's ``sh_link``."""

PT_LOAD = 1
PT_DYNAMIC = 2
PT_INTERP = 3
PT_NOTE = 4
PT_GNU_EH_FRAME = 0x6474E550
PF_X = 1
PF_W = 2
PF_R = 4

SHT_SYMTAB = 2
SHT_RELA = 4
SHT_NOTE = 7
SHT_NOBITS = 8
SHT_REL = 9
SHT_DYNSYM = 11
SHF_ALLOC = 0x2
SHF_EXECINSTR = 0x4
SHF_COMPRESSED = 0x800
ELFCOMPRESS_ZLIB = 1

DT_NULL = 0
DT_NEEDED = 1
DT_PLTGOT = 3
DT_HASH = 4
DT_STRTAB = 5
DT_SYMTAB = 6
DT_STRSZ = 10
DT_SONAME = 14
DT_GNU_HASH = 0x6FFFFEF5
DT_FLAGS_1 = 0x6FFFFFFB
DF_1_PIE = 0x08000000

NT_GNU_BUILD_ID = 3


class ElfType(Enum):
    """``e_type``."""

    RELOCATABLE = 1
    EXECUTABLE = 2
    SHARED = 3
    """A shared object, or a position-independent executable."""
    CORE = 4


@dataclass(frozen=True)
class ElfLayout:
    """The width and the byte order of a file."""

    is_64: bool
    little_endian: bool

    @property
    def pointer_size(self) -> int:
        """Bytes in an address."""
        return 8 if self.is_64 else 4

    @property
    def byte_order(self) -> str:
        """The prefix for :mod:`struct` and numpy: ``<`` or ``>``."""
        return "<" if self.little_endian else ">"

    @cached_property
    def header(self) -> Struct:
        """``Ehdr`` after ``e_ident``."""
        return Struct(self.byte_order + ("HHIQQQIHHHHHH" if self.is_64 else "HHIIIIIHHHHHH"))

    @cached_property
    def program_header(self) -> Struct:
        """``Phdr``: 64-bit has the flags second, 32-bit last but one."""
        return Struct(self.byte_order + ("IIQQQQQQ" if self.is_64 else "IIIIIIII"))

    @cached_property
    def section_header(self) -> Struct:
        """``Shdr``: name, type, flags, addr, offset, size, link, info, addralign, entsize."""
        return Struct(self.byte_order + ("IIQQQQIIQQ" if self.is_64 else "IIIIIIIIII"))

    @cached_property
    def dynamic(self) -> Struct:
        """``Dyn``: tag, value."""
        return Struct(self.byte_order + ("qQ" if self.is_64 else "iI"))

    @cached_property
    def note(self) -> Struct:
        """``Nhdr``: namesz, descsz, type; the same in both widths."""
        return Struct(self.byte_order + "III")

    @cached_property
    def compression(self) -> Struct:
        """``Chdr``: type, (reserved in 64-bit,) size, addralign."""
        return Struct(self.byte_order + ("IIQQ" if self.is_64 else "III"))


LAYOUTS = {
    (1, 1): ElfLayout(is_64=False, little_endian=True),
    (1, 2): ElfLayout(is_64=False, little_endian=False),
    (2, 1): ElfLayout(is_64=True, little_endian=True),
    (2, 2): ElfLayout(is_64=True, little_endian=False),
}
"""By ``EI_CLASS`` and ``EI_DATA``."""
