"""A decoder of AArch64 instructions into their effects.

Source: *Arm Architecture Reference Manual for A-profile*, chapter C4, "A64 Instruction Set
Encoding", whose tables the functions here follow group by group.
"""

from __future__ import annotations

from functools import lru_cache

from machtrace.unwinder.arch.arm64.registers import (
    INSTRUCTION_SIZE,
    LR,
    SP,
    VECTORS,
    signed,
    writes,
    writes_sp,
    writes_vector,
)
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Writes,
)

# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)


_STRUCTURE_REGISTERS = {
    0b0000: 4,
    0b0010: 4,
    0b0100: 3,
    0b0110: 3,
    0b0111: 1,
    0b1000: 2,
    0b1010: 2,
}
"""The number of vectors that LD1–LD4 and ST1–ST4 move, by opcode."""


def decode_transfer(word: int) -> Effect:
    """Return the effect of a word in the group of loads and stores."""
    match (word >> 28) & 3:
        case 0b00:
            return _structures(word) if word & 1 << 26 else _exclusive(word)
        case 0b01:
            return _literal_or_tag(word)
        case 0b10:
            return _pair(word)
        case _:
            return _single(word)


def _general(number: int) -> int | None:
    return None if number == SP else number


def _structures(word: int) -> Effect:
    rt, rn = word & 31, (word >> 5) & 31
    is_load, is_post, is_single = word & 1 << 22, word & 1 << 23, word & 1 << 24
    count = _STRUCTURE_REGISTERS.get((word >> 12) & 0xF, 4)
    if is_single:  # the opcode's lowest bit, and R
        count = 1 + ((word >> 13 & 1) << 1 | word >> 21 & 1)
    vectors = tuple(VECTORS + (rt + i) % 32 for i in range(count)) if is_load else ()
    if not is_post:
        return Writes(vectors)
    size = 16 if word & 1 << 30 else 8
    if (word >> 16) & 31 == SP and not is_single:
        registers = vectors or tuple(VECTORS + (rt + i) % 32 for i in range(count))
        moved = Load if is_load else Store
        # Interleaving forms store elements and not whole registers, which is harmless: no function
        # saves registers with them.
        return moved(registers, size, rn, 0, count * size)
    return Writes((*vectors, rn))


def _exclusive(word: int) -> Effect:
    rt, rs, rt2 = word & 31, (word >> 16) & 31, (word >> 10) & 31
    is_load, is_pair = word & 1 << 22, word & 1 << 21
    # Absent fields hold 31, which is no register. rs is the status of a store and the old value
    # of a compare-and-swap.
    written = [rs]
    if is_load:
        written += [rt, rt2]
    if is_pair and not word & (1 << 31 | 1 << 23):  # CASP
        written.append(rs + 1)
    return Writes(tuple(register for register in written if register < SP))


def _literal_or_tag(word: int) -> Effect:
    rt, rn = word & 31, (word >> 5) & 31
    if not word & 1 << 24:  # LDR (literal), PRFM
        if word & 1 << 26:
            return writes_vector(rt)
        return NOTHING if word >> 30 == 0b11 else writes(rt)
    if word & 1 << 21:  # memory tags: STG and similar may move their base
        mode = (word >> 10) & 3
        if mode in (0b01, 0b11):
            amount = 16 * signed(word >> 12, 9)
            return AddConstant(rn, rn, amount)
        return writes(rt) if (word >> 22) & 3 == 0b01 else NOTHING
    if (word >> 10) & 3 == 0b01 and not word >> 30:  # CPYF*, SET*: memory copy and set
        three = (rt, rn, (word >> 16) & 31)
        return Writes(tuple(register for register in three if register < SP))
    if word & 1 << 26:  # LDAPUR, STLUR of vectors
        return writes_vector(rt) if word & 1 << 22 else NOTHING
    return writes(rt) if (word >> 22) & 3 else NOTHING


def _pair(word: int) -> Effect:
    rt, rt2, rn = word & 31, (word >> 10) & 31, (word >> 5) & 31
    opcode, mode, is_load = word >> 30, (word >> 23) & 3, word & 1 << 22
    registers: tuple[int | None, ...]
    if word & 1 << 26:
        size = 4 << opcode
        registers = (VECTORS + rt, VECTORS + rt2)
    else:
        size = 8 if opcode & 0b10 else 4
        registers = (_general(rt), _general(rt2))
    scale = 16 if opcode == 0b01 and not is_load and not word & 1 << 26 else size  # STGP
    offset = signed(word >> 15, 7) * scale
    return _transfer(registers, size, rn, offset, mode, is_load=bool(is_load))


def _transfer(
    registers: tuple[int | None, ...], size: int, rn: int, offset: int, mode: int, *, is_load: bool
) -> Effect:
    """Return a load or store; ``mode`` is numbered as in pairs: 1 is post-index, 3 pre-index."""
    moved = Load if is_load else Store
    if mode == 0b01:
        return moved(registers, size, rn, 0, offset)
    return moved(registers, size, rn, offset, offset if mode == 0b11 else 0)


