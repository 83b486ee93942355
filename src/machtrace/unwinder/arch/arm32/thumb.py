"""A decoder of Thumb instructions into their effects.

Source: *Arm Architecture Reference Manual, ARMv7-A and ARMv7-R edition*, chapter A6.
"""

# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)

from __future__ import annotations

from machtrace.unwinder.arch.arm32.registers import (
    ALWAYS,
    LR,
    PC,
    SP,
    WORD,
    WRITES,
    Decoded,
    Literal,
    signed,
)
from machtrace.unwinder.arch.arm32.shared_encodings import load, multiple, store
from machtrace.unwinder.arch.arm32.thumb_wide import decode_wide
from machtrace.unwinder.code.effects import (
    TRAP,
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    Jump,
    MoveRegister,
    Return,
    SetConstant,
    Writes,
)

Effects = tuple[Effect, ...]

UNIT = 2
"""Bytes of a halfword; an instruction has one or two."""
_AHEAD = 4
"""The distance from an instruction to the pc that it reads."""
_WIDE = 0b11101


def is_wide(halfword: int) -> bool:
    """Return whether an instruction that starts so has a second halfword."""
    return halfword >> 11 >= _WIDE


def decode(halfword: int, second: int = 0) -> Decoded:  # noqa: C901 - one branch a group
    """Decode one instruction; ``second`` is used only if :func:`is_wide`."""
    if is_wide(halfword):
        return decode_wide(halfword, second)
    match halfword >> 12:
        case 0b0000 | 0b0001 | 0b0010 | 0b0011:
            return _arithmetic(halfword)
        case 0b0100:
            return _registers(halfword)
        case 0b0101:
            return _narrow(_by_register(halfword))
        case 0b0110 | 0b0111 | 0b1000:
            return _narrow(_by_base(halfword))
        case 0b1001:
            operands = halfword >> 8 & 7, WORD, SP, 4 * (halfword & 0xFF)
            moved = load if halfword & 0x800 else store
            return _narrow(moved((operands[0],), *operands[1:]))
        case 0b1010:
            rd, amount = halfword >> 8 & 7, 4 * (halfword & 0xFF)
            return _narrow((AddConstant(rd, SP, amount),) if halfword & 0x800 else (WRITES[rd],))
        case 0b1011:
            return _miscellaneous(halfword)
        case 0b1100:
            return _narrow(
                multiple(
                    halfword >> 8 & 7,
                    halfword & 0xFF,
                    is_load=bool(halfword & 0x800),
                    is_up=True,
                    is_before=False,
                    write_back=True,
                )
            )
        case 0b1101:
            return _branch(halfword)
        case _:
            return _narrow((Jump(_AHEAD + 2 * signed(halfword, 11), is_conditional=False),))


def _narrow(effects: Effects, condition: int = ALWAYS, *, sets_flags: bool = False) -> Decoded:
    return Decoded(UNIT, effects, condition, sets_flags=sets_flags)


def _arithmetic(halfword: int) -> Decoded:
    """Decode shifts, sums and moves of low registers; within IT they do not set flags."""
    rd, rn = halfword & 7, halfword >> 3 & 7
    high, immediate = halfword >> 8 & 7, halfword & 0xFF
    match halfword >> 11:
        case 0b00000:
            return _narrow((WRITES[rd],) if halfword >> 6 & 31 else (MoveRegister(rd, rn),))
        case 0b00001 | 0b00010:
            return _narrow((WRITES[rd],))
        case 0b00011:
            amount, sign = halfword >> 6 & 7, -1 if halfword & 0x200 else 1
            if halfword & 0x400:
                return _narrow((AddConstant(rd, rn, sign * amount),))
            return _narrow((AddRegister(rd, rn, amount, 0, sign),))
        case 0b00100:
            return _narrow((SetConstant(high, immediate),))
        case 0b00101:
            return _narrow((), sets_flags=True)
        case 0b00110:
            return _narrow((AddConstant(high, high, immediate),))
        case _:
            return _narrow((AddConstant(high, high, -immediate),))


