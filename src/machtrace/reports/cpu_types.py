"""Architectures by the numbers that reports have for them: ``mach/machine.h``."""

from __future__ import annotations

_WIDE = 0x0100_0000
_CAPABILITIES = 0xFF00_0000
"""Bits of a subtype that say what the code can do, not which processor it is for."""
_TYPES = {
    7: "i386",
    7 | _WIDE: "x86_64",
    12: "arm",
    12 | _WIDE: "arm64",
    12 | 0x0200_0000: "arm64_32",
    18: "ppc",
    18 | _WIDE: "ppc64",
}
_SUBTYPES = {
    (12, 6): "armv6",
    (12, 9): "armv7",
    (12, 11): "armv7s",
    (12, 12): "armv7k",
    (12 | _WIDE, 2): "arm64e",
    (7 | _WIDE, 8): "x86_64h",
}


def arch_name(cpu_type: int, cpu_subtype: int) -> str | None:
    """``arm64e``; None where the type is not known. Negative numbers are signed ones."""
    cpu_type &= 0xFFFF_FFFF
    subtype = cpu_subtype & 0xFFFF_FFFF & ~_CAPABILITIES
    return _SUBTYPES.get((cpu_type, subtype)) or _TYPES.get(cpu_type)
