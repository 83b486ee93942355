"""Registers of x86 by DWARF number, in both modes, and those that calls preserve.

Sources: *System V Application Binary Interface, AMD64 Architecture Processor Supplement* (figure
3.4 for the convention, figure 3.36 for the numbers) and *Intel386 Architecture Processor
Supplement* (tables 2.3 and 2.14). Apple's ``__eh_frame`` of i386 swaps esp and ebp;
:mod:`machtrace.unwinder.sources.cfi` translates them.
"""

from __future__ import annotations

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.frame_state import FrameState


class Mode:
    """32-bit or 64-bit code, and the DWARF numbers of its registers."""

    __slots__ = (
        "ax",
        "by_encoding",
        "cx",
        "dx",
        "entry",
        "entry_of_leaf",
        "is_64",
        "machine",
        "sp",
        "word",
    )

    def __init__(self, by_encoding: tuple[int, ...], machine: Machine) -> None:
        self.machine = machine
        self.by_encoding = by_encoding
        """DWARF numbers by the numbers in instructions."""
        self.ax, self.cx, self.dx = by_encoding[:3]
        self.sp = machine.sp
        self.word = machine.word
        """Bytes of a register, and of a push."""
        self.is_64 = machine.word == 8  # noqa: PLR2004 (bytes)
        self.entry = FrameState.at_entry(machine, with_volatile=False)
        """The state at a function's first instruction."""
        self.entry_of_leaf = FrameState.at_entry(machine, with_volatile=True)
        """The same, with the caller-saved registers."""


RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP = range(8)
R11 = 11
MODE_64 = Mode(
    (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, *range(8, 16)),
    Machine(
        sp=RSP,
        fp=RBP,
        return_column=16,
        general=range(16),
        others=(),
        callee_saved=(RBX, RBP, 12, 13, 14, 15),
        lost_in_calls=(RAX, RDX, RCX, RSI, RDI, 8, 9, 10, R11),
        entry_sp=-8,
    ),
)
EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI = range(8)
_I386 = Machine(
    sp=ESP,
    fp=EBP,
    return_column=8,
    general=range(8),
    others=(),
    callee_saved=(EBX, EBP, ESI, EDI),
    lost_in_calls=(EAX, ECX, EDX),
    entry_sp=-4,
    word=4,
)
# esp depends on pops, which may be inferred; ebp does not.
_I386.cfa_bases = (EBP, *(base for base in _I386.cfa_bases if base != EBP))
MODE_32 = Mode(tuple(range(8)), _I386)
