"""A decoder of Thumb instructions into their effects.

Source: *Arm Architecture Reference Manual, ARMv7-A and ARMv7-R edition*, chapter A6.
"""

# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)

from __future__ import annotations

from collections.abc import Callable

from machtrace.unwinder.arch.arm32.registers import (
    ALWAYS,
    LR,
    PC,
    SP,
    WORD,
    WRITES,
    Decoded,
    Literal,
    TableBranch,
    expanded,
    signed,
)
from machtrace.unwinder.arch.arm32.shared_encodings import (
    by_register,
    decode_coprocessor,
    decode_structure,
    decode_vector,
    literal_size,
    load,
    multiple,
    store,
)
from machtrace.unwinder.code.effects import (
    TRAP,
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    MoveRegister,
    Return,
    SetConstant,
    Writes,
)

# --- A decoder of Thumb instructions of two halfwords into their effects ---
#
# Source: *Arm Architecture Reference Manual, ARMv7-A and ARMv7-R edition*, section A6.3.

Effects = tuple[Effect, ...]

_Operation = Callable[[int, int, int, int, int], Effects]
"""Decodes both halfwords, the operation, Rd and Rn."""

SIZE = 4
_AHEAD = 4
_ADD, _SUB, _OR, _OR_NOT = 8, 13, 2, 3
_COMPARING = frozenset({0, 4, 8, 13})
"""Operations that are TST, TEQ, CMN and CMP without a destination."""


def decode_wide(first: int, second: int) -> Decoded:
    """Decode an instruction of two halfwords."""
    kind = first >> 4 & 0x7F
    match first >> 11 & 3:
        case 0b01:
            if kind & 0b1000000:
                return _coprocessor(first, second)
            if kind & 0b0100000:
                return _data_processing(first, second, _register_operation)
            if kind & 0b0000100:
                return _dual_or_table(first, second)
            return Decoded(SIZE, _multiple(first, second))
        case 0b10:
            if second & 0x8000:
                return Decoded(SIZE, _thumb_wide_branch(first, second))
            if first & 0x200:
                return Decoded(SIZE, _plain_immediate(first, second))
            return _data_processing(first, second, _immediate_operation)
        case _:
            return _last_third(first, second, kind)


def _last_third(first: int, second: int, kind: int) -> Decoded:
    if kind & 0b1000000:
        return _coprocessor(first, second)
    if kind & 0b1110001 == 0b0010000:
        return Decoded(SIZE, decode_structure(0xF4000000 | (first & 0xFF) << 16 | second))
    if not kind & 0b0100000:
        return _single(first, second)
    rd = second >> 8 & 15
    if kind >> 3 == 0b0111:  # SMULL, UMULL, SMLAL, …; SDIV, UDIV
        low = second >> 12 & 15
        return Decoded(SIZE, _general(rd) if kind & 5 == 1 else _general(rd, low))
    # Shifts by a register may set flags; MOV (shifted by a register) in an IT block then does.
    sets_flags = kind & 0b1111001 == 0b0100001 and not second & 0x80
    return Decoded(SIZE, _general(rd), sets_flags=sets_flags)


def _general(*registers: int) -> Effects:
    written = tuple(register for register in registers if register != PC)
    return (Writes(written),) if written else ()


def _coprocessor(first: int, second: int) -> Decoded:
    word = first << 16 | second
    if first >> 8 & 15 == 15:
        if first >> 12 == 15 or first >> 8 == 0xEF:  # as ARM has SIMD: 1111001U
            return Decoded(
                SIZE, decode_vector(0xF2000000 | first << 12 & 0x1000000 | word & 0xFFFFFF)
            )
        return Decoded(SIZE, ())
    size = literal_size(word)
    distance = _AHEAD + 4 * (second & 0xFF) * (1 if first & 0x80 else -1)
    sets_flags = (first, second) == (0xEEF1, 0xFA10)  # VMRS APSR_nzcv
    literal = Literal(distance, size) if size else None
    return Decoded(SIZE, decode_coprocessor(word), sets_flags=sets_flags, literal=literal)


# --- loads and stores ---


def _multiple(first: int, second: int) -> Effects:
    mode, is_load = first >> 7 & 3, bool(first & 0x10)
    if mode in (0, 3):
        if is_load:
            return (TRAP,)  # RFE
        return (WRITES[SP],) if first & 0x20 else ()  # SRS
    return multiple(
        first & 15,
        second,
        is_load=is_load,
        is_up=mode == 1,
        is_before=mode == 2,
        write_back=bool(first & 0x20),
    )


def _dual_or_table(first: int, second: int) -> Decoded:
    rn, is_load = first & 15, first & 0x10
    rt, rt2 = second >> 12 & 15, second >> 8 & 15
    if first & 0x120:  # LDRD, STRD
        amount = 4 * (second & 0xFF) * (1 if first & 0x80 else -1)
        offset, back = amount if first & 0x100 else 0, amount if first & 0x20 else 0
        if is_load and rn == PC:
            return Decoded(SIZE, _general(rt, rt2), literal=Literal(_AHEAD + amount, 8))
        if is_load and PC in (rt, rt2):
            return Decoded(SIZE, _general(rt, rt2))
        return Decoded(SIZE, (load if is_load else store)((rt, rt2), WORD, rn, offset, back))
    if not first & 0x80:  # LDREX; the result of STREX
        return Decoded(SIZE, _general(rt if is_load else rt2))
    kind = second >> 4 & 15
    if is_load:
        if kind < 2:
            table = TableBranch(1 << kind) if rn == PC else None
            return Decoded(SIZE, (IndirectJump(LR if rn == PC else rn),), table=table)
        return Decoded(SIZE, _general(rt, rt2) if kind & 3 == 3 else _general(rt))
    is_plain = kind & 0b1100 == 0b1000  # STL
    return Decoded(SIZE, () if is_plain else _general(second & 15))


