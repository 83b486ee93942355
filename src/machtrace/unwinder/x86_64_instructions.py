"""x86-64 instructions, as far as a walk cares for what they do.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A and
the pages of the instructions. Taking them apart is :mod:`machtrace.unwinder.x86_64_lengths`'s.
"""

# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's maps)

from __future__ import annotations

from machtrace.unwinder.instruction_effects import (
    NOTHING,
    TRAP,
    AddConstant,
    Call,
    IndirectJump,
    Instruction,
    Jump,
    Load,
    MoveRegister,
    Return,
    Store,
    Writes,
)
from machtrace.unwinder.x86_64_lengths import REX_W, Encoding, parse
from machtrace.unwinder.x86_64_registers import (
    BY_ENCODING,
    R11,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RETURN_ADDRESS,
    RSI,
    RSP,
)

_WORD = 8
_ASYNC_TAG_BIT = 60
"""Of the frame pointer that Swift's async functions save: it is still the caller's."""

Effects = tuple[Instruction, ...]
"""What one instruction does, in order: ``leave`` is two effects."""


def decode(code: bytes | memoryview, at: int) -> tuple[int, Effects]:
    """The size of the instruction at ``code[at]``, and what it does.

    Distances of jumps and calls count in bytes from the instruction's start. Where there is no
    instruction, one byte that traps.
    """
    found = parse(code, at)
    if found is None:
        return 1, (TRAP,)
    if found.opcode_map == 0:
        effects = _one_byte(found)
    elif found.is_vector:
        effects = _of_vector(found)
    elif found.opcode_map == 1:
        effects = _two_bytes(found)
    else:
        effects = _three_bytes(found)
    return found.length, effects


def _reg(found: Encoding, *, of_bytes: bool = False) -> int:
    number = found.reg
    if of_bytes and found.rex < 0:
        number &= 3  # ah, ch, dh and bh are parts of the first four
    return BY_ENCODING[number & 15]


def _rm(found: Encoding, *, of_bytes: bool = False) -> int | None:
    """The register that ModR/M names; None where it names memory."""
    if found.rm is None:
        return None
    number = found.rm
    if of_bytes and found.rex < 0:
        number &= 3
    return BY_ENCODING[number & 15]


def _writes(*registers: int | None) -> Effects:
    return (Writes(tuple(register for register in registers if register is not None)),)


_NOTHING: Effects = (NOTHING,)


def _base(found: Encoding) -> int | None:
    """The register that, with the displacement, is the whole address; None of any other kind."""
    memory = found.memory
    if memory is None or memory.base is None or memory.has_index:
        return None
    return BY_ENCODING[memory.base]


def _size(found: Encoding) -> int:
    if found.rex >= 0 and found.rex & REX_W:
        return 8
    return 2 if found.has_16_bit_operands else 4


def _push(register: int | None) -> Effects:
    return (Store((register,), _WORD, RSP, -_WORD, -_WORD),)


def _pop(register: int | None) -> Effects:
    return (Load((register,), _WORD, RSP, 0, _WORD),)


def _store(found: Encoding, register: int | None, size: int) -> Effects:
    base = _base(found)
    if base is None or found.memory is None:
        return _NOTHING
    return (Store((register,), size, base, found.memory.displacement),)


def _stored_over(found: Encoding, size: int) -> Effects:
    """Something else than a register in memory, or in the register that ModR/M names."""
    if found.memory is None:
        return _writes(_rm(found, of_bytes=size == 1))
    return _store(found, None, size)


