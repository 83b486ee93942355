"""AArch64's calling convention, as frames follow it.

Source: *Procedure Call Standard for the Arm 64-bit Architecture*, and Apple's *Writing ARM64 code
for Apple platforms*: x18 is the platform's, and nobody saves it.
"""

from __future__ import annotations

from machtrace.unwinder.arch.arm64.registers import FP, LR, SP, VECTORS
from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.frame_state import FrameState

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
