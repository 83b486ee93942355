"""AArch64 registers by DWARF number, and the calling convention.

0 to 30 are general, 31 is sp, 64 and up are vectors; the zero register has no number.

Sources: *DWARF for the Arm 64-bit Architecture*; *Procedure Call Standard for the Arm 64-bit
Architecture*; Apple's *Writing ARM64 code for Apple platforms*: x18 is the platform's, and no
function saves it.
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
"""The effect of a call itself, before the callee's first instruction."""
_WRITES = (*(Writes((number,)) for number in range(31)), NOTHING)
_WRITES_SP = (*_WRITES[:31], Writes((SP,)))
_WRITES_VECTOR = tuple(Writes((VECTORS + number,)) for number in range(32))


def signed(value: int, bits: int) -> int:
    """Return the two's complement number in the low ``bits`` of ``value``."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def writes(number: int) -> Writes:
    """Return the effect on a general register; 31 is the zero register."""
    return _WRITES[number]


def writes_sp(number: int) -> Writes:
    """Return the effect on a general register; 31 is sp."""
    return _WRITES_SP[number]


def writes_vector(number: int) -> Writes:
    """Return the effect on a vector register."""
    return _WRITES_VECTOR[number]


_SAVED_VECTORS = tuple(range(VECTORS + 8, VECTORS + 16))
ARM64 = Machine(
    sp=SP,
    fp=FP,
    return_column=LR,
    general=range(32),
    others=_SAVED_VECTORS,
    callee_saved=(*range(19, LR), *_SAVED_VECTORS),
    # x0 and x1 return results; the others either do not matter after a call or, in calls that the
    # compiler added (outlined code, stack probes), are known to survive.
    lost_in_calls=(0, 1, LR),
    entry_sp=0,
)
ENTRY = FrameState.at_entry(ARM64, with_volatile=True)
ENTRY_WITHOUT_VOLATILE = FrameState.at_entry(ARM64, with_volatile=False)
