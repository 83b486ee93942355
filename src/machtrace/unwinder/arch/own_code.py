"""The end of a function whose size nothing states, by its instructions.

Assembly code often has symbols without sizes. In a file without local symbols other functions may
follow, so that such a symbol names only the code that is provably its own: what runs on from its
start, up to an instruction after which nothing runs on.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.unwinder.code.effects import (
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    SetConstant,
    Trap,
)

LARGEST = 1 << 14
"""Bytes of the largest function that is followed."""
MOST_INSTRUCTIONS = 1 << 15
"""Instructions of one image that are decoded; files state any number of symbols."""

Decoder = Callable[[bytes, int], tuple[int, tuple[Effect, ...]]]
"""Returns length and effects of the instruction at an offset."""
_MOVES_TO_RAX = ((b"\xb8", 4), (b"\x48\xc7\xc0", 4), (b"\xb0", 1))
"""Encodings of ``mov $number,%eax``, ``%rax`` and ``%al``, and the bytes of the number."""
_X86_SYSCALL = b"\x0f\x05"
_X86_LEAVING = frozenset({15, 60, 231})
"""``rt_sigreturn``, ``exit`` and ``exit_group`` of x86-64."""
_ARM64_SVC = b"\x01\x00\x00\xd4"
_ARM64_NUMBER = 8
_ARM64_LEAVING = frozenset({93, 94, 139})
"""``exit``, ``exit_group`` and ``rt_sigreturn`` of AArch64."""


class OwnCode:
    """Ends of functions of one image; each that is computed spends of the same limit."""

    def __init__(self, contents: ImageContents, arch: Arch | None) -> None:
        self._contents = contents
        self._arch = arch
        self._decode = decoder(arch)
        self._left = MOST_INSTRUCTIONS

    def end(self, start: Svma, limit: Svma) -> Svma:
        """Return where the code that runs on from ``start`` ends, at most ``limit``.

        Code runs on after an instruction that does not return or jump, and where a conditional jump
        before leads to. It does not after a call, unless a conditional jump passes it: the call may
        be of a function that never returns. Of an architecture without a decoder, and of code that
        cannot be read, the result is the start alone: its first byte.
        """
        size = min(limit - start, LARGEST)
        try:
            code = bytes(self._contents.read_svma(start, size))
        except MemoryReadError:
            code = b""
        return Svma(start + min(max(self._size(code), 1), limit - start))

    def _size(self, code: bytes) -> int:
        at = furthest = 0
        targets: set[int] = set()
        number: int | None = None
        while self._decode is not None and at < len(code) and self._left > 0:
            self._left -= 1
            length, effects = self._decode(code, at)
            start, at = at, at + length
            if at > len(code):
                return start
            forward = [
                start + effect.distance
                for effect in effects
                if isinstance(effect, Jump) and effect.is_conditional
            ]
            targets.update(forward)
            furthest = max(furthest, *forward, 0)
            ends, number = self._ends_program(code[start:at], effects, number)
            ends |= furthest <= at and any(isinstance(effect, Call) for effect in effects)
            if (ends or any(map(_leaves, effects))) and at not in targets:
                break
        return at

    def _ends_program(
        self, instruction: bytes, effects: tuple[Effect, ...], number: int | None
    ) -> tuple[bool, int | None]:
        """Return whether a system call does not return, and the next one's number if known."""
        if self._arch is Arch.X86_64:
            ends = instruction == _X86_SYSCALL and number in _X86_LEAVING
            return ends, _moved_to_rax(instruction)
        effect = effects[0]
        if isinstance(effect, SetConstant) and effect.destination == _ARM64_NUMBER:
            return False, effect.value
        return instruction == _ARM64_SVC and number in _ARM64_LEAVING, number


def _leaves(effect: Effect) -> bool:
    if isinstance(effect, Jump):
        return not effect.is_conditional
    return isinstance(effect, IndirectJump | Return | Trap)


def _moved_to_rax(instruction: bytes) -> int | None:
    for head, size in _MOVES_TO_RAX:
        if instruction.startswith(head) and len(instruction) == len(head) + size:
            return int.from_bytes(instruction[len(head) :], "little")
    return None


def decoder(arch: Arch | None) -> Decoder | None:
    """Return the decoder of AArch64 or x86 instructions; None of others."""
    if arch in (Arch.X86_64, Arch.X86_64H, Arch.I386):
        from machtrace.unwinder.arch.x86.decoder import decode as decode_x86
        from machtrace.unwinder.arch.x86.registers import MODE_32, MODE_64

        mode = MODE_32 if arch is Arch.I386 else MODE_64
        return lambda code, at: decode_x86(code, at, mode)
    if arch is not None and arch.is_arm64:
        from machtrace.unwinder.arch.arm64.decoder import decode as decode_arm64

        def decode_word(code: bytes, at: int) -> tuple[int, tuple[Effect, ...]]:
            return 4, (decode_arm64(int.from_bytes(code[at : at + 4], "little")),)

        return decode_word
    return None
