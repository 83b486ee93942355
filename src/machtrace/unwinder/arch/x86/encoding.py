"""The encoding of x86 instructions: length, fields and register operands, in both modes.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2: chapter 2 for
prefixes, ModR/M, VEX and EVEX, appendix A for the opcode maps.
"""

from __future__ import annotations

from machtrace.frozen import dataclass
from machtrace.unwinder.arch.x86.registers import MODE_64, Mode
from machtrace.unwinder.code.effects import NOTHING, Effect, Load, Store, Writes

# ruff: noqa: C901, PLR0911, PLR2004 (each number is a field's value in the manual's tables, each
# branch a row of one)


MAX_LENGTH = 15
"""Bytes of the longest instruction."""

_LEGACY_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_INVALID_64 = frozenset(
    b"\x06\x07\x0e\x16\x17\x1e\x1f\x27\x2f\x37\x3f\x60\x61\x82\x9a\xc4\xc5\xce\xd4\xd5\xd6\xea"
)
"""Opcodes that 64-bit mode removed."""
_MODRM = frozenset(
    (
        *(op for op in range(0x40) if op & 7 < 4),
        *(0x62, 0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, *range(0xC4, 0xC8)),
        *(*range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF),
    )
)
_BYTE_OPERAND = frozenset(
    (
        *(op for op in range(0x40) if op & 7 == 4),
        *(0x6A, 0x6B, *range(0x70, 0x80), 0x80, 0x82, 0x83, 0xA8, *range(0xB0, 0xB8)),
        *(0xC0, 0xC1, 0xC6, 0xCD, 0xD4, 0xD5, *range(0xE0, 0xE8), 0xEB),
    )
)
_WORD_OPERAND = frozenset((*(op for op in range(0x40) if op & 7 == 5), 0x69, 0x81, 0xA9, 0xC7))
"""16 bits with an operand-size prefix, else 32."""
_NO_MODRM_0F = frozenset(
    (
        *(*range(0x05, 0x0A), 0x0B, 0x0E, *range(0x30, 0x38), 0x77, *range(0x80, 0x90)),
        *(0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)),
    )
)
_BYTE_OPERAND_0F = frozenset(b"\x70\x71\x72\x73\xa4\xac\xba\xc2\xc4\xc5\xc6\x0f")
_INVALID_0F = frozenset(b"\x04\x0a\x0c\x24\x25\x26\x27\x36\x39\x3b\x3c\x3d\x3e\x3f\xa6\xa7")

XOP_MAP = 8
"""The first opcode map of AMD's XOP (*AMD64 Architecture Programmer's Manual*, volume 6)."""
_MAPS = {
    0xC4: (1, 2, 3),
    0xC5: (1,),
    0x62: (1, 2, 3, 5, 6),
    0x8F: (XOP_MAP, XOP_MAP + 1, XOP_MAP + 2),
}
"""Opcode maps by the first byte of the prefix."""

REX_W, REX_R, REX_X, REX_B = 8, 4, 2, 1


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory operand at ``base + index * scale + displacement``."""

    base: int | None
    """As instructions number registers; None for an absolute address, one relative to rip, and one
    of 16 bits."""
    index: int | None
    """The same; None without one."""
    scale: int
    displacement: int

    @property
    def has_index(self) -> bool:
        """Whether a register's multiple is added."""
        return self.index is not None


@dataclass(frozen=True, slots=True)
class Encoding:
    """A parsed instruction."""

    mode: Mode
    length: int
    opcode_map: int
    """0 for one byte, 1 for 0F, 2 for 0F 38, 3 for 0F 3A; with EVEX also 5 and 6, with XOP 8 to
    10."""
    opcode: int
    is_vector: bool
    """Whether it has a VEX, EVEX or XOP prefix."""
    prefix: int
    """The last of its prefixes 66, F2 and F3; 0 without any."""
    has_16_bit_operands: bool
    rex: int
    """The low bits of REX, or their equivalent in VEX and EVEX; -1 without any."""
    vvvv: int
    """The third register of VEX and EVEX."""
    reg: int
    """Register or opcode extension of ModR/M; the register of an opcode that has one."""
    rm: int | None
    """The register in ModR/M; None for memory, and without ModR/M."""
    memory: Memory | None
    operand: int
    """The signed number after the opcode and ModR/M; 0 without one."""


