"""32-bit arm's registers and calling convention, and the form of decoded instructions.

Registers are numbered as in :class:`~machtrace.model.registers.RegisterSet`: 0 to 12 are general,
13 is sp, 14 lr, 16 to 47 are d0 to d31. pc is not tracked. Source: *Procedure Call Standard for the
Arm Architecture*, and Apple's *iOS ABI Function Call Guide*.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.model.arch import ARM_DOUBLES
from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import Effect, Writes

FP = 7
SP = 13
LR = 14
PC = 15
DOUBLES = ARM_DOUBLES.start
DOUBLE_SIZE = 8
WORD = 4
ALWAYS = 14
"""The condition of unconditional instructions."""

_SAVED_DOUBLES = ARM_DOUBLES[8:16]
_DARWIN_SCRATCH = 9


def _machine(*, keeps_r9: bool) -> Machine:
    return Machine(
        sp=SP,
        fp=FP,
        return_column=LR,
        general=range(LR + 1),
        others=tuple(ARM_DOUBLES),
        callee_saved=(
            *(r for r in range(4, 12) if keeps_r9 or r != _DARWIN_SCRATCH),
            *_SAVED_DOUBLES,
        ),
        lost_in_calls=(0, 1, 2, 3, 12, LR, *(() if keeps_r9 else (_DARWIN_SCRATCH,))),
        entry_sp=0,
        word=WORD,
        doubles=ARM_DOUBLES,
    )


ARM_DARWIN = _machine(keeps_r9=False)
"""Without r9, which no function preserves: iOS since version 3, watchOS."""
ARM = _machine(keeps_r9=True)

WRITES = (*(Writes((number,)) for number in range(PC)), Writes((PC,)))
"""The effect of setting one general register to an unknown value."""


class TableBranch(NamedTuple):
    """A jump by a table that follows it in the code."""

    entry_size: int
    """1 or 2: entries are halfwords to the target from the table's start; 4: bytes."""


class Literal(NamedTuple):
    """Data in the code, which an instruction loads."""

    distance: int
    """Bytes from the instruction, rounded down to a multiple of 4."""
    size: int


class Decoded(NamedTuple):
    """A decoded instruction."""

    size: int
    """2 or 4 bytes."""
    effects: tuple[Effect, ...]
    """The effects in order, if its condition holds."""
    condition: int = ALWAYS
    sets_flags: bool = False
    it: int = 0
    """The low eight bits of IT: the first condition and the mask; 0 for others."""
    literal: Literal | None = None
    table: TableBranch | None = None


def expanded(imm12: int) -> int:
    """Return ``ThumbExpandImm``: a constant of 32 bits from one of 12."""
    byte = imm12 & 0xFF
    match imm12 >> 8:
        case 0:
            return byte
        case 1:
            return byte << 16 | byte
        case 2:
            return byte << 24 | byte << 8
        case 3:
            return byte * 0x01010101
        case _:
            return rotated(0x80 | imm12 & 0x7F, imm12 >> 7)


def rotated(value: int, by: int) -> int:
    """Return ``value`` of 32 bits, rotated right."""
    by %= 32
    return (value >> by | value << (32 - by)) & 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    """Return the two's complement number in the low ``bits`` of ``value``."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def listed(mask: int) -> tuple[int, ...]:
    """Return the registers of a 16-bit list, ascending."""
    return tuple(number for number in range(16) if mask >> number & 1)
