"""A decoder of ARM instructions into their effects.

Source: *Arm Architecture Reference Manual, ARMv7-A and ARMv7-R edition*, chapter A5.
"""

# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)

from __future__ import annotations

from machtrace.unwinder.arch.arm32.registers import (
    LR,
    PC,
    SP,
    WORD,
    WRITES,
    Decoded,
    Literal,
    TableBranch,
    rotated,
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

Effects = tuple[Effect, ...]

SIZE = 4
"""Bytes of an instruction."""
_AHEAD = 8
"""The distance from an instruction to the pc that it reads."""
_COMPARES = range(8, 12)
_ADD, _SUB, _MOV, _MVN = 4, 2, 13, 15


def decode(word: int) -> Decoded:
    """Decode one instruction of 32 bits."""
    condition = word >> 28
    if condition == 15:
        return Decoded(SIZE, _unconditional(word))
    group = word >> 25 & 7
    if group <= 1 and not (group == 0 and word & 0x90 == 0x90):
        return _data_processing(word, condition)
    effects, literal = _others(word, group)
    flags = word & 0x0F1000F0 == 0x00100090  # MULS and similar
    flags = flags or word & 0x0FFFFFFF == 0x0EF1FA10  # VMRS APSR_nzcv
    return Decoded(SIZE, effects, condition, sets_flags=flags, literal=literal)


def _others(word: int, group: int) -> tuple[Effects, Literal | None]:
    match group:
        case 0:
            return _multiply_or_extra(word), None
        case 2:
            return _load_store(word), _literal(word)
        case 3:
            if word & 0x10:
                return _media(word), None
            return _load_store_register(word), None
        case 4:
            return (
                multiple(
                    word >> 16 & 15,
                    word & 0xFFFF,
                    is_load=bool(word & 1 << 20),
                    is_up=bool(word & 1 << 23),
                    is_before=bool(word & 1 << 24),
                    write_back=bool(word & 1 << 21),
                ),
                None,
            )
        case 5:
            if word & 1 << 24:
                return (Call(None),), None
            return (Jump(_AHEAD + 4 * signed(word, 24), is_conditional=False),), None
        case _:
            if word >> 24 & 15 == 15:  # SVC
                return (Writes((0, 1)),), None
            size = literal_size(word)
            distance = _AHEAD + 4 * (word & 0xFF) * (1 if word & 1 << 23 else -1)
            return decode_coprocessor(word), Literal(distance, size) if size else None


def _unconditional(word: int) -> Effects:
    top = word >> 24 & 15
    if top >> 1 == 0b101:
        return (Call(None),)  # BLX
    if top >> 1 == 0b001:
        return decode_vector(word)
    if top == 0b0100 and not word & 1 << 20:
        return decode_structure(word)
    if top >> 1 == 0b100:
        return _exceptions(word)
    if top >> 2 == 0b11 and top != 15:
        return decode_coprocessor(word)
    return ()  # PLD, barriers, CPS


def _exceptions(word: int) -> Effects:
    if word & 1 << 20:
        return (TRAP,)  # RFE
    return (WRITES[SP],) if word & 1 << 21 else ()  # SRS


# --- data processing ---


def _data_processing(word: int, condition: int) -> Decoded:
    operation, has_flags = word >> 21 & 15, bool(word & 1 << 20)
    if operation in _COMPARES and not has_flags:
        return Decoded(SIZE, _miscellaneous(word), condition)
    if operation in _COMPARES:
        return Decoded(SIZE, (), condition, sets_flags=True)
    rd, rn = word >> 12 & 15, word >> 16 & 15
    effects = _immediate(word, operation, rd, rn) if word & 1 << 25 else None
    if effects is None:
        effects = _register(word, operation, rd, rn)
    table = None
    if rd == PC and operation == _ADD and isinstance(effects[-1], IndirectJump):
        table = TableBranch(4)
    return Decoded(SIZE, effects, condition, sets_flags=has_flags, table=table)


def _immediate(word: int, operation: int, rd: int, rn: int) -> Effects:
    value = rotated(word & 0xFF, word >> 7 & 30)
    if rd == PC:
        return _to_pc(rn, returns=rn == LR and operation == _SUB)
    match operation:
        case 2 | 4 if rn != PC:
            return (AddConstant(rd, rn, value if operation == _ADD else -value),)
        case 13:
            return (SetConstant(rd, value),)
        case 15:
            return (SetConstant(rd, ~value & 0xFFFFFFFF),)
        case _:
            return (WRITES[rd],)


def _register(word: int, operation: int, rd: int, rn: int) -> Effects:
    rm, shift = word & 15, word >> 7 & 31
    is_plain = not word & 0x70  # LSL by a number
    if operation == _MOV and is_plain and not shift:
        return moved(rd, rm)
    if rd == PC:
        return _to_pc(rm if rn == PC else rn, returns=False)
    if operation in (_ADD, _SUB) and is_plain and PC not in (rn, rm):
        return (AddRegister(rd, rn, rm, shift, 1 if operation == _ADD else -1),)
    return (WRITES[rd],)


def moved(rd: int, rm: int) -> Effects:
    """Decode MOV from register to register."""
    if rd == PC:
        return (Return(LR),) if rm == LR else _to_pc(rm, returns=False)
    return (WRITES[rd],) if rm == PC else (MoveRegister(rd, rm),)


def _to_pc(register: int, *, returns: bool) -> Effects:
    if returns:
        return (Return(LR),)
    return (IndirectJump(LR if register == PC else register),)


def _wide_immediate(word: int) -> Effects:
    """Decode MOVW and MOVT; MSR and hints."""
    rd, value = word >> 12 & 15, word >> 4 & 0xF000 | word & 0xFFF
    if word & 1 << 21:
        return ()
    if rd == PC:
        return (TRAP,)
    if word & 1 << 22:
        return (InsertConstant(rd, value, 16),)
    return (SetConstant(rd, value),)


def _miscellaneous(word: int) -> Effects:
    operation, kind, rd = word >> 21 & 3, word >> 4 & 15, word >> 12 & 15
    if word & 1 << 25:
        return _wide_immediate(word)
    if kind & 8:  # multiplication of halfwords
        high, low = word >> 16 & 15, word >> 12 & 15
        return _general(high, low) if operation == 2 else _general(high)
    match kind:
        case 0:
            return () if operation & 1 else _general(rd)  # MSR; MRS
        case 1 if operation == 3:  # CLZ
            return _general(rd)
        case 1 | 2:  # BX, BXJ
            return branched(word & 15)
        case 3:
            return (Call(None),)
        case 4 | 5:
            return _general(rd)
        case _:
            return (TRAP,)  # BKPT, HVC, SMC, ERET


def branched(register: int) -> Effects:
    """Decode BX."""
    return (Return(LR),) if register == LR else _to_pc(register, returns=False)


def _general(*registers: int) -> Effects:
    kept = tuple(register for register in registers if register != PC)
    return (Writes(kept),) if kept else ()


def _multiply_or_extra(word: int) -> Effects:
    high, low = word >> 16 & 15, word >> 12 & 15
    if word & 0x60:
        return _extra(word)
    if not word & 1 << 24:
        operation = word >> 21 & 7
        return _general(high, low) if operation >> 2 or operation == 2 else _general(high)
    kind = word >> 20 & 15
    if kind == 0b1011:  # LDREXD
        return _general(low, low + 1)
    return _general(low)  # SWP, LDREX; the result of STREX


def _extra(word: int) -> Effects:
    """Decode transfers of halfwords, signed bytes and doublewords."""
    rn, rt, kind = word >> 16 & 15, word >> 12 & 15, word >> 5 & 3
    is_before, is_up = word & 1 << 24, word & 1 << 23
    is_double = not word & 1 << 20 and kind != 1
    is_load = bool(word & 1 << 20) or (is_double and kind == 2)
    registers = (rt, rt + 1) if is_double else (rt,)
    write_back = not is_before or bool(word & 1 << 21)
    if not word & 1 << 22:
        written = [r for r in registers if is_load] + [rn] * write_back
        return _general(*written)
    amount = word >> 4 & 0xF0 | word & 15
    amount = amount if is_up else -amount
    offset, back = amount if is_before else 0, amount if write_back else 0
    size = WORD if is_double else 2
    if is_load and PC in registers:
        return _general(rt)
    return (load if is_load else store)(registers, size, rn, offset, back)


# --- loads, stores, media ---


def _load_store(word: int) -> Effects:
    rn, rt = word >> 16 & 15, word >> 12 & 15
    amount = word & 0xFFF if word & 1 << 23 else -(word & 0xFFF)
    is_before = word & 1 << 24
    size = 1 if word & 1 << 22 else WORD
    offset = amount if is_before else 0
    back = amount if not is_before or word & 1 << 21 else 0
    if word & 1 << 20:
        return load((rt,), size, rn, offset, back)
    return store((rt,), size, rn, offset, back)


def _literal(word: int) -> Literal | None:
    if word & 0x012F0000 != 0x010F0000 or not word & 1 << 20:
        return None
    return Literal(_AHEAD + (word & 0xFFF if word & 1 << 23 else -(word & 0xFFF)), WORD)


def _load_store_register(word: int) -> Effects:
    write_back = not word & 1 << 24 or bool(word & 1 << 21)
    is_load = bool(word & 1 << 20)
    return by_register(word >> 12 & 15, word >> 16 & 15, is_load=is_load, write_back=write_back)


def _media(word: int) -> Effects:
    operation, rd, high = word >> 20 & 31, word >> 12 & 15, word >> 16 & 15
    if word & 0x0FF000F0 == 0x07F000F0:
        return (TRAP,)  # UDF
    if operation >> 3 == 0b10 or operation == 0b11000:
        return _general(high, rd) if operation == 0b10100 else _general(high)
    return _general(rd)