class _Bytes:
    """A cursor that raises IndexError at the end."""

    __slots__ = ("at", "code", "end", "values_at")

    def __init__(self, code: bytes | memoryview, at: int) -> None:
        self.code = code
        self.at = at
        self.end = min(len(code), at + MAX_LENGTH)
        self.values_at = 0
        """The offset of displacements and operands; 0 without any."""

    def byte(self) -> int:
        if self.at >= self.end:
            raise IndexError
        value = self.code[self.at]
        self.at += 1
        return value

    def peek(self) -> int:
        if self.at >= self.end:
            raise IndexError
        return self.code[self.at]

    def signed(self, size: int) -> int:
        if self.at + size > self.end:
            raise IndexError
        if size and not self.values_at:
            self.values_at = self.at
        value = int.from_bytes(self.code[self.at : self.at + size], "little", signed=True)
        self.at += size
        return value


def parse(code: bytes | memoryview, at: int, mode: Mode = MODE_64) -> Encoding | None:
    """Parse the instruction at ``code[at]``; return None if it is invalid or incomplete."""
    return parse_with_head(code, at, mode)[0]


def parse_with_head(code: bytes | memoryview, at: int, mode: Mode) -> tuple[Encoding | None, int]:
    """Parse the same; return also the number of bytes before displacements and operands.

    0 if the instruction is incomplete.
    """
    cursor = _Bytes(code, at)
    try:
        parsed = _parse(cursor, at, mode)
    except IndexError:
        return None, 0
    return parsed, (cursor.values_at or cursor.at) - at


def _parse(code: _Bytes, start: int, mode: Mode) -> Encoding | None:
    prefixes = _Prefixes()
    byte = prefixes.read(code, mode)
    if byte in (0xC4, 0xC5, 0x62) and (mode.is_64 or code.peek() >= 0xC0):
        return _vector(code, start, byte, prefixes, mode)
    if byte == 0x8F and code.peek() & 0x1F >= XOP_MAP:  # else it is POP
        return _vector(code, start, byte, prefixes, mode)
    opcode_map = 0
    if byte == 0x0F:
        opcode_map, byte = 1, code.byte()
        if byte in (0x38, 0x3A):
            opcode_map, byte = (2 if byte == 0x38 else 3), code.byte()
    if _is_invalid(opcode_map, byte, mode):
        return None
    rex = prefixes.rex
    extension = 8 if rex & REX_B else 0
    reg, rm, memory = byte & 7 | extension, None, None
    if opcode_map == 1 and 0x20 <= byte < 0x24:  # MOV of control registers never names memory
        rm = code.byte() & 7 | extension
    elif _has_modrm(opcode_map, byte):
        reg, rm, memory = _modrm(code, rex, has_16_bits=prefixes.has_16_bit_addresses(mode))
    wide = prefixes.has_16_bit_operands and not rex & REX_W
    size = _operand_size(opcode_map, byte, reg, rex=rex, wide=wide, mode=mode)
    if opcode_map == 0 and 0xA0 <= byte <= 0xA3:
        size = mode.word >> prefixes.has_short_addresses
    operand = code.signed(size)
    return Encoding(
        mode=mode,
        length=code.at - start,
        opcode_map=opcode_map,
        opcode=byte,
        is_vector=False,
        prefix=prefixes.mandatory,
        has_16_bit_operands=prefixes.has_16_bit_operands,
        rex=rex if prefixes.has_rex else -1,
        vvvv=0,
        reg=reg,
        rm=rm,
        memory=memory,
        operand=operand,
    )


class _Prefixes:
    """The prefixes before the opcode."""

    __slots__ = ("has_16_bit_operands", "has_rex", "has_short_addresses", "mandatory", "rex")

    def __init__(self) -> None:
        self.mandatory = 0
        self.has_16_bit_operands = False
        self.has_short_addresses = False
        self.rex = 0
        self.has_rex = False

    def read(self, code: _Bytes, mode: Mode) -> int:
        """Read all prefixes; return the byte after them."""
        byte = code.byte()
        while byte in _LEGACY_PREFIXES or (byte & 0xF0 == 0x40 and mode.is_64):
            # REX counts only directly before the opcode.
            self.has_rex = byte & 0xF0 == 0x40
            self.rex = byte & 0xF if self.has_rex else 0
            if byte == 0x66:
                self.has_16_bit_operands = True
                self.mandatory = self.mandatory or byte
            elif byte in (0xF2, 0xF3):
                self.mandatory = byte
            self.has_short_addresses |= byte == 0x67
            byte = code.byte()
        return byte

    def has_16_bit_addresses(self, mode: Mode) -> bool:
        return self.has_short_addresses and not mode.is_64