def _single(word: int) -> Effect:
    rt, rn = word & 31, (word >> 5) & 31
    mode, opcode = (word >> 10) & 3, (word >> 22) & 3
    is_vector = bool(word & 1 << 26)
    size = 1 << (word >> 30)
    if is_vector and opcode & 0b10:
        size = 16
    is_load = opcode in (0b01, 0b11) if is_vector else opcode != 0b00
    is_plain = word & 1 << 24 or not word & 1 << 21 or mode == 0b10
    if is_plain and not is_vector and size == 8 and opcode == 0b10:
        return NOTHING  # PRFM
    if not is_vector and is_load and opcode != 0b01:
        size = min(size, 4)  # sign-extending: the result is not the stored value
    registers = (VECTORS + rt if is_vector else _general(rt),)
    if word & 1 << 24:
        return _transfer(registers, size, rn, ((word >> 10) & 0xFFF) * size, 0b10, is_load=is_load)
    offset = signed(word >> 12, 9)
    if not word & 1 << 21:
        return _transfer(registers, size, rn, offset, mode, is_load=is_load)
    if mode == 0b10:  # register offset: no function saves registers so
        if not is_load:
            return NOTHING
        return writes_vector(rt) if is_vector else writes(rt)
    if mode & 1 and not is_vector:  # LDRAA, LDRAB
        if not word & 1 << 11:
            return writes(rt)
        offset = signed(word >> 12 & 0x1FF | (word >> 22 & 1) << 9, 10) * 8
        return (
            Load((None,), 8, rn, offset, offset) if rt == SP else Load((rt,), 8, rn, offset, offset)
        )
    return writes(rt)  # atomic memory operations return the old value


# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)


_MASK_64 = (1 << 64) - 1

# Swift marks an async function's frame record with bit 60 of the saved frame pointer.
_SET_ASYNC_TAG = 0xB24403BD  # orr x29, x29, #0x1000000000000000
_CLEAR_ASYNC_TAG = 0x9243FBBD  # and x29, x29, #0xefffffffffffffff
_DEBUG_TRAP = 0xF000  # __builtin_debugtrap(): a debugger continues after it


@lru_cache(maxsize=1 << 14)  # code repeats itself, prologues most of all
def decode(word: int) -> Effect:
    """Return the effect of any word."""
    group = (word >> 25) & 0xF
    if group in (0b1000, 0b1001):
        return _immediate(word)
    if group in (0b1010, 0b1011):
        return _branch_or_system(word)
    if group & 0b0101 == 0b0100:
        return decode_transfer(word)
    if group & 0b0111 == 0b0101:
        return _register(word)
    if group & 0b0111 == 0b0111:
        return _vector(word)
    if group == 0b0010:
        return _scalable(word)
    if group == 0b0000 and word >> 31:
        return Writes((VECTORS + (word & 31),))  # SME, whose own state is not tracked
    return TRAP


def _immediate(word: int) -> Effect:
    kind = (word >> 23) & 7
    rd, rn = word & 31, (word >> 5) & 31
    if kind == 0b010:
        return _add_immediate(word, rd, rn)
    if kind == 0b011:  # ADDG and SUBG may write sp; SMAX and similar (bit 22) may not
        return writes(rd) if word & 1 << 22 else writes_sp(rd)
    if kind == 0b100:
        if word in (_SET_ASYNC_TAG, _CLEAR_ASYNC_TAG):
            return NOTHING
        return writes(rd) if (word >> 29) & 3 == 3 else writes_sp(rd)
    if kind == 0b101:
        return _move_wide(word, rd)
    return writes(rd)


def _add_immediate(word: int, rd: int, rn: int) -> Effect:
    sets_flags = word & 1 << 29
    if sets_flags:
        return writes(rd)
    if not word >> 31:
        return writes_sp(rd)
    amount = (word >> 10) & 0xFFF
    if word & 1 << 22:
        amount <<= 12
    return AddConstant(rd, rn, -amount if word & 1 << 30 else amount)


def _move_wide(word: int, rd: int) -> Effect:
    if rd == SP:
        return NOTHING
    opcode, value = (word >> 29) & 3, (word >> 5) & 0xFFFF
    shift = 16 * ((word >> 21) & 3)
    mask = _MASK_64 if word >> 31 else (1 << 32) - 1
    if opcode == 0b00:
        return SetConstant(rd, ~(value << shift) & mask)
    if opcode == 0b10:
        return SetConstant(rd, (value << shift) & mask)
    if opcode == 0b11:
        return InsertConstant(rd, value, shift)
    return writes(rd)


