"""The Mach-O header (``mach-o/loader.h``), and CPU types and subtypes (``mach/machine.h``)."""

from __future__ import annotations

from enum import Enum

from machtrace.errors import MachOError
from machtrace.formats.macho.structs import MACH_HEADER, MACH_HEADER_64_SIZE, MH_MAGIC, MH_MAGIC_64
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch

CPU_SUBTYPE_MASK = 0xFF000000
"""Feature bits of a subtype: for arm64e, the version of the pointer-authentication ABI."""

CPU_TYPE_I386 = 7
CPU_TYPE_X86_64 = 7 | 0x01000000
CPU_TYPE_ARM = 12
CPU_TYPE_ARM64 = 12 | 0x01000000
CPU_TYPE_ARM64_32 = 12 | 0x02000000
CPU_TYPE_POWERPC = 18
CPU_TYPE_POWERPC64 = 18 | 0x01000000

_BY_TYPE = {
    CPU_TYPE_I386: Arch.I386,
    CPU_TYPE_X86_64: Arch.X86_64,
    CPU_TYPE_ARM: Arch.ARM,
    CPU_TYPE_ARM64: Arch.ARM64,
    CPU_TYPE_ARM64_32: Arch.ARM64_32,
}

_BY_SUBTYPE = {
    (CPU_TYPE_X86_64, 8): Arch.X86_64H,
    (CPU_TYPE_ARM, 9): Arch.ARMV7,
    (CPU_TYPE_ARM, 11): Arch.ARMV7S,
    (CPU_TYPE_ARM, 12): Arch.ARMV7K,
    (CPU_TYPE_ARM64, 2): Arch.ARM64E,
    (CPU_TYPE_ARM64, 12): Arch.ARM64E,  # CPU_SUBTYPE_ARM64E_X1
}

_OTHER_NAMES = {
    (CPU_TYPE_ARM, 5): "armv4t",
    (CPU_TYPE_ARM, 6): "armv6",
    (CPU_TYPE_ARM, 7): "armv5e",
    (CPU_TYPE_ARM, 8): "xscale",
    (CPU_TYPE_ARM, 14): "armv6m",
    (CPU_TYPE_ARM, 15): "armv7m",
    (CPU_TYPE_ARM, 16): "armv7em",
    (CPU_TYPE_POWERPC, 0): "ppc",
    (CPU_TYPE_POWERPC, 10): "ppc7400",
    (CPU_TYPE_POWERPC, 11): "ppc7450",
    (CPU_TYPE_POWERPC, 100): "ppc970",
    (CPU_TYPE_POWERPC64, 0): "ppc64",
    (CPU_TYPE_POWERPC64, 100): "ppc970-64",
}


def arch_of(cputype: int, cpusubtype: int) -> Arch | None:
    """Return the architecture, or None; for an unknown subtype, the type's basic one."""
    exact = _BY_SUBTYPE.get((cputype, cpusubtype & ~CPU_SUBTYPE_MASK))
    return exact or _BY_TYPE.get(cputype)


def arch_name(cputype: int, cpusubtype: int) -> str:
    """Return the name that ``lipo`` prints; both numbers for an unknown type."""
    subtype = cpusubtype & ~CPU_SUBTYPE_MASK
    name = _OTHER_NAMES.get((cputype, subtype))
    if name is not None:
        return name
    arch = arch_of(cputype, cpusubtype)
    return f"cpu {cputype:#x} subtype {subtype:#x}" if arch is None else arch.value


MAGICS = {
    magic.to_bytes(4, order): (magic == MH_MAGIC_64, order == "little")
    for magic in (MH_MAGIC, MH_MAGIC_64)
    for order in ("little", "big")
}
"""The first four bytes of every thin Mach-O, with (is it 64-bit, is it little-endian)."""


class FileType(Enum):
    """The purpose of a Mach-O: an ``MH_`` constant of the header."""

    OBJECT = 0x1
    EXECUTE = 0x2
    FVMLIB = 0x3
    CORE = 0x4
    PRELOAD = 0x5
    DYLIB = 0x6
    DYLINKER = 0x7
    BUNDLE = 0x8
    DYLIB_STUB = 0x9
    DSYM = 0xA
    KEXT_BUNDLE = 0xB
    FILESET = 0xC
    GPU_EXECUTE = 0xD
    GPU_DYLIB = 0xE


