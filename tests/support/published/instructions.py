"""Instructions' effects on the flow of control, and the registers that they store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from machtrace.model.arch import Arch

# Masks and values of encodings: *Arm Architecture Reference Manual*, C4.1.
_CONDITIONAL_BRANCH = (0xFF000000, 0x54000000)
_COMPARE_BRANCH = (0x7E000000, 0x34000000)
_TEST_BRANCH = (0x7E000000, 0x36000000)
_BR = (0xFEFFF000, 0xD61F0000)
_BLR = (0xFEFFF000, 0xD63F0000)
_RET = (0xFFFFF000, 0xD65F0000)
_STORE_PAIR = (0x3A400000, 0x28000000)
_STORE = (0x3B400000, 0x39000000)
_STORE_UNSCALED = (0x3B600000, 0x38000000)
_B, _BL = 0x05, 0x25
_CONTROL = frozenset(
    (0x00, *range(0x14, 0x18), *range(0x34, 0x38), 0x54, *range(0x94, 0x98), *range(0xB4, 0xB8))
) | {0xD4, 0xD5, 0xD6, 0xD7}
"""The highest bytes of all instructions that are not plain."""
_SVC, _EXCEPTIONS = 0xD4000001, 0xD4
_NARROW_LOAD = (0xBFE00C00, 0x38600800)
"""``ldrb`` and ``ldrh`` by a register."""
_NOP = 0xD503201F
_SUB_SP = (0xFFE003FF, 0xCB2003FF)
"""``sub sp, sp, register``."""
_BTI = (0xFFFFFF3F, 0xD503241F)
_DOUBLES = 64
_CALLEE_SAVED = frozenset(range(19, 31))
_SAVED_DOUBLES = range(8, 16)


class Kind(IntEnum):
    """The effect of an instruction on the flow of control."""

    PLAIN = 0
    CALL = 1
    RETURN = 2
    INDIRECT_JUMP = 3
    JUMP = 4
    BRANCH = 5
    """Conditional."""
    TRAP = 6
    SYSTEM_CALL = 7
    PADDING = 8
    """No operation."""


class Memory(NamedTuple):
    """A memory operand: DWARF numbers of registers, or None."""

    base: int | None
    offset: int | None
    scale: int
    displacement: int


class Instruction(NamedTuple):
    """A decoded instruction."""

    kind: Kind
    size: int
    target: int | None = None
    """The target of a direct transfer."""
    register: int | None = None
    """The DWARF number of the register that an indirect transfer reads."""
    memory: Memory | None = None
    """The operand that an indirect transfer reads."""
    stored: tuple[int, ...] = ()
    """DWARF numbers of stored callee-saved registers."""
    allocates: bool = False
    """Whether it subtracts a register from the stack pointer."""
    loads_entry: bool = False
    """Whether it may load an entry of a jump table: one or two bytes by an index (AArch64), or a
    distance of four (x86-64)."""
    entry: Memory | None = None
    """The operand of such a load on x86-64."""

    @property
    def ends_flow(self) -> bool:
        """Whether the next instruction does not follow it."""
        return self.kind in (Kind.RETURN, Kind.INDIRECT_JUMP, Kind.JUMP, Kind.TRAP)


Decode = Callable[[bytes, int], Instruction]
"""Decodes the first instruction of bytes at an address."""


def decoder_of(arch: Arch) -> Decode:
    """Return the decoder of an architecture."""
    return decode_arm64 if arch.is_arm64 else X86Decoder()


def _is(word: int, pattern: tuple[int, int]) -> bool:
    return word & pattern[0] == pattern[1]


def decode_arm64(code: bytes, address: int) -> Instruction:  # noqa: C901, PLR0911 (a kind each)
    """Decode an AArch64 instruction."""
    if len(code) < 4:
        return Instruction(Kind.TRAP, 4)
    word = int.from_bytes(code[:4], "little")
    if word >> 24 not in _CONTROL:
        if word & _NARROW_LOAD[0] == _NARROW_LOAD[1]:
            return Instruction(Kind.PLAIN, 4, loads_entry=True)
        return Instruction(Kind.PLAIN, 4, stored=_stored(word), allocates=_is(word, _SUB_SP))
    top = word >> 26
    if top in (_B, _BL):
        distance = (word & 0x03FFFFFF) << 2
        distance -= (distance & 1 << 27) << 1
        return Instruction(Kind.CALL if top == _BL else Kind.JUMP, 4, address + distance)
    if _is(word, _CONDITIONAL_BRANCH) or _is(word, _COMPARE_BRANCH):
        return Instruction(Kind.BRANCH, 4, address + _signed(word >> 5, 19))
    if _is(word, _TEST_BRANCH):
        return Instruction(Kind.BRANCH, 4, address + _signed(word >> 5, 14))
    for pattern, kind in (
        (_BR, Kind.INDIRECT_JUMP),
        (_BLR, Kind.CALL),
        (_RET, Kind.RETURN),
    ):
        if _is(word, pattern):
            register = word >> 5 & 31
            return Instruction(
                kind, 4, register=30 if kind is Kind.RETURN and register == 31 else register
            )
    if word >> 24 == _EXCEPTIONS:
        return Instruction(Kind.SYSTEM_CALL if word & 0xFFE0001F == _SVC else Kind.TRAP, 4)
    if word < 1 << 16:
        return Instruction(Kind.TRAP, 4)
    if word == _NOP:
        return Instruction(Kind.PADDING, 4)
    return Instruction(Kind.PLAIN, 4)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return (value - ((value >> (bits - 1)) << bits)) << 2


def _stored(word: int) -> tuple[int, ...]:
    """Return the callee-saved registers that a store writes."""
    is_pair = _is(word, _STORE_PAIR)
    if not (is_pair or _is(word, _STORE) or _is(word, _STORE_UNSCALED)):
        return ()
    registers = (word & 31, word >> 10 & 31) if is_pair else (word & 31,)
    if word >> 26 & 1:
        return tuple(_DOUBLES + number for number in registers if number in _SAVED_DOUBLES)
    return tuple(number for number in registers if number in _CALLEE_SAVED)


_PAIR = (0x3A000000, 0x28000000)
_SINGLE_INDEXED = (0x3B200C00, 0x38000400)
"""``ldr`` and ``str`` with writeback, after the access; before it, bit 11 is set, too."""
_SINGLE_OFFSET = (0x3B000000, 0x39000000)
_ADD_SP, _SUB_SP_CONSTANT = (0xFF8003FF, 0x910003FF), (0xFF8003FF, 0xD10003FF)
_SP = 31


def stack_use(word: int) -> tuple[int, int | None]:  # noqa: PLR0911 (one return a case)
    """Return by how much an AArch64 instruction raises sp, and the offset from sp that it accesses.

    The offset is that from the stack pointer before the instruction; None without an access.
    """
    constant = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
    if _is(word, _ADD_SP):
        return constant, None
    if _is(word, _SUB_SP_CONSTANT):
        return -constant, None
    if word >> 5 & 31 != _SP:
        return 0, None
    if _is(word, _PAIR):
        scale = 2 + (word >> 30) if word >> 26 & 1 else 2 + (word >> 31)
        offset = _signed(word >> 15, 7) // 4 << scale
        mode = word >> 23 & 3
        return (offset if mode & 1 else 0), (0 if mode == 1 else offset)
    if word & 0x3B200400 == _SINGLE_INDEXED[1]:
        offset = _signed(word >> 12, 9) // 4
        return offset, (offset if word >> 11 & 1 else 0)
    if _is(word, _SINGLE_OFFSET):
        return 0, (word >> 10 & 0xFFF) << (word >> 30)
    return 0, None


def written(word: int) -> set[int]:
    """Return the general register that most AArch64 instructions write: their lowest field.

    Empty for stores, branches and comparisons, and for floating-point registers.
    """
    if word >> 25 & 5 == 4:  # loads and stores
        if word >> 26 & 1 or not word >> 22 & 1:
            return set()
        return {word & 31, word >> 10 & 31} if _is(word, _PAIR) else {word & 31}
    is_data = word >> 26 & 7 == 4 or word >> 25 & 7 == 5
    return {word & 31} if is_data else set()


_RET_OPCODES = (0xC2, 0xC3)
_X86_PREFIXES = bytes(
    (0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3, *range(0x40, 0x50))
)
_CALL_NEAR, _JUMP_NEAR, _JUMP_SHORT = 0xE8, 0xE9, 0xEB
_TRAPS = (0xCC, 0xCD, 0xF4)
_GROUP_5 = 0xFF
_TWO_BYTES = 0x0F
_SYSCALL, _UD2 = 0x05, 0x0B


class X86Decoder:
    """Decodes x86-64 instructions, with capstone; callable as :data:`Decode`."""

    def __init__(self) -> None:
        import capstone  # type: ignore[import-untyped]

        self._quick = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._whole = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._whole.detail = True
        names = Arch.X86_64.registers.names[:16]

        import capstone.x86_const as constants  # type: ignore[import-untyped]

        self._numbers: dict[int, int] = {
            getattr(constants, f"X86_REG_{name.upper()}"): number
            for number, name in enumerate(names)
        }
        self._register_type = constants.X86_OP_REG
        self._rip = constants.X86_REG_RIP
        self._segments = {constants.X86_REG_FS, constants.X86_REG_GS}

    def __call__(self, code: bytes, address: int) -> Instruction:
        """Decode the first instruction of ``code``; a trap if there is none."""
        for _, size, mnemonic, operands in self._quick.disasm_lite(code[:16], address, 1):
            return self._classified(code, address, size, mnemonic, operands)
        return Instruction(Kind.TRAP, 1)

    def linear(self, code: bytes, address: int) -> Iterator[tuple[int, Instruction]]:
        """See :func:`linear`."""
        offset = 0
        while offset < len(code):
            part, start = code[offset:], address + offset
            for at, size, mnemonic, operands in self._quick.disasm_lite(part, start):
                begin = at - address
                yield (
                    at,
                    self._classified(code[begin : begin + size], at, size, mnemonic, operands),
                )
                offset = begin + size
            if offset < len(code):
                yield address + offset, Instruction(Kind.TRAP, 1)
                offset += 1

    def _classified(  # noqa: PLR0911 (one return a kind)
        self, code: bytes, address: int, size: int, mnemonic: str, operands: str
    ) -> Instruction:
        body = code[:size].lstrip(_X86_PREFIXES)
        first = body[0] if body else 0
        if first in (_CALL_NEAR, _JUMP_NEAR, _JUMP_SHORT):
            kind = Kind.CALL if first == _CALL_NEAR else Kind.JUMP
            return Instruction(kind, size, int(operands, 16))
        if first in _RET_OPCODES:
            return Instruction(Kind.RETURN, size)
        if first == _GROUP_5 and body[1] >> 3 & 7 in (2, 4):
            return self._indirect(code, address, size, is_call=body[1] >> 3 & 7 == 2)
        if first == _GROUP_5 and body[1] >> 3 & 7 in (3, 5):  # far: data
            return Instruction(Kind.TRAP, size)
        if mnemonic.startswith(("j", "loop")):
            return Instruction(Kind.BRANCH, size, int(operands, 16))
        if first in _TRAPS or (first == _TWO_BYTES and body[1] in (_UD2, 0xB9, 0xFF)):
            return Instruction(Kind.TRAP, size)
        if first == _TWO_BYTES and body[1] == _SYSCALL:
            return Instruction(Kind.SYSTEM_CALL, size)
        if mnemonic == "nop" or (mnemonic == "xchg" and operands == "ax, ax"):
            return Instruction(Kind.PADDING, size)
        if mnemonic == "movsxd" and operands.endswith("*4]"):
            memory = self._memory(self._detailed_row(code, address), 1, address + size)
            return Instruction(Kind.PLAIN, size, loads_entry=True, entry=memory)
        allocates = mnemonic == "sub" and operands.startswith("rsp, r")
        return Instruction(
            Kind.PLAIN, size, stored=self._stored(mnemonic, operands), allocates=allocates
        )

    def _stored(self, mnemonic: str, operands: str) -> tuple[int, ...]:
        if mnemonic == "push":
            source = operands
        elif mnemonic == "mov" and "[rsp" in operands:
            source = operands.rpartition(", ")[2]
        else:
            return ()
        number = _SAVED.get(source)
        return () if number is None else (number,)

    def _indirect(self, code: bytes, address: int, size: int, *, is_call: bool) -> Instruction:
        row = self._detailed_row(code, address)
        operand = row.operands[0]
        kind = Kind.CALL if is_call else Kind.INDIRECT_JUMP
        if operand.type == self._register_type:
            return Instruction(kind, size, register=self._numbers.get(operand.reg))
        return Instruction(kind, size, memory=self._memory(row, 0, address + size))

    def _detailed_row(self, code: bytes, address: int) -> Any:
        return next(self._whole.disasm(code[:16], address, 1))

    def _memory(self, row: Any, number: int, after: int) -> Memory | None:
        """Return a memory operand; None for one of the thread's segment."""
        memory = row.operands[number].mem
        if memory.segment in self._segments:
            return None
        base = self._numbers.get(memory.base)
        displacement = memory.disp + (after if memory.base == self._rip else 0)
        index = self._numbers.get(memory.index)
        return Memory(base, index, memory.scale, displacement)


_SAVED = {"rbx": 3, "rbp": 6, "r12": 12, "r13": 13, "r14": 14, "r15": 15}


def linear(decode: Decode, code: bytes, address: int) -> Iterator[tuple[int, Instruction]]:
    """Yield the instructions of ``code`` in sequence."""
    if isinstance(decode, X86Decoder):
        yield from decode.linear(code, address)
        return
    offset = 0
    while offset < len(code):
        instruction = decode(code[offset : offset + 4], address + offset)
        yield address + offset, instruction
        offset += instruction.size
