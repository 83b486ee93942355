"""x86-64 registers by DWARF number, and what calls preserve.

Source: *System V Application Binary Interface, AMD64 Architecture Processor Supplement*: figure
3.4 for the convention, figure 3.36 for the numbers.
"""

from __future__ import annotations

from machtrace.unwinder.frame_state import Machine

RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP = range(8)
R11 = 11
RETURN_ADDRESS = 16
BY_ENCODING: tuple[int, ...] = (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, *range(8, 16))
"""DWARF numbers by the numbers in instructions."""

X86_64 = Machine(
    sp=RSP,
    fp=RBP,
    return_column=RETURN_ADDRESS,
    general=range(16),
    others=(),
    callee_saved=(RBX, RBP, 12, 13, 14, 15),
    lost_in_calls=(RAX, RDX, RCX, RSI, RDI, 8, 9, 10, R11),
    entry_sp=-8,
)