FLAG_NAMES = (
    "NOUNDEFS",
    "INCRLINK",
    "DYLDLINK",
    "BINDATLOAD",
    "PREBOUND",
    "SPLIT_SEGS",
    "LAZY_INIT",
    "TWOLEVEL",
    "FORCE_FLAT",
    "NOMULTIDEFS",
    "NOFIXPREBINDING",
    "PREBINDABLE",
    "ALLMODSBOUND",
    "SUBSECTIONS_VIA_SYMBOLS",
    "CANONICAL",
    "WEAK_DEFINES",
    "BINDS_TO_WEAK",
    "ALLOW_STACK_EXECUTION",
    "ROOT_SAFE",
    "SETUID_SAFE",
    "NO_REEXPORTED_DYLIBS",
    "PIE",
    "DEAD_STRIPPABLE_DYLIB",
    "HAS_TLV_DESCRIPTORS",
    "NO_HEAP_EXECUTION",
    "APP_EXTENSION_SAFE",
    "NLIST_OUTOFSYNC_WITH_DYLDINFO",
    "SIM_SUPPORT",
    "IMPLICIT_PAGEZERO",
    "0x20000000",
    "0x40000000",
    "DYLIB_IN_CACHE",
)
"""The name of each bit of a header's flags, without ``MH_``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachHeader:
    """``struct mach_header`` or ``struct mach_header_64``."""

    is_64: bool
    """Which of the two; the 32-bit one for arm64_32."""
    little_endian: bool
    cputype: int
    cpusubtype: int
    """The subtype, with the feature bits of the top byte."""
    filetype: FileType
    ncmds: int
    sizeofcmds: int
    """The size of the load commands, in bytes."""
    flags: int

    @property
    def arch(self) -> Arch | None:
        """The architecture; None for an unsupported one, such as ppc."""
        return arch_of(self.cputype, self.cpusubtype)

    @property
    def arch_name(self) -> str:
        """The name that ``lipo`` prints, of any CPU."""
        return arch_name(self.cputype, self.cpusubtype)

    @property
    def flag_names(self) -> tuple[str, ...]:
        """The names of the flags that are set, without ``MH_``."""
        return tuple(name for bit, name in enumerate(FLAG_NAMES) if self.flags >> bit & 1)

    @property
    def size(self) -> int:
        """The size of the header in bytes; load commands follow."""
        return MACH_HEADER_64_SIZE if self.is_64 else MACH_HEADER.size


def is_macho(data: bytes | memoryview) -> bool:
    """Return whether ``data`` starts like a thin Mach-O."""
    return bytes(data[:4]) in MAGICS


def parse_header(data: bytes | memoryview, source: str) -> MachHeader:
    """Return the header at the start of ``data``.

    Raises:
        MachOError: it is not a Mach-O header, is truncated, or has an unknown file type.
    """
    magic = MAGICS.get(bytes(data[:4]))
    if magic is None:
        raise MachOError(
            "not a Mach-O",
            source=source,
            offset=0,
            remedy="pass an executable, library, object file or dSYM of an Apple platform",
        )
    is_64, little_endian = magic
    wanted = MACH_HEADER_64_SIZE if is_64 else MACH_HEADER.size
    if len(data) < wanted:
        raise MachOError(f"the header takes {wanted} bytes, {len(data)} are left",
            source=source,
            offset=0,
        )  # fmt: skip
    row = MACH_HEADER.unpack(data, little_endian=little_endian)
    try:
        filetype = FileType(row.filetype)
    except ValueError:
        raise MachOError(
            f"unknown Mach-O file type {row.filetype:#x}", source=source, offset=12
        ) from None
    return MachHeader(
        is_64=is_64,
        little_endian=little_endian,
        cputype=row.cputype,
        cpusubtype=row.cpusubtype,
        filetype=filetype,
        ncmds=row.ncmds,
        sizeofcmds=row.sizeofcmds,
        flags=row.flags,
    )
