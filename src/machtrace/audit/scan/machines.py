"""Instructions as the steps that matter to the values of arguments, for arm64 and x86-64.

Sources: *Arm Architecture Reference Manual*, C6.2 (ADR, ADRP, LDR literal, BLR, BR); *Intel 64 and
IA-32 Architectures Software Developer's Manual*, volume 2 (CALL, JMP, LEA, MOV); for the
registers of arguments, *Procedure Call Standard for the Arm 64-bit Architecture* and *System V
Application Binary Interface, AMD64 Architecture Processor Supplement*.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from machtrace.unwinder.arch.arm64.decoder import decode as decode_arm64
from machtrace.unwinder.arch.arm64.registers import signed
from machtrace.unwinder.arch.x86.decoder import Decoder
from machtrace.unwinder.arch.x86.registers import MODE_64
from machtrace.unwinder.code.effects import (
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    SetConstant,
    Trap,
)


class TakeAddress(NamedTuple):
    """A register gets a stated address."""

    register: int
    address: int


class ReadAddress(NamedTuple):
    """A register gets the word at a stated address."""

    register: int
    address: int


class Branch(NamedTuple):
    """A call, or an unconditional jump."""

    is_call: bool
    target: int | None = None
    """The address; None if it is in a register or in memory."""
    register: int | None = None
    slot: int | None = None
    """The address of the word that holds the target."""


class MayJump(NamedTuple):
    """A conditional jump."""

    target: int


class End(NamedTuple):
    """A return, or a trap: what follows is reached from elsewhere."""


Step: TypeAlias = TakeAddress | ReadAddress | Branch | MayJump | End | Effect


class Machine(Protocol):
    """One architecture. Registers are DWARF numbers."""

    arguments: ClassVar[tuple[int, ...]]
    result: ClassVar[int]
    saved: ClassVar[frozenset[int]]
    """The registers that a callee preserves."""
    stack: ClassVar[frozenset[int]]
    """The registers that locate variables of a frame."""
    stack_pointer: ClassVar[int]

    def step(self, code: bytes, at: int, address: int) -> tuple[int, tuple[Step, ...]]:
        """Return the size of the instruction at ``code[at]`` and what it does."""


_ADR, _ADR_MASK = 0x10000000, 0x1F000000
"""ADR, and ADRP with the highest bit."""
_LITERAL, _LITERAL_MASK = 0x58000000, 0xFF000000
"""LDR (literal) of 64 bits."""


class Arm64:
    """arm64 and arm64e."""

    arguments: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    result: ClassVar[int] = 0
    saved: ClassVar[frozenset[int]] = frozenset({*range(19, 30), 31})
    stack: ClassVar[frozenset[int]] = frozenset({29, 31})
    stack_pointer: ClassVar[int] = 31

    def step(self, code: bytes, at: int, address: int) -> tuple[int, tuple[Step, ...]]:
        """See :meth:`Machine.step`."""
        word = int.from_bytes(code[at : at + 4], "little")
        register = word & 31
        if word & _ADR_MASK == _ADR:
            distance = signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
            if word >> 31:
                return 4, (TakeAddress(register, ((address >> 12) + distance) << 12),)
            return 4, (TakeAddress(register, address + distance),)
        if word & _LITERAL_MASK == _LITERAL:
            return 4, (ReadAddress(register, address + signed(word >> 5, 19) * 4),)
        effect = decode_arm64(word)
        if isinstance(effect, Call) and effect.distance is not None:
            return 4, (Branch(is_call=True, target=address + effect.distance),)
        if isinstance(effect, Call | IndirectJump):
            is_call = isinstance(effect, Call)
            return 4, (Branch(is_call=is_call, register=word >> 5 & 31),)
        return 4, (_jump(effect, address),)


def _jump(effect: Effect, address: int) -> Step:
    if isinstance(effect, Jump):
        target = address + effect.distance
        return MayJump(target) if effect.is_conditional else Branch(is_call=False, target=target)
    return End() if isinstance(effect, Return | Trap) else effect


_NUMBERS = MODE_64.by_encoding
_MOV, _LEA, _GROUP_5 = 0x8B, 0x8D, 0xFF
_MOV_NUMBER, _MOV_NUMBER_MASK = 0xB8, 0xF8
"""MOV of 32 bits to a register."""
_RELATIVE, _RELATIVE_MASK = 0x05, 0xC7
"""ModR/M of an operand relative to rip."""
_CALL_OPERAND, _JUMP_OPERAND = 2, 4
_REX, _REX_MASK, _REX_W, _REX_R, _REX_B = 0x40, 0xF0, 8, 4, 1


class X86:
    """x86-64."""

    arguments: ClassVar[tuple[int, ...]] = (5, 4, 1, 2)
    result: ClassVar[int] = 0
    saved: ClassVar[frozenset[int]] = frozenset({3, 6, 7, 12, 13, 14, 15})
    stack: ClassVar[frozenset[int]] = frozenset({6, 7})
    stack_pointer: ClassVar[int] = 7

    def __init__(self) -> None:
        self._decoder = Decoder(MODE_64)

    def step(self, code: bytes, at: int, address: int) -> tuple[int, tuple[Step, ...]]:
        """See :meth:`Machine.step`."""
        own = self._relative(code, at, address)
        if own is not None:
            return own
        size, effects = self._decoder.decode(code, at)
        steps: list[Step] = []
        for effect in effects:
            if isinstance(effect, Call):
                target = None if effect.distance is None else address + effect.distance
                register = self._register(code, at) if target is None else None
                steps.append(Branch(is_call=True, target=target, register=register))
            elif isinstance(effect, IndirectJump):
                register = None if effect.base is not None else effect.register
                steps.append(Branch(is_call=False, register=register))
            else:
                steps.append(_jump(effect, address))
        return size, tuple(steps)

    def _relative(self, code: bytes, at: int, address: int) -> tuple[int, tuple[Step, ...]] | None:
        """Return MOV of a number; MOV, LEA, CALL or JMP with an operand relative to rip."""
        rex, start = 0, at
        if code[at] & _REX_MASK == _REX:
            rex, at = code[at], at + 1
        if code[at : at + 1] and code[at] & _MOV_NUMBER_MASK == _MOV_NUMBER and not rex & _REX_W:
            register = _NUMBERS[code[at] & 7 | (8 if rex & _REX_B else 0)]
            number = int.from_bytes(code[at + 1 : at + 5], "little")
            return at + 5 - start, (SetConstant(register, number),)
        if at + 6 > len(code) or code[at + 1] & _RELATIVE_MASK != _RELATIVE:
            return None
        opcode, number = code[at], code[at + 1] >> 3 & 7
        size = at + 6 - start
        operand = address + size + int.from_bytes(code[at + 2 : at + 6], "little", signed=True)
        if opcode in (_MOV, _LEA) and rex & _REX_W:
            register = _NUMBERS[number | (8 if rex & _REX_R else 0)]
            kind = ReadAddress if opcode == _MOV else TakeAddress
            return size, (kind(register, operand),)
        if opcode == _GROUP_5 and number in (_CALL_OPERAND, _JUMP_OPERAND):
            return size, (Branch(is_call=number == _CALL_OPERAND, slot=operand),)
        return None

    def _register(self, code: bytes, at: int) -> int | None:
        """Return the register of ``call *register``."""
        rex = 0
        if code[at] & _REX_MASK == _REX:
            rex, at = code[at], at + 1
        modrm = code[at + 1] if at + 1 < len(code) else 0
        if code[at] != _GROUP_5 or modrm >> 6 != 3:  # noqa: PLR2004 - a register operand
            return None
        return _NUMBERS[(modrm & 7) | (8 if rex & _REX_B else 0)]
