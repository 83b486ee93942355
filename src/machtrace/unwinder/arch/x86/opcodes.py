"""What x86 instructions with an opcode of one byte do.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, table A-2.

What x86 instructions with longer opcodes, and vector instructions, do.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, tables A-3 to
A-5 and the pages of the instructions.
"""

from __future__ import annotations

from machtrace.unwinder.arch.x86.calls import LEAST_PROBED
from machtrace.unwinder.arch.x86.encoding import (
    AX,
    BP,
    BX,
    CX,
    DI,
    DX,
    NO_EFFECTS,
    SI,
    SP,
    Effects,
    Encoding,
    base,
    changes,
    pop,
    push,
    push_word,
    reg,
    register,
    rm,
    size,
    store,
    stored_over,
    writes,
)
from machtrace.unwinder.code.effects import (
    TRAP,
    AddConstant,
    AddRegister,
    Call,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
)

# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's map)


def one_byte(found: Encoding) -> Effects:
    """Of an instruction of map 0."""
    opcode = found.opcode
    if opcode < 0x40:
        return _arithmetic(found)
    if opcode < 0x50:  # INC and DEC, which are REX prefixes in 64-bit mode
        return _add(found, reg(found), 1 if opcode < 0x48 else -1)
    if opcode < 0x60:
        return push(found, reg(found)) if opcode < 0x58 else pop(found, reg(found))
    if opcode < 0x80:
        return _above_0x60(found)
    if opcode < 0x90:
        return _above_0x80(found)
    if opcode < 0xC0:
        return _above_0x90(found)
    if opcode < 0xE0:
        return _above_0xc0(found)
    return _above_0xe0(found)


def _add(found: Encoding, to: int | None, amount: int) -> Effects:
    if to is not None and size(found) == found.mode.word:
        return (AddConstant(to, to, amount),)
    return stored_over(found, size(found)) if found.memory else writes(to)


def _arithmetic(found: Encoding) -> Effects:
    """ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, each in six forms; segments; decimal arithmetic."""
    operation, form = found.opcode >> 3, found.opcode & 7
    if form >= 6:
        if found.opcode >= 0x20:
            return changes(found, AX)
        return pop(found, None) if form == 7 else push(found, None)
    if operation == 7:
        return NO_EFFECTS
    if form >= 4:
        return changes(found, AX)
    if operation == 5 and form in (1, 3) and size(found) == found.mode.word:
        to, source = (rm(found), reg(found)) if form == 1 else (reg(found), rm(found))
        if to == found.mode.sp and source is not None:
            return (AddRegister(to, to, source, 0, -1),)
    if form >= 2:
        return writes(reg(found, of_bytes=form == 2))
    return stored_over(found, 1 if form == 0 else size(found))


