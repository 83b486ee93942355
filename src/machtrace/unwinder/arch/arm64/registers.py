"""AArch64 registers by DWARF number, and instructions that merely write one of them.

0 to 30 are general, 31 is sp, 64 and up are vectors; the zero register has no number. Source:
*DWARF for the Arm 64-bit Architecture*.

AArch64's calling convention, as frames follow it.

Source: *Procedure Call Standard for the Arm 64-bit Architecture*, and Apple's *Writing ARM64 code
for Apple platforms*: x18 is the platform's, and nobody saves it.
"""

from __future__ import annotations

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import NOTHING, Writes
from machtrace.unwinder.code.frame_state import FrameState

SP = 31
LR = 30
FP = 29
VECTORS = 64
INSTRUCTION_SIZE = 4

LINKING = Writes((LR,))
"""What a call itself does to registers, before its first instruction."""
_WRITES = (*(Writes((number,)) for number in range(31)), NOTHING)
_WRITES_SP = (*_WRITES[:31], Writes((SP,)))
_WRITES_VECTOR = tuple(Writes((VECTORS + number,)) for number in range(32))


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low ``bits`` of ``value``."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def writes(number: int) -> Writes:
    """Of a general register whose 31 is the zero register."""
    return _WRITES[number]


def writes_sp(number: int) -> Writes:
    """Of a general register whose 31 is sp."""
    return _WRITES_SP[number]


def writes_vector(number: int) -> Writes:
    """Of a vector register."""
    return _WRITES_VECTOR[number]


_SAVED_VECTORS = tuple(range(VECTORS + 8, VECTORS + 16))
ARM64 = Machine(
    sp=SP,
    fp=FP,
    return_column=LR,
    general=range(32),
    others=_SAVED_VECTORS,
    callee_saved=(*range(19, LR), *_SAVED_VECTORS),
    # x0 and x1 carry results; the others either do not matter after a call or, in calls that the
    # compiler made for itself (outlined code, stack probes), are known to it to have survived.
    lost_in_calls=(0, 1, LR),
    entry_sp=0,
)
ENTRY = FrameState.at_entry(ARM64, with_volatile=True)
ENTRY_WITHOUT_VOLATILE = FrameState.at_entry(ARM64, with_volatile=False)
