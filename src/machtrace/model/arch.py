"""CPU architectures and their DWARF register numbers.

Sources: ``mach/machine.h`` for the names, *DWARF for the Arm 64-bit Architecture*,
*DWARF for the Arm Architecture* and the System V psABIs for x86-64 and i386.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import cached_property

from machtrace.frozen import dataclass


@dataclass(frozen=True, slots=True)
class RegisterNumbers:
    """The DWARF numbers of registers with a role in unwinding."""

    names: tuple[str, ...]
    """Register names by number; empty for a number without a register."""
    sp: int
    fp: int
    lr: int | None
    """The link register; None if calls push the return address."""
    return_column: int
    """The usual return address register of a CIE."""
    callee_saved: tuple[int, ...]
    """Callee-saved registers, sp and fp included; ascending."""
    doubles: range = range(0)
    """Registers that are saved in two words."""


_X86_64 = RegisterNumbers(
    names=(
        "rax",
        "rdx",
        "rcx",
        "rbx",
        "rsi",
        "rdi",
        "rbp",
        "rsp",
        *tuple(f"r{n}" for n in range(8, 16)),
        "rip",
    ),
    sp=7,
    fp=6,
    lr=None,
    return_column=16,
    callee_saved=(3, 6, 7, 12, 13, 14, 15),
)
_I386 = RegisterNumbers(
    names=("eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"),
    sp=4,
    fp=5,
    lr=None,
    return_column=8,
    callee_saved=(3, 4, 5, 6, 7),
)
_ARM64 = RegisterNumbers(
    names=tuple(f"x{n}" for n in range(29))
    + ("fp", "lr", "sp", "pc", "", "ra_sign_state")
    + ("",) * 29
    + tuple(f"v{n}" for n in range(32)),
    sp=31,
    fp=29,
    lr=30,
    return_column=30,
    # x18 is the platform's register; v8–v15 keep their low halves.
    callee_saved=(*range(18, 30), 31, *range(72, 80)),
)
ARM_DOUBLES = range(16, 48)
"""Our numbers of 32-bit arm's d0 to d31. DWARF's are 256 to 287, but a register set is as long as
its highest number, and no register that unwinding needs has these numbers in DWARF."""
_ARM = RegisterNumbers(
    names=(*tuple(f"r{n}" for n in range(13)), "sp", "lr", "pc", *(f"d{n}" for n in range(32))),
    sp=13,
    fp=7,
    lr=14,
    return_column=14,
    callee_saved=(*range(4, 12), 13, *ARM_DOUBLES[8:16]),
    doubles=ARM_DOUBLES,
)
_ARM_DARWIN = replace(
    _ARM,
    # Apple's *iOS ABI Function Call Guide*: r9 is a scratch register since iOS 3.
    callee_saved=tuple(number for number in _ARM.callee_saved if number != 9),  # noqa: PLR2004
)


class Arch(Enum):
    """A CPU type and subtype; the value is the name that ``lipo`` prints."""

    X86_64 = "x86_64"
    X86_64H = "x86_64h"
    I386 = "i386"
    ARM64 = "arm64"
    ARM64E = "arm64e"
    ARM64_32 = "arm64_32"
    ARM = "arm"
    ARMV7 = "armv7"
    ARMV7S = "armv7s"
    ARMV7K = "armv7k"

    @cached_property
    def pointer_size(self) -> int:
        """Bytes of a pointer."""
        return 8 if self in _WIDE else 4

    @cached_property
    def saved_register_size(self) -> int:
        """Bytes of a saved register or return address on the stack."""
        return 8 if self.is_arm64 else self.pointer_size  # arm64_32 has whole registers

    @cached_property
    def registers(self) -> RegisterNumbers:
        """The DWARF register numbers."""
        if self.is_arm64:
            return _ARM64
        if self in (Arch.X86_64, Arch.X86_64H):
            return _X86_64
        if self is Arch.I386:
            return _I386
        return _ARM if self is Arch.ARM else _ARM_DARWIN

    @cached_property
    def is_arm64(self) -> bool:
        """Whether the instruction set is AArch64."""
        return self in (Arch.ARM64, Arch.ARM64E, Arch.ARM64_32)

    @cached_property
    def is_arm(self) -> bool:
        """Whether the instruction sets are 32-bit ARM and Thumb."""
        return self in (Arch.ARM, Arch.ARMV7, Arch.ARMV7S, Arch.ARMV7K)

    @cached_property
    def has_link_register(self) -> bool:
        """Whether calls store the return address in a register."""
        return self.registers.lr is not None


_WIDE = frozenset({Arch.X86_64, Arch.X86_64H, Arch.ARM64, Arch.ARM64E})