def _above_0x60(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode == 0x60:
        return _push_all(found)
    if opcode == 0x61:
        return _pop_all(found)
    if opcode == 0x63 and not found.mode.is_64:  # ARPL
        return stored_over(found, 2)
    if opcode in (0x63, 0x69, 0x6B):  # MOVSXD, IMUL
        return writes(reg(found))
    if opcode in (0x68, 0x6A):
        return push(found, None)
    if opcode == 0x62:
        return NO_EFFECTS
    if opcode < 0x70:  # INS, OUTS
        return changes(found, SI, DI, CX)
    return (Jump(found.length + found.operand, is_conditional=True),)


def _push_all(found: Encoding) -> Effects:
    if found.has_16_bit_operands:
        return changes(found, SP)
    pushed = (AX, CX, DX, BX, None, BP, SI, DI)  # sp as it was before
    return tuple(push(found, None if n is None else register(found, n))[0] for n in pushed)


def _pop_all(found: Encoding) -> Effects:
    if found.has_16_bit_operands:
        return changes(found, *range(8))
    popped = (DI, SI, BP, None, BX, DX, CX, AX)
    return tuple(pop(found, None if n is None else register(found, n))[0] for n in popped)


def _above_0x80(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode <= 0x83:
        return _immediate_arithmetic(found)
    if opcode in (0x86, 0x87):  # XCHG
        of_bytes = opcode == 0x86
        return writes(reg(found, of_bytes=of_bytes), rm(found, of_bytes=of_bytes))
    if opcode == 0x88:
        return stored_over(found, 1)
    if opcode == 0x89:
        return _move(found, rm(found), reg(found), is_load=False)
    if opcode == 0x8A:
        return writes(reg(found, of_bytes=True))
    if opcode == 0x8B:
        return _move(found, reg(found), rm(found), is_load=True)
    if opcode == 0x8C:
        return stored_over(found, 2)
    if opcode == 0x8D:
        return _load_address(found)
    if opcode == 0x8F:
        return pop(found, rm(found)) if found.reg & 7 == 0 else (TRAP,)
    return NO_EFFECTS  # TEST, MOV of segment registers


def _immediate_arithmetic(found: Encoding) -> Effects:
    operation, of_bytes = found.reg & 7, found.opcode in (0x80, 0x82)
    if operation == 7 or (found.memory and found.operand == 0 and operation in (0, 1, 5, 6)):
        return NO_EFFECTS  # with 0 it only looks whether the memory is there
    if operation in (0, 5) and found.rm is not None and not of_bytes:
        return _add(found, rm(found), found.operand if operation == 0 else -found.operand)
    return stored_over(found, 1 if of_bytes else size(found))


def _move(found: Encoding, to: int | None, source: int | None, *, is_load: bool) -> Effects:
    count, word = size(found), found.mode.word
    if to is not None and source is not None:
        return (MoveRegister(to, source),) if count == word else writes(to)
    if not is_load:
        return store(found, source, count)
    at = base(found)
    if at is None or found.memory is None or to is None or count != word:
        return writes(to)
    return (Load((to,), count, at, found.memory.displacement),)


def _load_address(found: Encoding) -> Effects:
    at, to = base(found), reg(found)
    if at is None or found.memory is None or size(found) != found.mode.word:
        return writes(to)
    return (AddConstant(to, at, found.memory.displacement),)


_IMPLIED = {
    0x98: (AX,),
    0x99: (DX,),
    0x9F: (AX,),
    0xA0: (AX,),
    0xA1: (AX,),
    0xAC: (AX, SI, CX),
    0xAD: (AX, SI, CX),
    0xAA: (DI, CX),
    0xAB: (DI, CX),
    0xAE: (DI, CX),
    0xAF: (DI, CX),
    0xA4: (SI, DI, CX),
    0xA5: (SI, DI, CX),
    0xA6: (SI, DI, CX),
    0xA7: (SI, DI, CX),
}
"""CBW, CWD, LAHF, MOV of an address, and what works on strings."""


def _above_0x90(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode == 0x90 and found.reg == 0:
        return NO_EFFECTS
    if opcode < 0x98:
        return writes(register(found, AX), reg(found))
    if opcode in _IMPLIED:
        return changes(found, *_IMPLIED[opcode])
    if opcode == 0x9A:  # far
        return (TRAP,)
    if opcode in (0x9C, 0x9D):  # PUSHF, POPF
        return push(found, None) if opcode == 0x9C else pop(found, None)
    if opcode >= 0xB8:
        if reg(found) == AX and size(found) >= 4 and found.operand >= LEAST_PROBED:
            return (SetConstant(AX, found.operand),)  # maybe the size of a frame
        return writes(reg(found))
    if opcode >= 0xB0:
        return writes(reg(found, of_bytes=True))
    return NO_EFFECTS


def _above_0xc0(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0xC0, 0xD0, 0xD2, 0xC6):
        return stored_over(found, 1)
    if opcode in (0xC1, 0xD1, 0xD3, 0xC7):
        return stored_over(found, size(found))
    if opcode in (0xC2, 0xC3):
        return_address = found.mode.machine.return_address.register
        return (Return(return_address, found.operand & 0xFFFF),)
    if opcode in (0xC4, 0xC5):  # LES, LDS
        return writes(reg(found))
    if opcode == 0xC8:
        return _enter(found)
    if opcode == 0xC9:
        bp = register(found, BP)
        return (MoveRegister(found.mode.sp, bp), *pop(found, bp))
    if opcode in (0xD4, 0xD5, 0xD6, 0xD7):  # AAM, AAD, SALC, XLAT
        return changes(found, AX)
    if opcode == 0xDF and found.memory is None:  # FNSTSW
        return changes(found, AX)
    if opcode in (0xCA, 0xCB, 0xCC, 0xCD, 0xCF):
        return (TRAP,) if opcode != 0xCD or found.mode.is_64 else changes(found, AX, CX, DX)
    return NO_EFFECTS


def _enter(found: Encoding) -> Effects:
    """With no frames of enclosing functions to copy it is a prologue."""
    if found.operand >> 16 or found.has_16_bit_operands:
        return changes(found, SP, BP)
    sp, bp = found.mode.sp, register(found, BP)
    return (
        *push(found, bp),
        MoveRegister(bp, sp),
        AddConstant(sp, sp, -(found.operand & 0xFFFF)),
    )


def _above_0xe0(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode < 0xE4:  # LOOP, JCXZ
        return (*changes(found, CX), Jump(found.length + found.operand, is_conditional=True))
    if opcode in (0xE8, 0xE9, 0xEA, 0xEB):
        return _direct_transfer(found)
    if opcode in (0xE4, 0xE5, 0xEC, 0xED):
        return changes(found, AX)
    if opcode in (0xF6, 0xF7):
        return _unary(found)
    if opcode == 0xFE:
        return stored_over(found, 1)
    if opcode == 0xFF:
        return _group_five(found)
    return (TRAP,) if opcode in (0xF1, 0xF4) else NO_EFFECTS


def _direct_transfer(found: Encoding) -> Effects:
    opcode, after = found.opcode, found.length + found.operand
    if opcode == 0xEA or (found.has_16_bit_operands and not found.mode.is_64):
        return (TRAP,)  # far, or to the first 64 KiB
    if opcode != 0xE8:
        return (Jump(after, is_conditional=False),)
    # A call of what is behind it only asks where it is.
    return (Call(after),) if found.operand else push_word(found, None)


def _unary(found: Encoding) -> Effects:
    operation = found.reg & 7
    if operation < 2:
        return NO_EFFECTS  # TEST
    if operation < 4:
        return stored_over(found, 1 if found.opcode == 0xF6 else size(found))
    return changes(found, AX, DX)


def _group_five(found: Encoding) -> Effects:
    operation, target = found.reg & 7, rm(found)
    match operation:
        case 0 | 1:
            return _add(found, target, 1 - 2 * operation)
        case 2:
            return (Call(None),)
        case 4:
            nowhere = found.mode.machine.return_address.register  # none that holds anything
            if target is not None:
                return (IndirectJump(target),)
            at = base(found)
            offset = 0 if at is None or found.memory is None else found.memory.displacement
            return (IndirectJump(nowhere, at, offset),)
        case 6:
            return push(found, target)
        case _:
            return (TRAP,)


# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's maps)


_ASYNC_TAG_BIT = 60
"""Of the frame pointer that Swift's async functions save: it is still the caller's."""
_TO_REG_0F = frozenset(
    (
        *(*range(0x40, 0x50), 0x02, 0x03, 0x50, 0xAF, 0xB2, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8),
        *(0xBC, 0xBD, 0xBE, 0xBF, 0xC5, 0xD7, 0x2C, 0x2D),
    )
)
"""CMOV, MOVZX, IMUL, BSF, MOVMSKPS, …: a general register that ModR/M's reg names."""
_TO_RM_0F = frozenset((*range(0x90, 0xA0), 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xB3, 0xBB, 0xC3))
"""SET, SHLD, BTS, MOVNTI, …: what ModR/M names."""
_WRITTEN_0F = {
    0x05: (AX, DX, CX),
    0x31: (AX, DX),
    0x32: (AX, DX),
    0x33: (AX, DX),
    0xA2: (AX, BX, CX, DX),
}
"""SYSCALL, RDTSC, RDMSR, RDPMC, CPUID."""
_R11 = 11


def two_bytes(found: Encoding) -> Effects:
    """Of an instruction of map 1, whose opcode starts with 0F."""
    opcode = found.opcode
    if 0x80 <= opcode < 0x90:
        return (Jump(found.length + found.operand, is_conditional=True),)
    if opcode in _TO_REG_0F:
        return writes(reg(found))
    if opcode in _TO_RM_0F:
        is_set = opcode in range(0x90, 0xA0)
        return stored_over(found, 1 if is_set else size(found))
    if opcode in _WRITTEN_0F:
        keeps_flags = (_R11,) if opcode == 0x05 and found.mode.is_64 else ()
        return changes(found, *_WRITTEN_0F[opcode], *keeps_flags)
    if opcode in (0x0B, 0xB9, 0xFF):
        return (TRAP,)
    if opcode in (0xA0, 0xA8, 0xA1, 0xA9):  # of FS and GS
        return pop(found, None) if opcode & 1 else push(found, None)
    if 0xC8 <= opcode < 0xD0:
        return writes(reg(found))
    return _rare_two_bytes(found)


def _rare_two_bytes(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0xB0, 0xB1):  # CMPXCHG
        return writes(register(found, AX), rm(found, of_bytes=opcode == 0xB0))
    if opcode in (0xC0, 0xC1):  # XADD
        of_bytes = opcode == 0xC0
        return writes(reg(found, of_bytes=of_bytes), rm(found, of_bytes=of_bytes))
    if opcode == 0xC7:  # CMPXCHG16B, RDRAND, RDSEED
        return (*changes(found, AX, DX), *writes(rm(found)))
    if opcode == 0xBA and found.reg & 7 != 4:  # BTS, BTR, BTC
        is_async_tag = found.operand == _ASYNC_TAG_BIT and rm(found) == register(found, BP)
        return NO_EFFECTS if is_async_tag else stored_over(found, size(found))
    if opcode == 0x7E and found.prefix != 0xF3:  # MOVD, MOVQ
        return writes(rm(found))
    if opcode == 0x1E and found.prefix == 0xF3:  # RDSSP; ENDBR is told from it by its ModR/M
        return writes(rm(found)) if found.reg & 7 == 1 else NO_EFFECTS
    if opcode == 0x01:  # SMSW; XGETBV, RDTSCP, …
        return writes(rm(found)) if found.reg & 7 == 4 else changes(found, AX, DX, CX)
    if opcode in (0x00, 0x20, 0x21) or (opcode == 0xAE and found.prefix == 0xF3):
        return writes(rm(found))  # SLDT, MOV of control registers, RDFSBASE
    return NO_EFFECTS


def three_bytes(found: Encoding) -> Effects:
    """Of an instruction of map 2 or 3, whose opcode starts with 0F 38 or 0F 3A."""
    opcode = found.opcode
    if found.opcode_map == 2:
        # CRC32, MOVBE, ADCX, ADOX
        return writes(reg(found)) if 0xF0 <= opcode < 0xF8 else NO_EFFECTS
    return _three_bytes_with_operand(found)


def _three_bytes_with_operand(found: Encoding) -> Effects:
    opcode = found.opcode
    if 0x14 <= opcode < 0x18:  # PEXTRB, PEXTRW, PEXTRD, EXTRACTPS
        return writes(rm(found))
    if opcode in (0x61, 0x63):  # PCMPESTRI, PCMPISTRI
        return changes(found, CX)
    return writes(reg(found)) if opcode == 0xF0 and found.is_vector else NO_EFFECTS  # RORX


def vector(found: Encoding) -> Effects:
    """Of an instruction with a VEX or EVEX prefix."""
    opcode, opcode_map = found.opcode, found.opcode_map
    if opcode_map == 3:
        return _three_bytes_with_operand(found)
    if opcode_map == 2:
        if opcode == 0xF3:  # BLSR, BLSI, BLSMSK
            return writes(register(found, found.vvvv))
        if opcode == 0xF6:  # MULX
            return writes(reg(found), register(found, found.vvvv))
        return writes(reg(found)) if 0xF2 <= opcode < 0xF8 else NO_EFFECTS
    if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7):
        return writes(reg(found))
    if opcode == 0x7E and found.prefix != 0xF3:
        return writes(rm(found))
    return NO_EFFECTS