def _one_byte(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode < 0x40:
        return _arithmetic(found)
    if opcode < 0x60:
        register = BY_ENCODING[found.reg]
        if found.has_16_bit_operands:
            return _writes(RSP, register)
        return _push(register) if opcode < 0x58 else _pop(register)
    if opcode < 0x80:
        return _above_0x60(found)
    if opcode < 0x90:
        return _above_0x80(found)
    if opcode < 0xC0:
        return _above_0x90(found)
    if opcode < 0xE0:
        return _above_0xc0(found)
    return _above_0xe0(found)


def _arithmetic(found: Encoding) -> Effects:
    """ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, each in six forms."""
    operation, form = found.opcode >> 3, found.opcode & 7
    if operation == 7:
        return _NOTHING
    if form >= 4:
        return _writes(RAX)
    if form >= 2:
        return _writes(_reg(found, of_bytes=form == 2))
    return _stored_over(found, 1 if form == 0 else _size(found))


def _above_0x60(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0x63, 0x69, 0x6B):  # MOVSXD, IMUL
        return _writes(_reg(found))
    if opcode in (0x68, 0x6A):
        return _push(None)
    if opcode < 0x70:  # INS, OUTS
        return _writes(RSI, RDI, RCX)
    return (Jump(found.length + found.operand, is_conditional=True),)


def _above_0x80(found: Encoding) -> Effects:
    opcode, register = found.opcode, found.reg
    if opcode in (0x80, 0x81, 0x83):
        return _immediate_arithmetic(found)
    if opcode in (0x86, 0x87):  # XCHG
        of_bytes = opcode == 0x86
        return _writes(_reg(found, of_bytes=of_bytes), _rm(found, of_bytes=of_bytes))
    if opcode == 0x88:
        return _stored_over(found, 1)
    if opcode == 0x89:
        return _move(found, _rm(found), _reg(found), is_load=False)
    if opcode == 0x8A:
        return _writes(_reg(found, of_bytes=True))
    if opcode == 0x8B:
        return _move(found, _reg(found), _rm(found), is_load=True)
    if opcode == 0x8C:
        return _stored_over(found, 2)
    if opcode == 0x8D:
        return _load_address(found)
    if opcode == 0x8F:
        return _pop(_rm(found)) if register & 7 == 0 else (TRAP,)
    return _NOTHING  # TEST, MOV of segment registers


def _immediate_arithmetic(found: Encoding) -> Effects:
    operation, register = found.reg & 7, _rm(found, of_bytes=found.opcode == 0x80)
    if operation == 7:
        return _NOTHING
    if register is not None and _size(found) == 8 and found.opcode != 0x80 and operation in (0, 5):
        amount = found.operand if operation == 0 else -found.operand
        return (AddConstant(register, register, amount),)
    return _stored_over(found, 1 if found.opcode == 0x80 else _size(found))


def _move(found: Encoding, to: int | None, source: int | None, *, is_load: bool) -> Effects:
    size = _size(found)
    if to is not None and source is not None:
        return (MoveRegister(to, source),) if size == 8 else _writes(to)
    if not is_load:
        return _store(found, source, size)
    base = _base(found)
    if base is None or found.memory is None or to is None or size != 8:
        return _writes(to)
    return (Load((to,), size, base, found.memory.displacement),)


def _load_address(found: Encoding) -> Effects:
    base, register = _base(found), _reg(found)
    if base is None or found.memory is None or _size(found) != 8:
        return _writes(register)
    return (AddConstant(register, base, found.memory.displacement),)


def _above_0x90(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode == 0x90 and found.reg == 0:
        return _NOTHING
    if opcode < 0x98:
        return _writes(RAX, BY_ENCODING[found.reg])
    simple = {
        0x98: (RAX,),
        0x99: (RDX,),
        0x9F: (RAX,),
        0xA0: (RAX,),
        0xA1: (RAX,),
        0xAC: (RAX, RSI, RCX),
        0xAD: (RAX, RSI, RCX),
        0xAA: (RDI, RCX),
        0xAB: (RDI, RCX),
        0xAE: (RDI, RCX),
        0xAF: (RDI, RCX),
        0xA4: (RSI, RDI, RCX),
        0xA5: (RSI, RDI, RCX),
        0xA6: (RSI, RDI, RCX),
        0xA7: (RSI, RDI, RCX),
    }
    if opcode in simple:
        return _writes(*simple[opcode])
    if opcode in (0x9C, 0x9D):  # PUSHF, POPF
        return _push(None) if opcode == 0x9C else _pop(None)
    if opcode >= 0xB8:
        return _writes(BY_ENCODING[found.reg])
    if opcode >= 0xB0:
        return _writes(_reg(found, of_bytes=True))
    return _NOTHING


def _above_0xc0(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0xC0, 0xD0, 0xD2, 0xC6):
        return _stored_over(found, 1)
    if opcode in (0xC1, 0xD1, 0xD3, 0xC7):
        return _stored_over(found, _size(found))
    if opcode in (0xC2, 0xC3):
        return (Return(RETURN_ADDRESS, found.operand & 0xFFFF),)
    if opcode == 0xC8:  # ENTER
        return _writes(RSP, RBP)
    if opcode == 0xC9:
        return (MoveRegister(RSP, RBP), *_pop(RBP))
    if opcode == 0xD7:
        return _writes(RAX)
    if opcode == 0xDF and found.memory is None:  # FNSTSW
        return _writes(RAX)
    if opcode in (0xCA, 0xCB, 0xCC, 0xCD, 0xCF):
        return (TRAP,)
    return _NOTHING


def _above_0xe0(found: Encoding) -> Effects:
    opcode, after = found.opcode, found.length + found.operand
    if opcode < 0xE4:  # LOOP, JRCXZ
        return (*_writes(RCX), Jump(after, is_conditional=True))
    if opcode == 0xE8:
        return (Call(after),)
    if opcode in (0xE9, 0xEB):
        return (Jump(after, is_conditional=False),)
    if opcode in (0xE4, 0xE5, 0xEC, 0xED):
        return _writes(RAX)
    if opcode in (0xF6, 0xF7):
        return _unary(found)
    if opcode == 0xFE:
        return _stored_over(found, 1)
    if opcode == 0xFF:
        return _group_five(found)
    return (TRAP,) if opcode in (0xF1, 0xF4) else _NOTHING


def _unary(found: Encoding) -> Effects:
    operation = found.reg & 7
    if operation < 2:
        return _NOTHING  # TEST
    if operation < 4:
        return _stored_over(found, 1 if found.opcode == 0xF6 else _size(found))
    return _writes(RAX, RDX)


def _group_five(found: Encoding) -> Effects:
    operation = found.reg & 7
    register = _rm(found)
    match operation:
        case 0 | 1:
            if register is not None and _size(found) == 8:
                return (AddConstant(register, register, 1 - 2 * operation),)
            return _stored_over(found, _size(found))
        case 2:
            return (Call(None),)
        case 4:
            return (IndirectJump(RAX if register is None else register),)
        case 6:
            return _push(register)
        case _:
            return (TRAP,)


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
    0x05: (RAX, RDX, RCX, R11),
    0x31: (RAX, RDX),
    0x32: (RAX, RDX),
    0x33: (RAX, RDX),
    0xA2: (RAX, RBX, RCX, RDX),
}
"""SYSCALL, RDTSC, RDMSR, RDPMC, CPUID."""


def _two_bytes(found: Encoding) -> Effects:
    opcode = found.opcode
    if 0x80 <= opcode < 0x90:
        return (Jump(found.length + found.operand, is_conditional=True),)
    if opcode in _TO_REG_0F:
        return _writes(_reg(found))
    if opcode in _TO_RM_0F:
        is_set = opcode in range(0x90, 0xA0)
        return _stored_over(found, 1 if is_set else _size(found))
    if opcode in _WRITTEN_0F:
        return _writes(*_WRITTEN_0F[opcode])
    if opcode in (0x0B, 0xB9, 0xFF):
        return (TRAP,)
    if opcode in (0xA0, 0xA8, 0xA1, 0xA9):  # of FS and GS
        return _pop(None) if opcode & 1 else _push(None)
    if 0xC8 <= opcode < 0xD0:
        return _writes(BY_ENCODING[found.reg])
    return _rare_two_bytes(found)


def _rare_two_bytes(found: Encoding) -> Effects:
    opcode = found.opcode
    if opcode in (0xB0, 0xB1):  # CMPXCHG
        return _writes(RAX, _rm(found, of_bytes=opcode == 0xB0))
    if opcode in (0xC0, 0xC1):  # XADD
        of_bytes = opcode == 0xC0
        return _writes(_reg(found, of_bytes=of_bytes), _rm(found, of_bytes=of_bytes))
    if opcode == 0xC7:  # CMPXCHG16B, RDRAND, RDSEED
        return _writes(RAX, RDX, _rm(found))
    if opcode == 0xBA and found.reg & 7 != 4:  # BTS, BTR, BTC
        is_async_tag = found.operand == _ASYNC_TAG_BIT and _rm(found) == RBP
        return _NOTHING if is_async_tag else _stored_over(found, _size(found))
    if opcode == 0x7E and found.prefix != 0xF3:  # MOVD, MOVQ
        return _writes(_rm(found))
    if opcode == 0x1E and found.prefix == 0xF3:  # RDSSP; ENDBR is told from it by its ModR/M
        return _writes(_rm(found)) if found.reg & 7 == 1 else _NOTHING
    if opcode == 0x01:  # SMSW; XGETBV, RDTSCP, …
        return _writes(_rm(found)) if found.reg & 7 == 4 else _writes(RAX, RDX, RCX)
    if opcode in (0x00, 0x20, 0x21) or (opcode == 0xAE and found.prefix == 0xF3):
        return _writes(_rm(found))  # SLDT, MOV of control registers, RDFSBASE
    return _NOTHING


def _three_bytes(found: Encoding) -> Effects:
    opcode = found.opcode
    if found.opcode_map == 2:
        # CRC32, MOVBE, ADCX, ADOX
        return _writes(_reg(found)) if 0xF0 <= opcode < 0xF8 else _NOTHING
    return _three_bytes_with_operand(found)


def _three_bytes_with_operand(found: Encoding) -> Effects:
    opcode = found.opcode
    if 0x14 <= opcode < 0x18:  # PEXTRB, PEXTRW, PEXTRD, EXTRACTPS
        return _writes(_rm(found))
    if opcode in (0x61, 0x63):  # PCMPESTRI, PCMPISTRI
        return _writes(RCX)
    return _writes(_reg(found)) if opcode == 0xF0 and found.is_vector else _NOTHING  # RORX


def _of_vector(found: Encoding) -> Effects:
    opcode, opcode_map = found.opcode, found.opcode_map
    if opcode_map == 3:
        return _three_bytes_with_operand(found)
    if opcode_map == 2:
        if opcode == 0xF3:  # BLSR, BLSI, BLSMSK
            return _writes(BY_ENCODING[found.vvvv & 15])
        if opcode == 0xF6:  # MULX
            return _writes(_reg(found), BY_ENCODING[found.vvvv & 15])
        return _writes(_reg(found)) if 0xF2 <= opcode < 0xF8 else _NOTHING
    if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7):
        return _writes(_reg(found))
    if opcode == 0x7E and found.prefix != 0xF3:
        return _writes(_rm(found))
    return _NOTHING
