"""32-bit arm's registers and calling convention, and what a decoded instruction is.

Registers are numbered as :class:`~machtrace.model.registers.RegisterSet` has them: 0 to 12 are
general, 13 is sp, 14 lr, 16 to 47 are d0 to d31. pc is none that is followed. Source: *Procedure
Call Standard for the Arm Architecture*, and Apple's *iOS ABI Function Call Guide*.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.model.arch import ARM_DOUBLES
from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import Effect, IndirectJump, Return, Writes

FP = 7
SP = 13
LR = 14
PC = 15
DOUBLES = ARM_DOUBLES.start
DOUBLE_SIZE = 8
WORD = 4
ALWAYS = 14
"""The condition of instructions that have none."""

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
"""Where r9 is nobody's: iOS since version 3, watchOS."""
ARM = _machine(keeps_r9=True)

WRITES = (*(Writes((number,)) for number in range(PC)), Writes((PC,)))
"""An instruction that merely writes one general register."""


class TableBranch(NamedTuple):
    """A jump by a table that lies in the code, right behind it."""

    entry_size: int
    """1 or 2 bytes: halfwords to the target from the table's start; 4: bytes."""


class Literal(NamedTuple):
    """Data among the code, which an instruction reads."""

    distance: int
    """In bytes from the instruction, rounded down to a multiple of 4."""
    size: int


class Decoded(NamedTuple):
    """One instruction."""

    size: int
    """In bytes: 2 or 4."""
    effects: tuple[Effect, ...]
    """What it does, one after the other, if its condition holds."""
    condition: int = ALWAYS
    sets_flags: bool = False
    it: int = 0
    """Of IT: the low eight bits, the first condition and the mask; else 0."""
    literal: Literal | None = None
    table: TableBranch | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the next instruction may follow, even where the condition holds."""
        return not self.effects or not isinstance(self.effects[-1], Return | IndirectJump)


def expanded(imm12: int) -> int:
    """``ThumbExpandImm``: a constant of 32 bits from one of 12."""
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
    """``value`` of 32 bits, rotated right."""
    by %= 32
    return (value >> by | value << (32 - by)) & 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low ``bits`` of ``value``."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def listed(mask: int) -> tuple[int, ...]:
    """The registers of a 16-bit list, ascending."""
    return tuple(number for number in range(16) if mask >> number & 1)
