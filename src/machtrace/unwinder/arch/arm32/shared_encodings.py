"""Loads and stores, coprocessor, floating-point and SIMD instructions that ARM and Thumb share.

Only whole double registers are tracked; s0 to s31 are their halves. Source: *Arm Architecture
Reference Manual, ARMv7-A and ARMv7-R edition*, chapters A5 to A8.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.unwinder.arch.arm32.registers import (
    DOUBLE_SIZE,
    DOUBLES,
    LR,
    PC,
    SP,
    WORD,
    WRITES,
    listed,
)
from machtrace.unwinder.code.effects import (
    AddConstant,
    Effect,
    IndirectJump,
    Load,
    Return,
    Store,
    Writes,
)

# ruff: noqa: PLR2004 (each number is a field's value in the manual's tables)


Effects = tuple[Effect, ...]

_SINGLES, _WHOLES = 10, 11
"""The coprocessors of instructions on s and on d registers."""
_LISTS = {
    0b0000: (4, 1),
    0b0001: (4, 2),
    0b0010: (4, 1),
    0b0011: (4, 1),
    0b0100: (3, 1),
    0b0101: (3, 2),
    0b0110: (3, 1),
    0b0111: (1, 1),
    0b1000: (2, 1),
    0b1001: (2, 2),
    0b1010: (2, 1),
}
"""VLD1 to VLD4 of whole registers, by type: their number, and the distance from each to the
next."""
_PLAIN = frozenset({0b0010, 0b0110, 0b0111, 0b1010})
"""The types that do not interleave: VLD1 and VST1."""


def _doubles(first: int, count: int, step: int = 1) -> tuple[int, ...]:
    return tuple(DOUBLES + n for n in range(first, first + count * step, step) if n < 32)


def _d(word: int) -> int:
    """Return Vd of a double."""
    return word >> 12 & 15 | word >> 18 & 16


def _s(word: int) -> int:
    """Return Vd of a single, as the number of the double that it is half of."""
    return word >> 12 & 15


def _written(*registers: int) -> Effects:
    kept = tuple(register for register in registers if register != PC)
    return (Writes(kept),) if kept else ()


def literal_size(word: int) -> int:
    """Return the bytes that VLDR loads from the code; 0 for other instructions."""
    is_vldr = word & 0x0F300E00 == 0x0D100A00 and word >> 16 & 15 == PC
    return (DOUBLE_SIZE if word & 0x100 else WORD) if is_vldr else 0


def decode_coprocessor(word: int) -> Effects:
    """Decode a word whose bits 27 and 26 are set, except SVC: what follows the condition in ARM."""
    coprocessor = word >> 8 & 15
    is_float = coprocessor in (_SINGLES, _WHOLES)
    if word & 0x02000000 == 0:
        if word & 0x01E00000 == 0x00400000:
            return _two_registers(word, is_float=is_float)
        return _transfer(word) if is_float else _other_transfer(word)
    if word & 0x10:
        return _one_register(word, is_float=is_float)
    return _floating_point(word) if is_float else ()


def _two_registers(word: int, *, is_float: bool) -> Effects:
    if word & 0x00100000:  # MRRC, VMOV to two registers
        return _written(word >> 12 & 15, word >> 16 & 15)
    if not is_float:
        return ()
    if word & 0x100:
        return _written(DOUBLES + (word & 15 | word >> 1 & 16))
    first = (word & 15) << 1 | word >> 5 & 1
    return _written(DOUBLES + first // 2, DOUBLES + min(31, first + 1) // 2)


def _one_register(word: int, *, is_float: bool) -> Effects:
    register = word >> 12 & 15
    if word & 0x00100000:  # MRC, VMOV to a register, VMRS
        return _written(register)
    if not is_float or (word & 0x00E00000 == 0x00E00000 and not word & 0x100):
        return ()  # MCR, VMSR
    if not word & 0x100:
        return _written(DOUBLES + (word >> 16 & 15))
    first = word >> 16 & 15 | word >> 3 & 16
    if word & 0x00800000 and not word & 0x40:  # VDUP
        return _written(*_doubles(first, 2 if word & 0x00200000 else 1))
    return _written(DOUBLES + first)


def _other_transfer(word: int) -> Effects:
    """Decode LDC and STC of coprocessors without tracked registers."""
    base = word >> 16 & 15
    if not word & 0x00200000 or base == PC:
        return ()
    amount = (word & 0xFF) * 4
    return (AddConstant(base, base, amount if word & 0x00800000 else -amount),)


def _transfer(word: int) -> Effects:
    """Decode VLDR, VSTR, VLDM, VSTM, and so VPUSH and VPOP."""
    base, amount = word >> 16 & 15, (word & 0xFF) * 4
    is_load, is_up = word & 0x00100000, word & 0x00800000
    is_whole = word & 0x100
    first = _d(word) if is_whole else _s(word)
    moved = 0
    if word & 0x01200000 == 0x01000000:  # VLDR, VSTR
        count = 1
        offset = amount if is_up else -amount
    else:
        words = word & 0xFF
        count = words // 2
        if not is_whole:  # from s(2n) or s(2n + 1) on
            count = (words + 1 + (word >> 22 & 1)) // 2
        offset = 0 if is_up else -amount
        if word & 0x00200000:
            moved = amount if is_up else -amount
    registers = _doubles(first, count)
    if base == PC:
        return _written(*registers) if is_load else ()
    if is_whole:
        return (
            Load(registers, DOUBLE_SIZE, base, offset, moved)
            if is_load
            else Store(registers, DOUBLE_SIZE, base, offset, moved),
        )
    if is_load:
        halves: Effects = (Writes(registers),)
        return (*halves, AddConstant(base, base, moved)) if moved else halves
    words = 1 if word & 0x01200000 == 0x01000000 else word & 0xFF
    return (Store((None,) * words, WORD, base, offset, moved),)


def _floating_point(word: int) -> Effects:
    """Decode VFP data processing."""
    is_whole = bool(word & 0x100)
    operation = word >> 20 & 0b1011
    if operation == 0b1011 and word & 0x40:
        second = word >> 16 & 15
        if second in (0b0100, 0b0101):
            return ()  # VCMP, VCMPE
        if second == 0b0111 and word & 0x80:  # VCVT between singles and doubles
            is_whole = not is_whole
        elif second >> 1 == 0b110 or second == 0b0011:  # to integers, to half precision
            is_whole = False
    return _written(DOUBLES + (_d(word) if is_whole else _s(word)))


def decode_vector(word: int) -> Effects:
    """Decode SIMD data processing, as ARM encodes it, with 1111001 first."""
    first = _d(word)
    is_quad = bool(word & 0x40)
    if word & 0x00800000 and not word & 0x10:
        kind = word >> 20 & 3
        if kind != 3:
            operation = word >> 8 & 15
            if not word & 0x40:  # three registers of different lengths
                return _written(*_doubles(first, 1 if operation in (0b0100, 0b0110) else 2))
            is_quad = bool(word & 0x01000000)  # by a scalar
            if operation in (0b0010, 0b0011, 0b0110, 0b0111, 0b1010, 0b1011):
                is_quad = True
        elif word & 0x01000000:
            return _two_or_table(word, first)
    elif word & 0x00800010 == 0x00800010:
        operation = word >> 8 & 15
        if word & 0x00380080 and operation in (0b1000, 0b1001):
            is_quad = False  # VSHRN and similar halve
        elif word & 0x00380080 and operation == 0b1010:
            is_quad = True  # VSHLL, VMOVL
    return _written(*_doubles(first, 2 if is_quad else 1))


def _two_or_table(word: int, first: int) -> Effects:
    """Decode operations on two registers, table lookup, duplication of a scalar."""
    if word & 0x800:
        if word & 0x400:  # VDUP
            return _written(*_doubles(first, 2 if word & 0x40 else 1))
        return _written(DOUBLES + first)  # VTBL, VTBX
    kind, operation = word >> 16 & 3, word >> 7 & 15
    both = word & 15 | word >> 1 & 16
    count = 2 if word & 0x40 else 1
    if kind == 2:
        if operation in (0, 1, 2, 3):  # VSWP, VTRN, VUZP, VZIP change both
            return _written(*_doubles(first, count), *_doubles(both, count))
        if operation in (0b0100, 0b0101, 0b1100):  # narrow
            return _written(DOUBLES + first)
        if operation in (0b0110, 0b1110):  # VSHLL; VCVT from half precision
            return _written(*_doubles(first, 2))
    return _written(*_doubles(first, count))


def decode_structure(word: int) -> Effects:
    """Decode VLD1 to VLD4 and VST1 to VST4, as ARM encodes them, with 11110100 first."""
    base, index = word >> 16 & 15, word & 15
    first = _d(word)
    is_load = word & 0x00200000
    kind = word >> 8 & 15
    if not word & 0x00800000:
        count, step = _LISTS.get(kind, (4, 1))
        amount = DOUBLE_SIZE * count
        if kind in _PLAIN:
            moved = amount if index == SP else 0
            registers = _doubles(first, count)
            moving: Effects = (
                Load(registers, DOUBLE_SIZE, base, 0, moved)
                if is_load
                else Store(registers, DOUBLE_SIZE, base, 0, moved),
            )
            return moving if index in (SP, PC) else (*moving, Writes((base,)))
    else:
        count = (kind & 3) + 1
        step = 2 if kind >> 2 in (1, 2) and word & 0x10 << (kind >> 2) else 1
        if kind >> 2 == 3 and word & 0x20:  # to all lanes
            step, count = (2, count) if count > 1 else (1, 2)
        elements = (kind & 3) + 1
        amount = elements * (1 << (word >> 6 & 3 if kind >> 2 == 3 else kind >> 2))
        if kind == 0b1111 and word >> 6 & 3 == 3:
            amount = 16
    written = _written(*_doubles(first, count, step)) if is_load else ()
    if index == PC:
        return written
    if index == SP:
        return (*written, AddConstant(base, base, amount))
    return (*written, Writes((base,)))


def store(
    registers: Sequence[int], size: int, base: int, offset: int, write_back: int = 0
) -> tuple[Effect, ...]:
    """Return a store of consecutive registers; pc, and partial registers, have no tracked value."""
    kept = tuple(None if register == PC else register for register in registers)
    if base == PC:
        return ()
    return (Store(kept, size, base, offset, write_back),)


def load(
    registers: Sequence[int], size: int, base: int, offset: int, write_back: int = 0
) -> tuple[Effect, ...]:
    """Return a load of consecutive registers; if pc is among them, a return, or a jump.

    Only return addresses are loaded to pc from the stack, because only LDM loads those; a single
    word from elsewhere is an entry of a table, or a pointer to a function.
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
    """Return a load of registers from the code."""
    if PC in registers:
        return (IndirectJump(LR),)
    if len(registers) == 1 and registers[0] < PC:
        return (WRITES[registers[0]],)
    return (Writes(tuple(registers)),)


def multiple(
    base: int, mask: int, *, is_load: bool, is_up: bool, is_before: bool, write_back: bool
) -> tuple[Effect, ...]:
    """Return LDM or STM of any kind."""
    registers = listed(mask)
    size = WORD * len(registers)
    start = 0 if is_up else -size
    if is_before == is_up:
        start += WORD
    moved = (size if is_up else -size) if write_back else 0
    if is_load:
        if base in registers:
            moved = 0  # the loaded value counts
        return load(registers, WORD, base, start, moved)
    return store(registers, WORD, base, start, moved)


def by_register(register: int, base: int, *, is_load: bool, write_back: bool) -> tuple[Effect, ...]:
    """Return a transfer of unknown address: no register is saved there."""
    written: tuple[int, ...] = (register,) if is_load and register != PC else ()
    if write_back:
        written += (base,)
    effects: tuple[Effect, ...] = (Writes(written),) if written else ()
    if is_load and register == PC:
        return (*effects, IndirectJump(base if base != PC else LR))
    return effects
