"""AArch64's calling convention, as frames follow it.

Source: *Procedure Call Standard for the Arm 64-bit Architecture*, and Apple's *Writing ARM64 code
for Apple platforms*: x18 is the platform's, and nobody saves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.unwinder.arm64_registers import FP, LR, SP, VECTORS, writes
from machtrace.unwinder.frame_state import Machine
from machtrace.unwinder.instruction_effects import (
    AddConstant,
    AddRegister,
    InsertConstant,
    Instruction,
    MoveRegister,
    SetConstant,
)

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
ENTRY = ARM64.entry(with_volatile=True)
ENTRY_WITHOUT_VOLATILE = ARM64.entry(with_volatile=False)
_ARGUMENTS = range(9)


def simplified(code: Sequence[Instruction]) -> list[Instruction]:
    """The same code without what never leads to a frame: numbers and addresses for arguments.

    Long functions are full of it, and every change of a state costs time where paths meet.
    """
    adds_registers = any(isinstance(i, AddRegister) and i.destination == SP for i in code)
    return [_simplified(instruction, keeps_numbers=adds_registers) for instruction in code]


def _simplified(instruction: Instruction, *, keeps_numbers: bool) -> Instruction:
    match instruction:
        case SetConstant(destination) | InsertConstant(destination):
            return instruction if keeps_numbers else writes(destination)
        case AddConstant(destination) if destination in _ARGUMENTS:
            return writes(destination)
        case MoveRegister(destination, source) if destination in _ARGUMENTS and source != LR:
            return writes(destination)
        case _:
            return instruction
