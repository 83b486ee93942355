"""A decoder of x86 instructions in 32-bit and 64-bit mode that caches by the first bytes.

The bytes that identify an instruction come first: prefixes, opcode, ModR/M and SIB. They also
determine its length. Displacements and operands follow, and mostly do not matter to a walk: so most
instructions are decoded once.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A and the
pages of the instructions. :mod:`machtrace.unwinder.arch.x86.encoding` parses them.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.unwinder.arch.x86.encoding import LONGEST, Effects, parse_with_head
from machtrace.unwinder.arch.x86.opcodes import one_byte, three_bytes, two_bytes, vector
from machtrace.unwinder.arch.x86.registers import MODE_64, Mode
from machtrace.unwinder.code.effects import TRAP, Call, Jump


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
        for end in range(at + 1, min(at + LONGEST, len(code)) + 1):
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
