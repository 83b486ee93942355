"""Compact unwind encodings of each architecture: 32 bits decoded into values.

Source: ``mach-o/compact_unwind_encoding.h``, including its description of the permutation in which
the x86 frameless modes store registers. Registers are DWARF numbers; locations of saved registers
are bytes from the canonical frame address (sp before the call).
"""

from __future__ import annotations

from machtrace.errors import MachOError
from machtrace.formats.macho.tables.unwind_info import (
    MODE_MASK,
    MODE_SHIFT,
    Arm64Mode,
    ArmMode,
    X86Mode,
)
from machtrace.frozen import dataclass
from machtrace.model.arch import ARM_DOUBLES, Arch

DWARF_SECTION_OFFSET = 0x00FFFFFF

ARM64_STACK_SIZE = 0x00FFF000
ARM64_STACK_SIZE_SHIFT = 12
ARM64_STACK_UNIT = 16
ARM64_SAVED_PAIRS = (
    (0x001, (19, 20)),
    (0x002, (21, 22)),
    (0x004, (23, 24)),
    (0x008, (25, 26)),
    (0x010, (27, 28)),
    (0x100, (72, 73)),
    (0x200, (74, 75)),
    (0x400, (76, 77)),
    (0x800, (78, 79)),
)
"""``UNWIND_ARM64_FRAME_*_PAIR``, in the order that they lie downwards in memory; 72 is d8."""

X86_FRAME_REGISTERS = 0x00007FFF
X86_FRAME_OFFSET_SHIFT = 16
X86_STACK_SIZE_SHIFT = 16
X86_STACK_ADJUST_SHIFT = 13
X86_REGISTER_COUNT_SHIFT = 10
X86_PERMUTATION = 0x3FF
X86_SAVED = {
    Arch.X86_64: (3, 12, 13, 14, 15, 6),
    Arch.I386: (3, 1, 2, 7, 6, 5),
}
"""The registers numbered 1 to 6 by ``UNWIND_X86_64_REG_*`` (rbx, r12–r15, rbp) and
``UNWIND_X86_REG_*`` (ebx, ecx, edx, edi, esi, ebp)."""

ARM_STACK_ADJUST = 0x00C00000
ARM_STACK_ADJUST_SHIFT = 22
ARM_SAVED = (
    (0x04, 6),
    (0x02, 5),
    (0x01, 4),
    (0x80, 12),
    (0x40, 11),
    (0x20, 10),
    (0x10, 9),
    (0x08, 8),
)
"""``UNWIND_ARM_FRAME_FIRST_PUSH_*`` and ``SECOND_PUSH_*``, as they lie downwards in memory."""

ARM_DOUBLES_PATTERN = 0x00000700
ARM_DOUBLES_PATTERN_SHIFT = 8
ARM_DOUBLES_SAVED = (
    ((8,), ()),
    ((10, 8), ()),
    ((12, 10, 8), ()),
    ((14, 12, 10, 8), ()),
    ((14, 12), (8, 9, 10)),
    ((14,), (8, 9, 10, 11, 12)),
    ((), (8, 9, 10, 11, 12, 13, 14)),
    ((), (8, 9, 10, 11, 12, 13, 14, 15)),
)
"""The d registers of ``UNWIND_ARM_FRAME_D_REG_COUNT_MASK``: those pushed in sequence, then those
stored upwards from sp after it was lowered by their size and aligned. Source: Apple's libunwind,
``CompactUnwinder.hpp`` (``stepFrameD``)."""
ARM_DOUBLES_ALIGNMENT = 16
_DOUBLE_SIZE = 8

SavedRegisters = tuple[tuple[int, int], ...]
"""(Register, bytes from the canonical frame address); numbers as in
:class:`~machtrace.model.registers.RegisterSet`."""


@dataclass(frozen=True, slots=True)
class AlignedRegisters:
    """Registers saved after the stack was aligned."""

    below: int
    """Bytes from the canonical frame address to their start before the alignment."""
    alignment: int
    """A power of 2; they start at the next lower multiple."""
    registers: tuple[int, ...]
    """The registers upwards, eight bytes each."""


@dataclass(frozen=True, slots=True)
class FramePointerBased:
    """A frame record, which fp points to: the caller's frame pointer and the return address."""

    cfa_offset: int
    """Bytes from fp to the canonical frame address."""
    saved: SavedRegisters
    aligned: AlignedRegisters | None = None


@dataclass(frozen=True, slots=True)
class Frameless:
    """The canonical frame address is ``stack_size`` bytes above sp."""

    stack_size: int
    saved: SavedRegisters


@dataclass(frozen=True, slots=True)
class FramelessIndirect:
    """A frame so large that its size is the operand of the prologue's ``sub``."""

    size_at: int
    """Bytes from the function's start to the 32-bit operand of that instruction."""
    added: int
    """Bytes to add to the operand."""
    saved: SavedRegisters


@dataclass(frozen=True, slots=True)
class InDwarf:
    """A reference to ``__TEXT,__eh_frame``."""

    fde_offset: int
    """The offset of the FDE in that section; 0 if it did not fit in 24 bits."""


Decoded = FramePointerBased | Frameless | FramelessIndirect | InDwarf


