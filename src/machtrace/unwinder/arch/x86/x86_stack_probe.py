"""Stack probes of x86 code: the one kind of call that keeps rax.

Where a frame is larger than a page, compilers put its size into eax, call what touches each page of
it (``___chkstk_darwin``), and take rax from the stack pointer at once. Any other call leaves its
result there; but nobody takes a result from sp untouched, since sp has to stay aligned.
"""

from __future__ import annotations

from machtrace.unwinder.code.effects import (
    NOTHING,
    AddConstant,
    AddRegister,
    Call,
    Effect,
    SetConstant,
)

_RAX = 0
"""DWARF's number, in 32-bit code too."""
LEAST_PROBED = 1 << 12
"""Bytes of a frame that is probed, at least."""


def resolve_probes(effects: list[Effect], sp: int) -> None:
    """Replace what takes a probed frame's size from sp by one that says the number.

    Args:
        effects: of a function's instructions, in order; changed in place.
        sp: the stack pointer, by DWARF number.
    """
    lowers = AddRegister(sp, sp, _RAX, 0, -1)
    for at, effect in enumerate(effects):
        if effect != lowers:
            continue
        before = at - 1
        while before > 0 and effects[before] == NOTHING:  # a place behind the call
            before -= 1
        size = effects[before - 1] if before > 0 else NOTHING
        if (
            isinstance(effects[before], Call)
            and isinstance(size, SetConstant)
            and size.destination == _RAX
            and size.value >= LEAST_PROBED
        ):
            effects[at] = AddConstant(sp, sp, -size.value)