def _is_invalid(opcode_map: int, opcode: int, mode: Mode) -> bool:
    if opcode_map == 0:
        return mode.is_64 and opcode in _INVALID_64
    return opcode_map == 1 and opcode in _INVALID_0F


def _has_modrm(opcode_map: int, opcode: int) -> bool:
    if opcode_map == 0:
        return opcode in _MODRM
    return opcode_map > 1 or opcode not in _NO_MODRM_0F


def _operand_size(
    opcode_map: int, opcode: int, reg: int, *, rex: int, wide: bool, mode: Mode
) -> int:
    """Return the bytes after the opcode and ModR/M: 0, 1, 2, 3, 4, 6 or 8."""
    word = 2 if wide else 4
    # Apple's processors and compilers use no 16-bit jumps in 64-bit mode; AMD's would cut rip.
    distance = 4 if mode.is_64 else word
    if opcode_map == 1:
        if opcode in _BYTE_OPERAND_0F:
            return 1
        return distance if 0x80 <= opcode < 0x90 else 0
    if opcode_map:
        return 1 if opcode_map == 3 else 0
    if opcode in _BYTE_OPERAND:
        return 1
    if opcode in _WORD_OPERAND:
        return word
    if opcode in (0x68, 0xE8, 0xE9):
        return word if opcode == 0x68 else distance
    if opcode in (0x9A, 0xEA):
        return 2 + word
    if 0xB8 <= opcode < 0xC0:
        return 8 if rex & REX_W else word
    if opcode in (0xC2, 0xCA):
        return 2
    if opcode == 0xC8:
        return 3
    if opcode in (0xF6, 0xF7) and reg & 7 < 2:
        return 1 if opcode == 0xF6 else word
    return 0


def _modrm(code: _Bytes, rex: int, *, has_16_bits: bool) -> tuple[int, int | None, Memory | None]:
    byte = code.byte()
    kind, reg, rm = byte >> 6, byte >> 3 & 7 | (8 if rex & REX_R else 0), byte & 7
    if kind == 3:
        return reg, rm | (8 if rex & REX_B else 0), None
    if has_16_bits:
        size = 2 if kind == 0 and rm == 6 else kind
        return reg, None, Memory(None, None, 1, code.signed(size))  # of half registers
    base: int | None = rm | (8 if rex & REX_B else 0)
    index: int | None = None
    scale = 1
    size = (0, 1, 4)[kind]
    if rm == 4:
        sib = code.byte()
        index, scale = (sib >> 3 & 7) | (8 if rex & REX_X else 0), 1 << (sib >> 6)
        index = None if index == 4 else index  # sp is none
        base = sib & 7 | (8 if rex & REX_B else 0)
        if sib & 7 == 5 and kind == 0:
            base, size = None, 4
    elif rm == 5 and kind == 0:
        base, size = None, 4
    return reg, None, Memory(base, index, scale, code.signed(size))


def _vector(
    code: _Bytes, start: int, first: int, prefixes: _Prefixes, mode: Mode
) -> Encoding | None:
    """Parse VEX of two or three bytes, EVEX and XOP, whose inverted bits are restored."""
    second = code.byte()
    if first == 0xC5:
        opcode_map, rex, last = 1, (~second >> 5) & REX_R, second
    else:
        third = code.byte()
        opcode_map = second & (7 if first == 0x62 else 0x1F)
        rex = (~second >> 5) & 7 | (third >> 4) & REX_W
        last = third
    if not mode.is_64:
        rex = 0  # there are no more than eight registers, of 32 bits
    is_extended = first == 0x62
    upper = 0
    if is_extended:
        upper = ~code.byte() >> 3 & 1
    if opcode_map not in _MAPS[first]:
        return None
    opcode = code.byte()
    reg, rm, memory = opcode & 7, None, None
    if not (opcode_map == 1 and opcode == 0x77 and not is_extended):
        reg, rm, memory = _modrm(code, rex, has_16_bits=prefixes.has_16_bit_addresses(mode))
    has_operand = opcode_map in (3, XOP_MAP) or (opcode_map == 1 and opcode in _BYTE_OPERAND_0F)
    operand = code.signed(4 if opcode_map == XOP_MAP + 2 else has_operand)
    return Encoding(
        mode=mode,
        length=code.at - start,
        opcode_map=opcode_map,
        opcode=opcode,
        is_vector=True,
        prefix=(0, 0x66, 0xF3, 0xF2)[last & 3],
        has_16_bit_operands=False,
        rex=rex,
        vvvv=((~last >> 3) & 0xF | upper << 4) if mode.is_64 else ~last >> 3 & 7,
        reg=reg,
        rm=rm,
        memory=memory,
        operand=operand,
    )


