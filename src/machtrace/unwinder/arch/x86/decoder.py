"""A decoder of x86 instructions in 32-bit and 64-bit mode that caches by the first bytes.

The bytes that identify an instruction come first: prefixes, opcode, ModR/M and SIB. They also
determine its length. Displacements and operands follow, and mostly do not matter to a walk: so most
instructions are decoded once.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A and the
pages of the instructions. :mod:`machtrace.unwinder.arch.x86.encoding` parses them.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.unwinder.arch.x86.calls import MIN_PROBED
from machtrace.unwinder.arch.x86.encoding import (
    AX,
    BP,
    BX,
    CX,
    DI,
    DX,
    MAX_LENGTH,
    NO_EFFECTS,
    SI,
    SP,
    XOP_MAP,
    Effects,
    Encoding,
    base,
    changes,
    indexed,
    parse_with_head,
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
from machtrace.unwinder.arch.x86.registers import MODE_64, Mode
from machtrace.unwinder.code.effects import (
    TRAP,
    AddConstant,
    AddRegister,
    Call,
    IndirectJump,
    Jump,
    Load,
    LoadIndexed,
    MoveRegister,
    Return,
    SetConstant,
    StoreIndexed,
)

# --- The effects of x86 instructions, by opcode map ---
#
# Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, tables A-2 to
# A-5 and the pages of the instructions.

# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's map)


def one_byte(parsed: Encoding) -> Effects:
    """Return the effects of an instruction of map 0."""
    opcode = parsed.opcode
    if opcode < 0x40:
        return _arithmetic(parsed)
    if opcode < 0x50:  # INC and DEC, which are REX prefixes in 64-bit mode
        return _add(parsed, reg(parsed), 1 if opcode < 0x48 else -1)
    if opcode < 0x60:
        return push(parsed, reg(parsed)) if opcode < 0x58 else pop(parsed, reg(parsed))
    if opcode < 0x80:
        return _above_0x60(parsed)
    if opcode < 0x90:
        return _above_0x80(parsed)
    if opcode < 0xC0:
        return _above_0x90(parsed)
    if opcode < 0xE0:
        return _above_0xc0(parsed)
    return _above_0xe0(parsed)


def _add(parsed: Encoding, to: int | None, amount: int) -> Effects:
    if to is not None and size(parsed) == parsed.mode.word:
        return (AddConstant(to, to, amount),)
    return stored_over(parsed, size(parsed)) if parsed.memory else writes(to)


def _arithmetic(parsed: Encoding) -> Effects:
    """Return the effects of ADD, OR, ADC, SBB, AND, SUB, XOR and CMP, each in six forms.

    The same opcodes have segments and decimal arithmetic.
    """
    operation, form = parsed.opcode >> 3, parsed.opcode & 7
    if form >= 6:
        if parsed.opcode >= 0x20:
            return changes(parsed, AX)
        return pop(parsed, None) if form == 7 else push(parsed, None)
    if operation == 7:
        return NO_EFFECTS
    if form >= 4:
        return changes(parsed, AX)
    if operation == 5 and form in (1, 3) and size(parsed) == parsed.mode.word:
        to, source = (rm(parsed), reg(parsed)) if form == 1 else (reg(parsed), rm(parsed))
        if to == parsed.mode.sp and source is not None:
            return (AddRegister(to, to, source, 0, -1),)
    if form >= 2:
        return writes(reg(parsed, of_bytes=form == 2))
    return stored_over(parsed, 1 if form == 0 else size(parsed))


def _above_0x60(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode == 0x60:
        return _push_all(parsed)
    if opcode == 0x61:
        return _pop_all(parsed)
    if opcode == 0x63 and not parsed.mode.is_64:  # ARPL
        return stored_over(parsed, 2)
    if opcode in (0x63, 0x69, 0x6B):  # MOVSXD, IMUL
        return writes(reg(parsed))
    if opcode in (0x68, 0x6A):
        return push(parsed, None)
    if opcode == 0x62:
        return NO_EFFECTS
    if opcode < 0x70:  # INS, OUTS
        return changes(parsed, SI, DI, CX)
    return (Jump(parsed.length + parsed.operand, is_conditional=True),)


def _push_all(parsed: Encoding) -> Effects:
    if parsed.has_16_bit_operands:
        return changes(parsed, SP)
    pushed = (AX, CX, DX, BX, None, BP, SI, DI)  # sp as it was before
    return tuple(push(parsed, None if n is None else register(parsed, n))[0] for n in pushed)


def _pop_all(parsed: Encoding) -> Effects:
    if parsed.has_16_bit_operands:
        return changes(parsed, *range(8))
    popped = (DI, SI, BP, None, BX, DX, CX, AX)
    return tuple(pop(parsed, None if n is None else register(parsed, n))[0] for n in popped)


def _above_0x80(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode <= 0x83:
        return _immediate_arithmetic(parsed)
    if opcode in (0x86, 0x87):  # XCHG
        of_bytes = opcode == 0x86
        return writes(reg(parsed, of_bytes=of_bytes), rm(parsed, of_bytes=of_bytes))
    if opcode == 0x88:
        return stored_over(parsed, 1)
    if opcode == 0x89:
        return _move(parsed, rm(parsed), reg(parsed), is_load=False)
    if opcode == 0x8A:
        return writes(reg(parsed, of_bytes=True))
    if opcode == 0x8B:
        return _move(parsed, reg(parsed), rm(parsed), is_load=True)
    if opcode == 0x8C:
        return stored_over(parsed, 2)
    if opcode == 0x8D:
        return _load_address(parsed)
    if opcode == 0x8F:
        return pop(parsed, rm(parsed)) if parsed.reg & 7 == 0 else (TRAP,)
    return NO_EFFECTS  # TEST, MOV of segment registers


def _immediate_arithmetic(parsed: Encoding) -> Effects:
    operation, of_bytes = parsed.reg & 7, parsed.opcode in (0x80, 0x82)
    if operation == 7 or (parsed.memory and parsed.operand == 0 and operation in (0, 1, 5, 6)):
        return NO_EFFECTS  # with 0 it only probes the memory
    if operation in (0, 5) and parsed.rm is not None and not of_bytes:
        return _add(
            parsed,
            rm(parsed),
            parsed.operand if operation == 0 else -parsed.operand,
        )
    return stored_over(parsed, 1 if of_bytes else size(parsed))


def _move(parsed: Encoding, to: int | None, source: int | None, *, is_load: bool) -> Effects:
    count, word = size(parsed), parsed.mode.word
    if to is not None and source is not None:
        return (MoveRegister(to, source),) if count == word else writes(to)
    location = indexed(parsed) if count == word else None
    if location is not None and not is_load and source is not None:
        return (StoreIndexed(source, *location),)
    if location is not None and is_load and to is not None:
        return (LoadIndexed(to, *location),)
    if not is_load:
        return store(parsed, source, count)
    at = base(parsed)
    if at is None or parsed.memory is None or to is None or count != word:
        return writes(to)
    return (Load((to,), count, at, parsed.memory.displacement),)


def _load_address(parsed: Encoding) -> Effects:
    at, to = base(parsed), reg(parsed)
    if at is None or parsed.memory is None or size(parsed) != parsed.mode.word:
        return writes(to)
    return (AddConstant(to, at, parsed.memory.displacement),)


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
"""CBW, CWD, LAHF, MOV of an address, and string instructions."""


def _above_0x90(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode == 0x90 and parsed.reg == 0:
        return NO_EFFECTS
    if opcode < 0x98:
        return writes(register(parsed, AX), reg(parsed))
    if opcode in _IMPLIED:
        return changes(parsed, *_IMPLIED[opcode])
    if opcode == 0x9A:  # far
        return (TRAP,)
    if opcode in (0x9C, 0x9D):  # PUSHF, POPF
        return push(parsed, None) if opcode == 0x9C else pop(parsed, None)
    if opcode >= 0xB8:
        if reg(parsed) == AX and size(parsed) >= 4 and parsed.operand >= MIN_PROBED:
            return (SetConstant(AX, parsed.operand),)  # maybe the size of a frame
        return writes(reg(parsed))
    if opcode >= 0xB0:
        return writes(reg(parsed, of_bytes=True))
    return NO_EFFECTS


def _above_0xc0(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode in (0xC0, 0xD0, 0xD2, 0xC6):
        return stored_over(parsed, 1)
    if opcode in (0xC1, 0xD1, 0xD3, 0xC7):
        return stored_over(parsed, size(parsed))
    if opcode in (0xC2, 0xC3):
        return_address = parsed.mode.machine.return_address.register
        return (Return(return_address, parsed.operand & 0xFFFF),)
    if opcode in (0xC4, 0xC5):  # LES, LDS
        return writes(reg(parsed))
    if opcode == 0xC8:
        return _enter(parsed)
    if opcode == 0xC9:
        bp = register(parsed, BP)
        return (MoveRegister(parsed.mode.sp, bp), *pop(parsed, bp))
    if opcode in (0xD4, 0xD5, 0xD6, 0xD7):  # AAM, AAD, SALC, XLAT
        return changes(parsed, AX)
    if opcode == 0xDF and parsed.memory is None:  # FNSTSW
        return changes(parsed, AX)
    if opcode in (0xCA, 0xCB, 0xCC, 0xCD, 0xCF):
        return (TRAP,) if opcode != 0xCD or parsed.mode.is_64 else changes(parsed, AX, CX, DX)
    return NO_EFFECTS


def _enter(parsed: Encoding) -> Effects:
    """Return the effects of ENTER; without enclosing functions' frames to copy it is a prologue."""
    if parsed.operand >> 16 or parsed.has_16_bit_operands:
        return changes(parsed, SP, BP)
    sp, bp = parsed.mode.sp, register(parsed, BP)
    return (
        *push(parsed, bp),
        MoveRegister(bp, sp),
        AddConstant(sp, sp, -(parsed.operand & 0xFFFF)),
    )


