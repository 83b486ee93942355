"""CPU types and subtypes of Mach-O and fat headers (``mach/machine.h``)."""

from __future__ import annotations

from machtrace.model.arch import Arch

CPU_SUBTYPE_MASK = 0xFF000000
"""Feature bits of a subtype: of arm64e, the version of its pointer-authentication ABI."""

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
    """The architecture; of an unknown subtype, the one that all of its type run as.

    None for a type whose code is not walked here.
    """
    exact = _BY_SUBTYPE.get((cputype, cpusubtype & ~CPU_SUBTYPE_MASK))
    return exact or _BY_TYPE.get(cputype)


def arch_name(cputype: int, cpusubtype: int) -> str:
    """As ``lipo`` prints it; both numbers where the type has no name."""
    subtype = cpusubtype & ~CPU_SUBTYPE_MASK
    name = _OTHER_NAMES.get((cputype, subtype))
    if name is not None:
        return name
    arch = arch_of(cputype, cpusubtype)
    return f"cpu {cputype:#x} subtype {subtype:#x}" if arch is None else arch.value