def _registers(halfword: int) -> Decoded:
    if halfword & 0x800:  # LDR (literal)
        rt = halfword >> 8 & 7
        literal = Literal(_AHEAD + 4 * (halfword & 0xFF), WORD)
        return Decoded(UNIT, (WRITES[rt],), literal=literal)
    if not halfword & 0x400:
        is_compare = halfword >> 6 & 15 in (8, 10, 11)
        return _narrow(() if is_compare else (WRITES[halfword & 7],), sets_flags=is_compare)
    rd, rm = halfword & 7 | halfword >> 4 & 8, halfword >> 3 & 15
    match halfword >> 8 & 3:
        case 0:
            return _narrow(_add(rd, rm))
        case 1:
            return _narrow((), sets_flags=True)
        case 2:
            return _narrow(moved(rd, rm))
        case _:
            return _narrow((Call(None),) if halfword & 0x80 else branched(rm))


def _add(rd: int, rm: int) -> Effects:
    if rd == PC:
        return (IndirectJump(rm if rm != PC else LR),)
    if rm == PC:
        return (WRITES[rd],)
    if rm == SP:
        return (AddRegister(rd, SP, rd, 0, 1),)
    return (AddRegister(rd, rd, rm, 0, 1),)


def moved(rd: int, rm: int) -> Effects:
    """Decode MOV from register to register."""
    if rd == PC:
        return branched(rm)
    return (WRITES[rd],) if rm == PC else (MoveRegister(rd, rm),)


def branched(register: int) -> Effects:
    """Decode BX, and MOV to pc."""
    if register == LR:
        return (Return(LR),)
    return (IndirectJump(LR if register == PC else register),)


def _by_register(halfword: int) -> Effects:
    return () if halfword >> 9 & 7 < 3 else (WRITES[halfword & 7],)


def _by_base(halfword: int) -> Effects:
    rt, rn, amount = halfword & 7, halfword >> 3 & 7, halfword >> 6 & 31
    size = {0b0110: WORD, 0b0111: 1, 0b1000: 2}[halfword >> 12]
    if halfword & 0x800:
        return load((rt,), size, rn, amount * size)
    return store((rt,), size, rn, amount * size)


def _miscellaneous(halfword: int) -> Decoded:
    match halfword >> 8 & 15:
        case 0b0000:
            amount = 4 * (halfword & 0x7F)
            return _narrow((AddConstant(SP, SP, -amount if halfword & 0x80 else amount),))
        case 0b0001 | 0b0011 | 0b1001 | 0b1011:  # CBZ, CBNZ
            distance = _AHEAD + (halfword >> 3 & 0x40 | halfword >> 2 & 0x3E)
            return _narrow((Jump(distance, is_conditional=True),))
        case 0b0010:
            return _narrow((WRITES[halfword & 7],))
        case 0b1010:
            return _narrow((TRAP,) if halfword >> 6 & 3 == 2 else (WRITES[halfword & 7],))
        case 0b0100 | 0b0101:
            mask = halfword & 0xFF | halfword << 6 & 0x4000
            return _narrow(_stack(mask, is_load=False))
        case 0b1100 | 0b1101:
            mask = halfword & 0xFF | halfword << 7 & 0x8000
            return _narrow(_stack(mask, is_load=True))
        case 0b1111:
            it = halfword & 0xFF if halfword & 15 else 0
            return Decoded(UNIT, (), it=it)
        case 0b0110:
            return _narrow(())  # SETEND, CPS
        case _:
            return _narrow((TRAP,))  # BKPT; none


def _stack(mask: int, *, is_load: bool) -> Effects:
    """Decode PUSH and POP."""
    return multiple(
        SP, mask, is_load=is_load, is_up=is_load, is_before=not is_load, write_back=True
    )


def _branch(halfword: int) -> Decoded:
    condition = halfword >> 8 & 15
    if condition == 14:
        return _narrow((TRAP,))  # UDF
    if condition == 15:
        return _narrow((Writes((0, 1)),))  # SVC
    distance = _AHEAD + 2 * signed(halfword, 8)
    return _narrow((Jump(distance, is_conditional=True),))