def _above_0xe0(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode < 0xE4:  # LOOP, JCXZ
        return (
            *changes(parsed, CX),
            Jump(parsed.length + parsed.operand, is_conditional=True),
        )
    if opcode in (0xE8, 0xE9, 0xEA, 0xEB):
        return _direct_transfer(parsed)
    if opcode in (0xE4, 0xE5, 0xEC, 0xED):
        return changes(parsed, AX)
    if opcode in (0xF6, 0xF7):
        return _unary(parsed)
    if opcode == 0xFE:
        return stored_over(parsed, 1)
    if opcode == 0xFF:
        return _group_five(parsed)
    return (TRAP,) if opcode in (0xF1, 0xF4) else NO_EFFECTS


def _direct_transfer(parsed: Encoding) -> Effects:
    opcode, after = parsed.opcode, parsed.length + parsed.operand
    if opcode == 0xEA or (parsed.has_16_bit_operands and not parsed.mode.is_64):
        return (TRAP,)  # far, or to the first 64 KiB
    if opcode != 0xE8:
        return (Jump(after, is_conditional=False),)
    # A call of the next instruction only reads the pc.
    return (Call(after),) if parsed.operand else push_word(parsed, None)


def _unary(parsed: Encoding) -> Effects:
    operation = parsed.reg & 7
    if operation < 2:
        return NO_EFFECTS  # TEST
    if operation < 4:
        return stored_over(parsed, 1 if parsed.opcode == 0xF6 else size(parsed))
    return changes(parsed, AX, DX)


def _group_five(parsed: Encoding) -> Effects:
    operation, target = parsed.reg & 7, rm(parsed)
    match operation:
        case 0 | 1:
            return _add(parsed, target, 1 - 2 * operation)
        case 2:
            return (Call(None),)
        case 4:
            nowhere = parsed.mode.machine.return_address.register  # no register that is tracked
            if target is not None:
                return (IndirectJump(target),)
            at = base(parsed)
            offset = 0 if at is None or parsed.memory is None else parsed.memory.displacement
            return (IndirectJump(nowhere, at, offset),)
        case 6:
            return push(parsed, target)
        case _:
            return (TRAP,)


# ruff: noqa: PLR0911, PLR2004 (each number is an opcode or a field of one, each return a row of
# the manual's maps)


_ASYNC_TAG_BIT = 60
"""The bit that Swift's async functions set in the frame pointer they save: it is still the
caller's."""
_TO_REG_0F = frozenset(
    (
        *(*range(0x40, 0x50), 0x02, 0x03, 0x50, 0xAF, 0xB2, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8),
        *(0xBC, 0xBD, 0xBE, 0xBF, 0xC5, 0xD7, 0x2C, 0x2D),
    )
)
"""CMOV, MOVZX, IMUL, BSF, MOVMSKPS, …: instructions that write ModR/M's general register."""
_TO_RM_0F = frozenset((*range(0x90, 0xA0), 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xB3, 0xBB, 0xC3))
"""SET, SHLD, BTS, MOVNTI, …: instructions that write ModR/M's register or memory."""
_WRITTEN_0F = {
    0x05: (AX, DX, CX),
    0x31: (AX, DX),
    0x32: (AX, DX),
    0x33: (AX, DX),
    0xA2: (AX, BX, CX, DX),
}
"""SYSCALL, RDTSC, RDMSR, RDPMC, CPUID."""
_R11 = 11


def two_bytes(parsed: Encoding) -> Effects:
    """Return the effects of an instruction of map 1, whose opcode starts with 0F."""
    opcode = parsed.opcode
    if 0x80 <= opcode < 0x90:
        return (Jump(parsed.length + parsed.operand, is_conditional=True),)
    if opcode in _TO_REG_0F:
        return writes(reg(parsed))
    if opcode in _TO_RM_0F:
        is_set = opcode in range(0x90, 0xA0)
        return stored_over(parsed, 1 if is_set else size(parsed))
    if opcode in _WRITTEN_0F:
        keeps_flags = (_R11,) if opcode == 0x05 and parsed.mode.is_64 else ()
        return changes(parsed, *_WRITTEN_0F[opcode], *keeps_flags)
    if opcode in (0x0B, 0xB9, 0xFF):
        return (TRAP,)
    if opcode in (0xA0, 0xA8, 0xA1, 0xA9):  # of FS and GS
        return pop(parsed, None) if opcode & 1 else push(parsed, None)
    if 0xC8 <= opcode < 0xD0:
        return writes(reg(parsed))
    return _rare_two_bytes(parsed)


def _rare_two_bytes(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if opcode in (0xB0, 0xB1):  # CMPXCHG
        return writes(register(parsed, AX), rm(parsed, of_bytes=opcode == 0xB0))
    if opcode in (0xC0, 0xC1):  # XADD
        of_bytes = opcode == 0xC0
        return writes(reg(parsed, of_bytes=of_bytes), rm(parsed, of_bytes=of_bytes))
    if opcode == 0xC7:  # CMPXCHG16B, RDRAND, RDSEED
        return (*changes(parsed, AX, DX), *writes(rm(parsed)))
    if opcode == 0xBA and parsed.reg & 7 != 4:  # BTS, BTR, BTC
        is_async_tag = parsed.operand == _ASYNC_TAG_BIT and rm(parsed) == register(parsed, BP)
        return NO_EFFECTS if is_async_tag else stored_over(parsed, size(parsed))
    if opcode == 0x7E and parsed.prefix != 0xF3:  # MOVD, MOVQ
        return writes(rm(parsed))
    if opcode == 0x1E and parsed.prefix == 0xF3:  # RDSSP; ENDBR differs from it in ModR/M
        return writes(rm(parsed)) if parsed.reg & 7 == 1 else NO_EFFECTS
    if opcode == 0x01:  # SMSW; XGETBV, RDTSCP, …
        return writes(rm(parsed)) if parsed.reg & 7 == 4 else changes(parsed, AX, DX, CX)
    if opcode in (0x00, 0x20, 0x21) or (opcode == 0xAE and parsed.prefix == 0xF3):
        return writes(rm(parsed))  # SLDT, MOV of control registers, RDFSBASE
    return NO_EFFECTS


def three_bytes(parsed: Encoding) -> Effects:
    """Return the effects of an instruction of map 2 or 3: its opcode starts with 0F 38 or 0F 3A."""
    opcode = parsed.opcode
    if parsed.opcode_map == 2:
        # CRC32, MOVBE, ADCX, ADOX
        return writes(reg(parsed)) if 0xF0 <= opcode < 0xF8 else NO_EFFECTS
    return _three_bytes_with_operand(parsed)


def _three_bytes_with_operand(parsed: Encoding) -> Effects:
    opcode = parsed.opcode
    if 0x14 <= opcode < 0x18:  # PEXTRB, PEXTRW, PEXTRD, EXTRACTPS
        return writes(rm(parsed))
    if opcode in (0x61, 0x63):  # PCMPESTRI, PCMPISTRI
        return changes(parsed, CX)
    return writes(reg(parsed)) if opcode == 0xF0 and parsed.is_vector else NO_EFFECTS  # RORX


def vector(parsed: Encoding) -> Effects:
    """Return the effects of an instruction with a VEX, EVEX or XOP prefix."""
    opcode, opcode_map = parsed.opcode, parsed.opcode_map
    if opcode_map == XOP_MAP + 1:  # BLCFILL and similar; LLWPCB and SLWPCB
        changed = {0x01: register(parsed, parsed.vvvv), 0x02: register(parsed, parsed.vvvv)}
        return writes(changed.get(opcode, rm(parsed) if opcode == 0x12 else None))
    if opcode_map >= XOP_MAP:
        return writes(reg(parsed) if opcode == 0x10 and opcode_map > XOP_MAP else None)  # BEXTR
    if opcode_map == 3:
        return _three_bytes_with_operand(parsed)
    if opcode_map == 2:
        if opcode == 0xF3:  # BLSR, BLSI, BLSMSK
            return writes(register(parsed, parsed.vvvv))
        if opcode == 0xF6:  # MULX
            return writes(reg(parsed), register(parsed, parsed.vvvv))
        return writes(reg(parsed)) if 0xF2 <= opcode < 0xF8 else NO_EFFECTS
    if opcode in (0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7):
        return writes(reg(parsed))
    if opcode == 0x7E and parsed.prefix != 0xF3:
        return writes(rm(parsed))
    return NO_EFFECTS


# --- A decoder of x86 instructions in 32-bit and 64-bit mode that caches by the first bytes ---


def decode(code: bytes | memoryview, at: int, mode: Mode = MODE_64) -> tuple[int, Effects]:
    """Return the size and the effects of the instruction at ``code[at]``.

    Distances of jumps and calls are in bytes from the instruction's start. An invalid instruction
    is one byte that traps.
    """
    length, effects, _ = decode_with_head(code, at, mode)
    return length, effects


def decode_with_head(code: bytes | memoryview, at: int, mode: Mode) -> tuple[int, Effects, int]:
    """Return the same, and the number of identifying bytes; 0 if they are incomplete."""
    instruction, head = parse_with_head(code, at, mode)
    if instruction is None:
        return 1, (TRAP,), head
    if instruction.opcode_map == 0:
        effects = one_byte(instruction)
    elif instruction.is_vector:
        effects = vector(instruction)
    elif instruction.opcode_map == 1:
        effects = two_bytes(instruction)
    else:
        effects = three_bytes(instruction)
    return instruction.length, effects, head


CACHED = 1 << 14
"""Cached beginnings and whole instructions; a full cache is cleared."""

_CALL = b"\xe8"
_TRIED = (0x00, 0x01, 0x10, 0x3C, 0x3D, 0x7F, 0x80, 0xFF)
"""Values that all displacement and operand bytes are set to, in turn, to find out whether
they matter: among them the number of Swift's tag bit, and small and large ones of both signs."""


class _Beginning(NamedTuple):
    """The common properties of instructions with the same identifying bytes."""

    length: int
    effects: Effects | None
    """Their effects; None if these depend on the bytes that follow."""
    jump: bool | None = None
    """Whether a direct jump is conditional; None for other instructions."""
    is_call: bool = False


class Decoder:
    """Decodes and caches instructions of one mode."""

    __slots__ = ("_beginnings", "_mode", "_whole", "misses")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._beginnings: dict[bytes, _Beginning | None] = {}
        """By identifying bytes; None if more bytes are needed."""
        self._whole: dict[bytes, Effects] = {}
        self.misses = 0
        """The number of instructions that were not in the cache."""

    @property
    def cached_count(self) -> int:
        """The number of cached entries."""
        return len(self._beginnings) + len(self._whole)

    def decode(self, code: bytes, at: int) -> tuple[int, Effects]:
        """See :func:`~machtrace.unwinder.arch.x86.decoder.decode`."""
        beginnings = self._beginnings
        for end in range(at + 1, min(at + MAX_LENGTH, len(code)) + 1):
            key = code[at:end]
            if key not in beginnings:
                break
            beginning = beginnings[key]
            if beginning is None:
                continue
            stop = at + beginning.length
            if stop > len(code):
                break
            if beginning.effects is not None:
                return beginning.length, beginning.effects
            if beginning.jump is not None or beginning.is_call:
                distance = int.from_bytes(code[end:stop], "little", signed=True) + beginning.length
                if beginning.jump is not None:
                    return beginning.length, (Jump(distance, is_conditional=beginning.jump),)
                if distance != beginning.length:
                    return beginning.length, (Call(distance),)
                break  # a call of the next instruction only pushes
            effects = self._whole.get(code[at:stop])
            if effects is not None:
                return beginning.length, effects
            break
        return self._learn(code, at)

    def _learn(self, code: bytes, at: int) -> tuple[int, Effects]:
        self.misses += 1
        length, effects, head = decode_with_head(code, at, self._mode)
        if not head:
            return length, effects
        if self.cached_count > CACHED:
            self._beginnings.clear()
            self._whole.clear()
        beginning = code[at : at + head]
        if beginning.endswith(_CALL) and not isinstance(effects[0], Call):
            return length, effects
        for end in range(1, head):
            self._beginnings[beginning[:end]] = None
        known = self._beginning(length, effects, beginning)
        self._beginnings[beginning] = known
        if known.effects is None and known.jump is None and not known.is_call:
            self._whole[code[at : at + length]] = effects
        return length, effects

    def _beginning(self, length: int, effects: Effects, beginning: bytes) -> _Beginning:
        """Return the common properties of instructions that begin like this one."""
        first = effects[0]
        if len(effects) == 1 and isinstance(first, Jump):
            return _Beginning(length, None, jump=first.is_conditional)
        if len(effects) == 1 and isinstance(first, Call) and first.distance is not None:
            return _Beginning(length, None, is_call=True)
        rest = length - len(beginning)
        others = (beginning + bytes((byte,)) * rest for byte in _TRIED)
        is_same = rest <= 0 or all(
            decode(other, 0, self._mode) == (length, effects) for other in others
        )
        return _Beginning(length, effects if is_same else None)