AX, CX, DX, BX, SP, BP, SI, DI = range(8)
"""As instructions number registers; effects have DWARF numbers."""

Effects = tuple[Effect, ...]
"""The effects of one instruction, in order: ``leave`` has two."""

NO_EFFECTS: Effects = (NOTHING,)


def register(parsed: Encoding, number: int) -> int:
    """Return the DWARF number of a register by its number in instructions."""
    return parsed.mode.by_encoding[number & 15]


def reg(parsed: Encoding, *, of_bytes: bool = False) -> int:
    """Return the register of ModR/M's middle bits, or of the opcode's low ones."""
    number = parsed.reg
    if of_bytes and parsed.rex < 0:
        number &= 3  # ah, ch, dh and bh are parts of the first four
    return register(parsed, number)


def rm(parsed: Encoding, *, of_bytes: bool = False) -> int | None:
    """Return the register of ModR/M's low bits; None for memory."""
    number = parsed.rm
    if number is None:
        return None
    if of_bytes and parsed.rex < 0:
        number &= 3
    return register(parsed, number)


def writes(*registers: int | None) -> Effects:
    """Return the effect of writing unknown values to ``registers``, by DWARF number."""
    return (Writes(tuple(number for number in registers if number is not None)),)


def changes(parsed: Encoding, *numbers: int) -> Effects:
    """Return the same for registers as instructions number them."""
    return (Writes(tuple(register(parsed, number) for number in numbers)),)


def base(parsed: Encoding) -> int | None:
    """Return the register that an address is relative to; None if there are more, or none."""
    memory = parsed.memory
    if memory is None or memory.base is None or memory.has_index:
        return None
    return register(parsed, memory.base)


def indexed(parsed: Encoding) -> tuple[int, int, int, int] | None:
    """Return base, index, scale and offset of a location in the stack that has an index."""
    memory = parsed.memory
    if memory is None or memory.base is None or memory.index is None:
        return None
    base_register = register(parsed, memory.base)
    if base_register != parsed.mode.sp:
        return None
    return base_register, register(parsed, memory.index), memory.scale, memory.displacement


def size(parsed: Encoding) -> int:
    """Return the bytes of the operands."""
    if parsed.rex >= 0 and parsed.rex & REX_W:
        return 8
    return 2 if parsed.has_16_bit_operands else 4


def push(parsed: Encoding, pushed: int | None) -> Effects:
    """Return the effects of pushing a register, or None for anything else."""
    return changes(parsed, SP) if parsed.has_16_bit_operands else push_word(parsed, pushed)


def push_word(parsed: Encoding, pushed: int | None) -> Effects:
    """Return the same, whatever the size of the operands."""
    word = parsed.mode.word
    return (Store((pushed,), word, parsed.mode.sp, -word, -word),)


def pop(parsed: Encoding, popped: int | None) -> Effects:
    """Return the effects of popping into a register, or None for anything else."""
    if parsed.has_16_bit_operands:
        return writes(parsed.mode.sp, popped)
    word = parsed.mode.word
    return (Load((popped,), word, parsed.mode.sp, 0, word),)


def store(parsed: Encoding, stored: int | None, count: int) -> Effects:
    """Return the effects of storing ``count`` bytes of a register (None: of anything else)."""
    at = base(parsed)
    if at is None or parsed.memory is None:
        return NO_EFFECTS
    return (Store((stored,), count, at, parsed.memory.displacement),)


def stored_over(parsed: Encoding, count: int) -> Effects:
    """Return the effects of overwriting ModR/M's memory, or register, with an unknown value."""
    if parsed.memory is None:
        return writes(rm(parsed, of_bytes=count == 1))
    return store(parsed, None, count)
