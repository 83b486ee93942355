"""AArch64 loads and stores: which registers, where, and what becomes of the base.

Source: *Arm Architecture Reference Manual for A-profile*, section C4.1, "Loads and Stores".
"""

# ruff: noqa: PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# return a row of one)

from __future__ import annotations

from machtrace.unwinder.arch.arm64.registers import SP, VECTORS, signed, writes, writes_vector
from machtrace.unwinder.code.effects import (
    NOTHING,
    AddConstant,
    Effect,
    Load,
    Store,
    Writes,
)

_STRUCTURE_REGISTERS = {
    0b0000: 4,
    0b0010: 4,
    0b0100: 3,
    0b0110: 3,
    0b0111: 1,
    0b1000: 2,
    0b1010: 2,
}
"""How many vectors LD1–LD4 and ST1–ST4 move, by their opcode."""


def decode_transfer(word: int) -> Effect:
    """What a word of the group of loads and stores does."""
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
        # Interleaving forms store elements and not whole registers, which hides nothing:
        # nobody saves registers with them.
        return moved(registers, size, rn, 0, count * size)
    return Writes((*vectors, rn))


def _exclusive(word: int) -> Effect:
    rt, rs, rt2 = word & 31, (word >> 16) & 31, (word >> 10) & 31
    is_load, is_pair = word & 1 << 22, word & 1 << 21
    # Fields that an instruction does not have hold 31, which is no register. rs is the status of
    # a store and the old value of a compare-and-swap.
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
    if word & 1 << 21:  # memory tags: STG and its like may move their base
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
    """Of a mode as pairs number it: 1 moves the base afterwards, 3 before."""
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
        size = min(size, 4)  # sign-extending: what arrives is not what was stored
    registers = (VECTORS + rt if is_vector else _general(rt),)
    if word & 1 << 24:
        return _transfer(registers, size, rn, ((word >> 10) & 0xFFF) * size, 0b10, is_load=is_load)
    offset = signed(word >> 12, 9)
    if not word & 1 << 21:
        return _transfer(registers, size, rn, offset, mode, is_load=is_load)
    if mode == 0b10:  # register offset: nobody saves registers there
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
    return writes(rt)  # atomic memory operations give the old value
