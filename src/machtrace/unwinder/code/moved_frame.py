"""Whether code before a call may move what unwind tables count from, without their knowing.

Compilers' tables say nothing of assembly inside of a function: it may push and call, or make a
frame record of its own. What is looked for here is quick to see; where it is seen the function is
followed, and only that decides.
"""

from __future__ import annotations

from struct import unpack

from machtrace.model.arch import Arch
from machtrace.unwinder.rules import RegisterOffset, UnwindRule

LOOKED_BACK = 128
"""Bytes before a call that are looked at."""

_SETS_FP_MASK, _SETS_FP = 0xFFC003FF, 0x910003FD
"""``add x29, sp, #n``, which is ``mov x29, sp`` where n is 0."""
_LOWERS_SP_MASK, _LOWERS_SP = 0xFF8003FF, 0xD10003FF
"""``sub sp, sp, #n``."""
_PUSH_MASK, _PUSH = 0x3B200FE0, 0x38000FE0
"""``str``, ``strh`` and the like, ``[sp, #-n]!``; loads too."""
_PUSHES_PAIR_MASK, _PUSHES_PAIR = 0x3B8003E0, 0x298003E0
"""``stp [sp, #-n]!``; loads too."""
_X86_RECORDS = (b"\x89\xe5", b"\x8b\xec")
"""``mov ebp, esp``, in two encodings; of 64 bits it has one byte more before it."""


def may_move_frame(code: bytes | memoryview, rule: UnwindRule, arch: Arch) -> bool:
    """Whether ``code``, which leads to a call, may move the register that ``rule`` counts from.

    Of arm64, ``code`` is whole instructions. x86 code that counts from sp is always said to.
    """
    cfa, registers = rule.cfa, arch.registers
    if not isinstance(cfa, RegisterOffset):
        return False
    if cfa.register == registers.fp:
        if arch.is_arm64:
            return any(word & _SETS_FP_MASK == _SETS_FP for word in _words(code))
        return any(record in bytes(code) for record in _X86_RECORDS)
    if cfa.register != registers.sp:
        return False
    return not arch.is_arm64 or any(_moves_sp(word) for word in _words(code))


def _words(code: bytes | memoryview) -> tuple[int, ...]:
    count = len(code) // 4
    return unpack(f"<{count}I", code[: 4 * count])


def _moves_sp(word: int) -> bool:
    return (
        word & _LOWERS_SP_MASK == _LOWERS_SP
        or word & _PUSH_MASK == _PUSH & _PUSH_MASK
        or word & _PUSHES_PAIR_MASK == _PUSHES_PAIR
    )
