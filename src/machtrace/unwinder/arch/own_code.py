"""The end of a function whose size nothing states, by its instructions.

Assembly code often has symbols without sizes. Functions whose symbols were stripped may follow, in
the whole file or in a library that was linked into it. So such a symbol names only the code that is
its own: what runs on from its start, up to an instruction after which nothing runs on.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    SetConstant,
    Trap,
)

MAX_BYTES = 1 << 14
"""Bytes of the largest function that is followed."""
MAX_INSTRUCTIONS = 1 << 13
"""Instructions of one image that are decoded, a tenth of a second; files state any number of
symbols. In musl's library there are 400."""

_MAX_PADDING = 64
"""Bytes between parts of one function."""

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

    def __init__(
        self, contents: ImageContents, arch: Arch | None, *, is_stripped: bool = True
    ) -> None:
        """Decode nothing yet.

        Args:
            contents: the image.
            arch: its architecture.
            is_stripped: whether it has no local symbols, so that other functions follow often.
        """
        self._is_stripped = is_stripped
        self._contents = contents
        self._arch = arch
        self._decode = decoder(arch)
        self._left = MAX_INSTRUCTIONS

    def end(self, start: Svma, limit: Svma) -> Svma:
        """Return where the code that runs on from ``start`` ends, at most ``limit``.

        Code runs on after an instruction that does not return or jump, and where a conditional jump
        before leads to. In a stripped image it does not after a call, unless a conditional jump
        passes it: the call may be of a function that never returns. Nor does it after padding,
        since functions are aligned.

        If that cannot be decoded (another architecture, no bytes, too much code), the result is
        ``limit``, in a stripped image the end of the first byte.
        """
        size = min(limit - start, MAX_BYTES)
        try:
            code = bytes(self._contents.read_svma(start, size))
        except MemoryReadError:
            code = b""
        own = self._size(code)
        if own is None:
            return Svma(start + 1) if self._is_stripped else limit
        return Svma(start + min(max(own, 1), limit - start))

    def _size(self, code: bytes) -> int | None:
        at = furthest = 0
        targets: set[int] = set()
        number: int | None = None
        if self._decode is None or not code:
            return None
        while at < len(code):
            self._left -= 1
            if self._left < 0:
                return None
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
            if self._is_stripped and furthest <= at:
                ends |= any(isinstance(effect, Call) for effect in effects)
            if (ends or any(map(_leaves, effects))) and at not in targets:
                following = None if self._is_stripped else self._after_padding(code, at, targets)
                if following is None:
                    return at
                at = following
        return at

    def _after_padding(self, code: bytes, at: int, targets: set[int]) -> int | None:
        """Return the next of ``targets`` if only instructions without effect are before it."""
        following = min((target for target in targets if target > at), default=None)
        if self._decode is None or following is None or following - at > _MAX_PADDING:
            return None
        while at < following <= len(code):
            length, effects = self._decode(code, at)
            if effects not in ((NOTHING,), (TRAP,)):
                return None
            at += length
        return following if at == following else None

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
