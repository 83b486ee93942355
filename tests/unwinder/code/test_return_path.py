"""Rules for code that switches stacks, from the instructions up to its return."""

from __future__ import annotations

import pytest

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.arch.x86.registers import EAX, EBP, EBX, ECX, EDX, ESI, ESP, MODE_32
from machtrace.unwinder.code.effects import (
    NOTHING,
    AddConstant,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.return_path import MAX_PATH_LENGTH, rule_across_stacks
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule
from machtrace.unwinder.step import step

RETURN = Return(8)


class _Words:
    """Memory of 32-bit words, by address."""

    def __init__(self, words: dict[int, int]) -> None:
        self._words = words

    def read(self, address: Avma, size: int, /) -> bytes:
        if address not in self._words:
            raise MemoryReadError(address, size)
        return self._words[address].to_bytes(4, "little")


def _rule(*code: Effect, start: int = 0) -> UnwindRule | None:
    """Return the rule at ``start`` of code that is entered with sp unknown."""
    state = MODE_32.entry.after(Writes((ESP,)))
    return rule_across_stacks(code, start, state, None)


def _caller(rule: UnwindRule | None, registers: dict[int, int], words: dict[int, int]):
    assert rule is not None
    values = tuple(registers.get(number, 0xBAD0 + number) for number in range(9))
    found = step(rule, RegisterSet(Arch.I386, Avma(0x5000), values), _Words(words), PacMask())
    assert isinstance(found, RegisterSet)
    return found


def _pop(register: int | None) -> Load:
    return Load((register,), 4, ESP, 0, 4)


def test_a_switch_restores_from_the_other_stack():
    """The stack pointer is loaded from memory, registers and return address from the new stack."""
    rule = _rule(Load((ESP,), 4, ECX, 0), _pop(ESI), _pop(EBP), RETURN)
    words = {0x100: 0x9000, 0x9000: 0x51, 0x9004: 0xB9, 0x9008: 0x4444}
    caller = _caller(rule, {ECX: 0x100, EBX: 7}, words)
    assert (caller.pc, caller.sp) == (0x4444, 0x900C)
    assert [caller.get(number) for number in (ESI, EBP, EBX)] == [0x51, 0xB9, 7]


def test_longjmp_before_it_has_loaded_anything_from_the_buffer():
    """All loads are through the register that points to the buffer."""
    code = (
        Load((EBX,), 4, ECX, 0),
        Load((EDX,), 4, ECX, 8),
        MoveRegister(ESP, EDX),
        Load((EDX,), 4, ECX, 12),
        AddConstant(ESP, ESP, 4),
        IndirectJump(EDX),
    )
    words = {0x100: 0xEB, 0x108: 0x9000, 0x10C: 0x4444}
    for done in range(2):
        caller = _caller(_rule(*code, start=done), {ECX: 0x100, EBX: 0xEB}, words)
        assert (caller.pc, caller.sp, caller.get(EBX)) == (0x4444, 0x9004, 0xEB)
    assert _rule(*code, start=len(code) - 1) == UnwindRule(RegisterOffset(ESP, 0), InRegister(EDX))


def test_longjmp_that_jumps_through_its_buffer():
    """The return address is never in a register."""
    code = (Load((EBX,), 4, ECX, 0), Load((ESP,), 4, ECX, 8), IndirectJump(-1, ECX, 12))
    words = {0x100: 0xEB, 0x108: 0x9000, 0x10C: 0x4444}
    for done in range(3):
        known = {ECX: 0x100, EBX: 0xEB, ESP: 0x9000}
        caller = _caller(_rule(*code, start=done), known, words)
        assert (caller.pc, caller.sp, caller.get(EBX)) == (0x4444, 0x9000, 0xEB)


def test_values_stored_on_the_path_are_loaded_again():
    """Not the previous contents of memory."""
    rule = _rule(Store((EAX,), 4, ECX, 4), Load((EBX,), 4, ECX, 4), RETURN)
    assert _caller(rule, {EAX: 0xA, ECX: 0x100, ESP: 0x900}, {0x900: 0x4444}).get(EBX) == 0xA


def test_jumps_are_followed_and_conditional_ones_are_not_taken():
    """The way may lead over a jump."""
    rule = _rule(Jump(1, is_conditional=True), Jump(2, is_conditional=False), Trap(), RETURN)
    assert _caller(rule, {ESP: 0x900}, {0x900: 0x4444}).pc == 0x4444


@pytest.mark.parametrize(
    "code",
    [
        (Call(None), RETURN),
        (Trap(),),
        (Jump(-1, is_conditional=False),),
        (Jump(0, is_conditional=False),),
        (Writes((ESP,)), RETURN),
        (*(NOTHING,) * MAX_PATH_LENGTH, RETURN),
        (NOTHING,),
    ],
)
def test_an_unknown_path_has_no_rule(code: tuple[Effect, ...]):
    """A call comes first, or the code ends, or it cycles."""
    assert _rule(*code) is None


def test_a_known_frame_keeps_its_rule():
    """A lost register is not one that another stack would restore."""
    state = MODE_32.entry.after(Writes((EBX,)))
    rule = state.rule()
    assert rule is not None
    assert rule_across_stacks((RETURN,), 0, state, rule) is rule
    kept = UnwindRule(RegisterOffset(ESP, 4), AtCfa(-4))
    assert rule_across_stacks((), 0, state, kept) is kept
