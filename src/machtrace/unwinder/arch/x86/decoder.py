"""x86 instructions taken apart once: code repeats itself, but for distances and constants.

The bytes of an instruction that say what it is come first: prefixes, opcode, ModR/M and SIB. They
also say how long it is; what follows are displacements and operands, which mostly do not matter.

x86 instructions, as far as a walk cares for what they do, in 32-bit and 64-bit mode.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A and
the pages of the instructions. Taking them apart is :mod:`machtrace.unwinder.arch.x86.encoding`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.unwinder.arch.x86.encoding import LONGEST, Effects, parse_with_head
from machtrace.unwinder.arch.x86.opcodes import one_byte, three_bytes, two_bytes, vector
from machtrace.unwinder.arch.x86.registers import MODE_64, Mode
from machtrace.unwinder.code.effects import TRAP, Call, Jump


def decode(code: bytes | memoryview, at: int, mode: Mode = MODE_64) -> tuple[int, Effects]:
    """The size of the instruction at ``code[at]``, and what it does.

    Distances of jumps and calls count in bytes from the instruction's start. Where there is no
    instruction, one byte that traps.
    """
    length, effects, _ = decode_with_head(code, at, mode)
    return length, effects


def decode_with_head(code: bytes | memoryview, at: int, mode: Mode) -> tuple[int, Effects, int]:
    """The same, and how many bytes say what it is; 0 where not even those are all there."""
    found, head = parse_with_head(code, at, mode)
    if found is None:
        return 1, (TRAP,), head
    if found.opcode_map == 0:
        effects = one_byte(found)
    elif found.is_vector:
        effects = vector(found)
    elif found.opcode_map == 1:
        effects = two_bytes(found)
    else:
        effects = three_bytes(found)
    return found.length, effects, head


REMEMBERED = 1 << 14
"""Beginnings of instructions, and whole ones, that are remembered; at the limit all are
forgotten."""

_CALL = b"\xe8"
_TRIED = (0x00, 0x01, 0x10, 0x3C, 0x3D, 0x7F, 0x80, 0xFF)
"""What all bytes of displacements and operands are once, to see whether they matter: among them is
the number of Swift's bit, and those small and large, of both signs."""


class _Beginning(NamedTuple):
    """What is known of instructions by the bytes that say what they are."""

    length: int
    effects: Effects | None
    """What all of them do; None where what follows matters."""
    jump: bool | None = None
    """Of direct jumps: whether they are conditional."""
    is_call: bool = False


class Decoder:
    """Takes instructions of one mode apart, and remembers them."""

    __slots__ = ("_beginnings", "_mode", "_whole", "misses")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._beginnings: dict[bytes, _Beginning | None] = {}
        """None where more bytes have to be looked at."""
        self._whole: dict[bytes, Effects] = {}
        self.misses = 0
        """Instructions that had to be taken apart."""

    @property
    def remembered(self) -> int:
        """How much is remembered."""
        return len(self._beginnings) + len(self._whole)

    def decode(self, code: bytes, at: int) -> tuple[int, Effects]:
        """See :func:`~machtrace.unwinder.arch.x86.decoder.decode`."""
        beginnings = self._beginnings
        for end in range(at + 1, min(at + LONGEST, len(code)) + 1):
            key = code[at:end]
            if key not in beginnings:
                break
            found = beginnings[key]
            if found is None:
                continue
            stop = at + found.length
            if stop > len(code):
                break
            if found.effects is not None:
                return found.length, found.effects
            if found.jump is not None or found.is_call:
                distance = int.from_bytes(code[end:stop], "little", signed=True) + found.length
                if found.jump is not None:
                    return found.length, (Jump(distance, is_conditional=found.jump),)
                if distance != found.length:
                    return found.length, (Call(distance),)
                break  # a call of what follows only pushes
            effects = self._whole.get(code[at:stop])
            if effects is not None:
                return found.length, effects
            break
        return self._learn(code, at)

    def _learn(self, code: bytes, at: int) -> tuple[int, Effects]:
        self.misses += 1
        length, effects, head = decode_with_head(code, at, self._mode)
        if not head:
            return length, effects
        if self.remembered > REMEMBERED:
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
        """What is known of all that begins so, by one of them."""
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