def _branch_or_system(word: int) -> Effect:
    top = word >> 24
    if top & 0x7C == 0x14:  # B, BL
        distance = signed(word, 26) * INSTRUCTION_SIZE
        return Call(distance) if word >> 31 else Jump(distance, is_conditional=False)
    if top & 0x7E == 0x34 or top == 0x54:  # CBZ, CBNZ; B.cond, BC.cond
        return Jump(signed(word >> 5, 19) * INSTRUCTION_SIZE, is_conditional=True)
    if top & 0x7E == 0x36:  # TBZ, TBNZ
        return Jump(signed(word >> 5, 14) * INSTRUCTION_SIZE, is_conditional=True)
    if top & 0x7E == 0x74:  # CB, CBB, CBH: compare and branch
        return Jump(signed(word >> 5, 9) * INSTRUCTION_SIZE, is_conditional=True)
    if top == 0x55:  # RETAASPPC, RETABSPPC
        return Return(LR)
    if top in (0xD6, 0xD7):
        return _branch_register(word)
    if top == 0xD4:
        return _exception(word)
    if top == 0xD5 and word & 1 << 21:  # MRS, SYSL; MRRS (bit 22) writes a pair
        rd = word & 30
        return Writes((rd, rd + 1)) if word & 1 << 22 and rd < LR else writes(word & 31)
    return NOTHING


def _branch_register(word: int) -> Effect:
    rn = (word >> 5) & 31
    match (word >> 21) & 0xF:
        case 0b0000 | 0b1000:  # BR, BRAAZ, BRABZ; BRAA, BRAB
            return IndirectJump(rn)
        case 0b0001 | 0b1001:  # BLR and its variants
            return Call(None)
        case 0b0010:  # RET; RETAA and RETAB name no register
            return Return(LR if rn == SP else rn)
        case _:
            return TRAP


def _exception(word: int) -> Effect:
    opcode, number = (word >> 21) & 7, (word >> 5) & 0xFFFF
    if opcode == 0b000:
        return Writes((0, 1))  # SVC: a system call returns x0 and x1
    if opcode == 0b001 and number == _DEBUG_TRAP:
        return NOTHING
    return TRAP


def _register(word: int) -> Effect:
    rd, rn, rm = word & 31, (word >> 5) & 31, (word >> 16) & 31
    if not word & 1 << 28:
        if not word & 1 << 24:  # logical, shifted register
            is_plain = word & 0xFFE0FC00 == 0xAA000000  # ORR, 64 bits, no shift
            if not is_plain or rn != SP or rd == SP:
                return writes(rd)
            return SetConstant(rd, 0) if rm == SP else MoveRegister(rd, rm)
        if word & 1 << 21 and not word & 1 << 29:
            return _add_extended(word, rd, rn, rm)
        return writes(rd)
    operation = (word >> 21) & 0xF
    if operation == 0b0010 or (operation == 0b0000 and word & 0xFC00):
        return NOTHING  # CCMP, CCMN; RMIF, SETF8, SETF16: flags only
    if operation == 0b0110:
        if word & 1 << 30 and rm == 1:
            return NOTHING  # PACIA, AUTIB, XPACI, …: the same pointer, signed or not
        if not word & 1 << 30 and (word >> 10) & 0x3F == 0b000100:
            return writes_sp(rd)  # IRG
    return writes(rd)


def _add_extended(word: int, rd: int, rn: int, rm: int) -> Effect:
    extend = (word >> 13) & 7
    if not word >> 31 or rm == SP or extend not in (0b010, 0b011):  # UXTW, UXTX
        return writes_sp(rd)
    return AddRegister(rd, rn, rm, (word >> 10) & 7, -1 if word & 1 << 30 else 1)


def _vector(word: int) -> Effect:
    rd = word & 31
    if word & 0x5F000000 == 0x1E000000:
        return _scalar_float(word, rd)
    is_copy = word & 0xBFE08400 == 0x0E000400
    if is_copy and (word >> 11) & 0xF in (0b0101, 0b0111):  # SMOV, UMOV
        return writes(rd)
    return writes_vector(rd)


def _scalar_float(word: int, rd: int) -> Effect:
    opcode = (word >> 16) & 7
    if not word & 1 << 21:  # conversion between floating and fixed point
        return writes(rd) if opcode in (0b000, 0b001) else writes_vector(rd)
    if not word & 0xFC00:  # conversion between floating point and integer
        return writes_vector(rd) if opcode in (0b010, 0b011, 0b111) else writes(rd)
    if word & 0x3C00 == 0x2000 or word & 0x0C00 == 0x0400:
        return NOTHING  # FCMP, FCCMP
    return writes_vector(rd)


def _scalable(word: int) -> Effect:
    """Return the effect of SVE: general registers get lengths, counts, a vector's last element."""
    rd = word & 31
    top, kind = word >> 24, (word >> 12) & 0xF
    if top == 0x04 and word & 1 << 21 and (kind == 0b0101 or kind >> 2 == 0b11):
        return writes_sp(rd) if kind == 0b0101 else Writes((*writes(rd).registers, VECTORS + rd))
    if (top == 0x05 and kind >> 1 == 0b101) or (top == 0x25 and (word >> 20) & 3 == 0b10):
        return Writes((*writes(rd).registers, VECTORS + rd))
    return writes_vector(rd)