def _single(first: int, second: int) -> Decoded:
    """Decode a transfer of one register, of any width."""
    rn, rt = first & 15, second >> 12 & 15
    is_load, width = bool(first & 0x10), 1 << (first >> 5 & 3)
    if is_load and rt == PC and width != WORD:
        return Decoded(SIZE, ())  # PLD, PLI
    if width > WORD:
        return Decoded(SIZE, (TRAP,))
    if is_load and rn == PC:
        amount = second & 0xFFF if first & 0x80 else -(second & 0xFFF)
        return Decoded(SIZE, load((rt,), width, PC, 0), literal=Literal(_AHEAD + amount, width))
    if first & 0x100:
        width = min(width, 2)  # sign-extending
    moving = load if is_load else store
    if first & 0x80:
        return Decoded(SIZE, moving((rt,), width, rn, second & 0xFFF))
    if second & 0x800:
        amount = second & 0xFF if second & 0x200 else -(second & 0xFF)
        is_before, moves = second & 0x400, second & 0x100
        return Decoded(
            SIZE,
            moving((rt,), width, rn, amount if is_before else 0, amount if moves else 0),
        )
    return Decoded(SIZE, by_register(rt, rn, is_load=is_load, write_back=False))


# --- data processing ---


def _data_processing(first: int, second: int, effects_of: _Operation) -> Decoded:
    operation, has_flags = first >> 5 & 15, bool(first & 0x10)
    rd, rn = second >> 8 & 15, first & 15
    if rd == PC:
        return Decoded(SIZE, (), sets_flags=has_flags and operation in _COMPARING)
    return Decoded(SIZE, effects_of(first, second, operation, rd, rn), sets_flags=has_flags)


def _register_operation(first: int, second: int, operation: int, rd: int, rn: int) -> Effects:
    del first
    rm, shift = second & 15, second >> 10 & 0x1C | second >> 6 & 3
    is_plain = not second & 0x30  # LSL by a number
    if operation == _OR and rn == PC and is_plain and not shift:
        return (WRITES[rd],) if rm == PC else (MoveRegister(rd, rm),)
    if operation in (_ADD, _SUB) and is_plain and PC not in (rn, rm):
        return (AddRegister(rd, rn, rm, shift, 1 if operation == _ADD else -1),)
    return (WRITES[rd],)


def _immediate_operation(first: int, second: int, operation: int, rd: int, rn: int) -> Effects:
    value = expanded(first << 1 & 0x800 | second >> 4 & 0x700 | second & 0xFF)
    if rn == PC:
        if operation == _OR:
            return (SetConstant(rd, value),)
        if operation == _OR_NOT:
            return (SetConstant(rd, ~value & 0xFFFFFFFF),)
        return (WRITES[rd],)
    if operation in (_ADD, _SUB):
        return (AddConstant(rd, rn, value if operation == _ADD else -value),)
    return (WRITES[rd],)


def _plain_immediate(first: int, second: int) -> Effects:
    rd, rn = second >> 8 & 15, first & 15
    value = first << 1 & 0x800 | second >> 4 & 0x700 | second & 0xFF
    if rd == PC:
        return ()
    match first >> 4 & 31:
        case 0b00000 | 0b01010 if rn != PC:
            return (AddConstant(rd, rn, -value if first & 0xA0 else value),)
        case 0b00100:
            return (SetConstant(rd, rn << 12 | value),)
        case 0b01100:
            return (InsertConstant(rd, rn << 12 | value, 16),)
        case _:
            return (WRITES[rd],)


# --- branches ---


def _thumb_wide_branch(first: int, second: int) -> Effects:
    sign = first >> 10 & 1
    match second >> 12 & 0b0101:
        case 0b0101 | 0b0100:
            return (Call(None),)  # BL, BLX
        case 0b0001:
            distance = _AHEAD + _far(first, second, sign)
            return (Jump(distance, is_conditional=False),)
        case _:
            return _conditional(first, second, sign)


def _conditional(first: int, second: int, sign: int) -> Effects:
    if first >> 6 & 15 >= 14:
        return _control(first, second)
    value = sign << 20 | (second >> 11 & 1) << 19 | (second >> 13 & 1) << 18
    value |= (first & 0x3F) << 12 | (second & 0x7FF) << 1
    return (Jump(_AHEAD + signed(value, 21), is_conditional=True),)


def _far(first: int, second: int, sign: int) -> int:
    high, low = ~(second >> 13 ^ sign) & 1, ~(second >> 11 ^ sign) & 1
    value = sign << 24 | high << 23 | low << 22 | (first & 0x3FF) << 12 | (second & 0x7FF) << 1
    return signed(value, 25)


def _control(first: int, second: int) -> Effects:
    match first >> 4 & 0x7F:
        case 0x38 | 0x39 | 0x3A | 0x3B:
            return ()  # MSR, hints, barriers
        case 0x3C:
            return (IndirectJump(first & 15 if first & 15 != PC else LR),)  # BXJ
        case 0x3D:
            return (Return(LR),)  # SUBS PC, LR
        case 0x3E | 0x3F:
            return _general(second >> 8 & 15)
        case _:
            return (TRAP,)  # HVC, SMC, UDF


# --- A decoder of Thumb instructions into their effects ---


UNIT = 2
"""Bytes of a halfword; an instruction has one or two."""
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
