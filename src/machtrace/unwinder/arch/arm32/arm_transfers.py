"""Loads and stores of 32-bit arm that its two instruction sets share.

Source: *Arm Architecture Reference Manual, ARMv7-A and ARMv7-R edition*, chapters A5, A6 and A8.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.unwinder.arch.arm32.registers import LR, PC, SP, WORD, WRITES, listed
from machtrace.unwinder.code.effects import (
    AddConstant,
    IndirectJump,
    Effect,
    Load,
    Return,
    Store,
    Writes,
)


def store(
    registers: Sequence[int], size: int, base: int, offset: int, write_back: int = 0
) -> tuple[Effect, ...]:
    """Registers stored side by side; pc, and what is not whole, are no values to follow."""
    kept = tuple(None if register == PC else register for register in registers)
    if base == PC:
        return ()
    return (Store(kept, size, base, offset, write_back),)


def load(
    registers: Sequence[int], size: int, base: int, offset: int, write_back: int = 0
) -> tuple[Effect, ...]:
    """Registers loaded side by side; pc among them is a return, or a jump.

    From the stack only return addresses are loaded to pc, as LDM only loads those; a single word
    from elsewhere is an entry of a table, or a pointer to a function.
    """
    if base == PC:
        return _literal_load(registers)
    if PC not in registers:
        return (Load(tuple(registers), size, base, offset, write_back),)
    if len(registers) == 1 and base != SP:
        moved = (AddConstant(base, base, write_back),) if write_back else ()
        return (*moved, IndirectJump(base))
    kept = tuple(LR if register == PC else register for register in registers)
    return (Load(kept, size, base, offset, write_back), Return(LR))


def _literal_load(registers: Sequence[int]) -> tuple[Effect, ...]:
    """Registers loaded from a place in the code."""
    if PC in registers:
        return (IndirectJump(LR),)
    if len(registers) == 1 and registers[0] < PC:
        return (WRITES[registers[0]],)
    return (Writes(tuple(registers)),)


def multiple(
    base: int, mask: int, *, is_load: bool, is_up: bool, is_before: bool, write_back: bool
) -> tuple[Effect, ...]:
    """LDM and STM of any kind."""
    registers = listed(mask)
    size = WORD * len(registers)
    start = 0 if is_up else -size
    if is_before == is_up:
        start += WORD
    moved = (size if is_up else -size) if write_back else 0
    if is_load:
        if base in registers:
            moved = 0  # what is loaded counts
        return load(registers, WORD, base, start, moved)
    return store(registers, WORD, base, start, moved)


def by_register(
    register: int, base: int, *, is_load: bool, write_back: bool
) -> tuple[Effect, ...]:
    """A transfer whose address nobody can tell: nothing is saved there."""
    written: tuple[int, ...] = (register,) if is_load and register != PC else ()
    if write_back:
        written += (base,)
    effects: tuple[Effect, ...] = (Writes(written),) if written else ()
    if is_load and register == PC:
        return (*effects, IndirectJump(base if base != PC else LR))
    return effects