def decode(encoding: int, arch: Arch, *, source: str, at: int) -> Decoded | None:
    """Decode an encoding; None if it has no information.

    Args:
        encoding: the 32 bits, flags included.
        arch: the image's architecture.
        source: the table's name in errors.
        at: the function's offset from the Mach-O header, for errors.

    Raises:
        MachOError: the architecture lacks the mode or a register.
    """
    if not encoding & MODE_MASK:
        return None
    try:
        if arch.is_arm64:
            return _decode_arm64(encoding)
        if arch in (Arch.X86_64, Arch.X86_64H):
            return _decode_x86(encoding, X86_SAVED[Arch.X86_64], 8)
        if arch is Arch.I386:
            return _decode_x86(encoding, X86_SAVED[Arch.I386], 4)
        return _decode_arm(encoding)
    except _UnknownEncodingError as error:
        raise MachOError(
            f"{error} in compact unwind encoding {encoding:#010x}", source=source, offset=at
        ) from None


class _UnknownEncodingError(Exception):
    """The fact of an error; :func:`decode` adds the location."""


def _mode(encoding: int) -> int:
    return (encoding & MODE_MASK) >> MODE_SHIFT


def _decode_arm64(encoding: int) -> Decoded:
    mode = _mode(encoding)
    if mode == Arm64Mode.DWARF:
        return InDwarf(encoding & DWARF_SECTION_OFFSET)
    if mode == Arm64Mode.FRAMELESS:
        size = ((encoding & ARM64_STACK_SIZE) >> ARM64_STACK_SIZE_SHIFT) * ARM64_STACK_UNIT
        return Frameless(size, _arm64_pairs(encoding, below=0))
    if mode == Arm64Mode.FRAME:
        # arm64_32 also saves eight bytes per register: only its pointers in data are short.
        return FramePointerBased(16, _arm64_pairs(encoding, below=-16))
    raise _UnknownEncodingError(f"mode {mode}")


def _arm64_pairs(encoding: int, *, below: int) -> SavedRegisters:
    saved: list[tuple[int, int]] = []
    place = below
    for bit, pair in ARM64_SAVED_PAIRS:
        if encoding & bit:
            for register in pair:
                place -= 8
                saved.append((register, place))
    return tuple(saved)


def _decode_x86(encoding: int, registers: tuple[int, ...], word: int) -> Decoded:
    mode = _mode(encoding)
    if mode == X86Mode.DWARF:
        return InDwarf(encoding & DWARF_SECTION_OFFSET)
    if mode == X86Mode.FRAME:
        return FramePointerBased(2 * word, _x86_frame_registers(encoding, registers, word))
    if mode not in (X86Mode.STACK_IMMEDIATE, X86Mode.STACK_INDIRECT):
        raise _UnknownEncodingError(f"mode {mode}")
    count = (encoding >> X86_REGISTER_COUNT_SHIFT) & 7
    order = permuted(registers, count, encoding & X86_PERMUTATION)
    # The return address is between the saved registers and the canonical frame address.
    saved = tuple((register, (i - count - 1) * word) for i, register in enumerate(order))
    size = (encoding >> X86_STACK_SIZE_SHIFT) & 0xFF
    if mode == X86Mode.STACK_IMMEDIATE:
        return Frameless(size * word, saved)
    added = ((encoding >> X86_STACK_ADJUST_SHIFT) & 7) * word
    return FramelessIndirect(size, added, saved)


def _x86_frame_registers(encoding: int, registers: tuple[int, ...], word: int) -> SavedRegisters:
    saved: list[tuple[int, int]] = []
    first = -2 * word - ((encoding >> X86_FRAME_OFFSET_SHIFT) & 0xFF) * word
    for i in range(5):
        code = ((encoding & X86_FRAME_REGISTERS) >> (3 * i)) & 7
        if code == 0:
            continue
        if code >= len(registers):  # never rbp, which is the frame pointer
            raise _UnknownEncodingError(f"register {code}")
        saved.append((registers[code - 1], first + i * word))
    return tuple(saved)


def permuted(registers: tuple[int, ...], count: int, permutation: int) -> tuple[int, ...]:
    """Return ``count`` of six ``registers`` in the order of ``permutation``.

    The number is in a mixed radix (a Lehmer code): the first digit picks one of six, the next one
    of the remaining five, and so on.
    """
    if count > len(registers):
        raise _UnknownEncodingError(f"{count} saved registers")
    left = list(registers)
    digits: list[int] = []
    for i in reversed(range(count)):
        permutation, digit = divmod(permutation, len(registers) - i)
        digits.append(digit)
    if permutation:
        raise _UnknownEncodingError("permutation out of range")
    return tuple(left.pop(digit) for digit in reversed(digits))


def _decode_arm(encoding: int) -> Decoded:
    mode = _mode(encoding)
    if mode == ArmMode.DWARF:
        return InDwarf(encoding & DWARF_SECTION_OFFSET)
    if mode not in (ArmMode.FRAME, ArmMode.FRAME_D):
        raise _UnknownEncodingError(f"mode {mode}")
    cfa_offset = 8 + 4 * ((encoding & ARM_STACK_ADJUST) >> ARM_STACK_ADJUST_SHIFT)
    saved: list[tuple[int, int]] = []
    place = -cfa_offset
    for bit, register in ARM_SAVED:
        if encoding & bit:
            place -= 4
            saved.append((register, place))
    if mode == ArmMode.FRAME:
        return FramePointerBased(cfa_offset, tuple(saved))
    pattern = (encoding & ARM_DOUBLES_PATTERN) >> ARM_DOUBLES_PATTERN_SHIFT
    pushed, stored = ARM_DOUBLES_SAVED[pattern]
    for register in pushed:
        place -= _DOUBLE_SIZE
        saved.append((ARM_DOUBLES[register], place))
    aligned = None
    if stored:
        below = place - _DOUBLE_SIZE * len(stored)
        doubles = tuple(ARM_DOUBLES[register] for register in stored)
        aligned = AlignedRegisters(below, ARM_DOUBLES_ALIGNMENT, doubles)
    return FramePointerBased(cfa_offset, tuple(saved), aligned)
