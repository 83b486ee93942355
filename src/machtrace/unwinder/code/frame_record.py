"""Whether a function plainly begins by making a frame record, as most functions do.

Behind that, and until it takes the record away and returns or jumps on, the frame pointer leads to
the caller: the quickest thing to see that bears out what tables say of its calls.
"""

from __future__ import annotations

from struct import unpack

from machtrace.model.arch import Arch
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule

LOOKED_AT = 64
"""Bytes of a function's start: seven pairs of registers and signing come before the record."""

_PAIR_MASK = 0xFFC07FFF
_PAIR_AT, _PAIR_BELOW = 0xA9007BFD, 0xA9807BFD
"""``stp x29, x30, [sp, #n]``; ``stp x29, x30, [sp, #-n]!``, which leads sp to the pair."""
_SUB_MASK, _SUB = 0xFF8003FF, 0xD10003FF
"""``sub sp, sp, #n``."""
_ADD_MASK, _ADD = 0xFFC003FF, 0x910003FD
"""``add x29, sp, #n``, which is ``mov x29, sp`` where n is 0."""
_BRANCH_MASK, _BRANCH = 0x1C000000, 0x14000000
"""Branches, calls and returns; also what traps, and system instructions."""
_HINT_MASK, _HINT = 0xFFFFF01F, 0xD503201F
"""Those of them that functions begin with: signing, landing pads."""
_X86_RECORD = {
    Arch.X86_64: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.X86_64H: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.I386: (b"\x55\x89\xe5", b"\x55\x8b\xec"),
}
"""``push rbp`` and ``mov rbp, rsp``, which has two encodings; the same of 32 bits."""


def follows_record(rule: UnwindRule, arch: Arch) -> bool:
    """Whether ``rule`` is that of a frame record, whatever else it restores."""
    cfa, word, fp = rule.cfa, arch.saved_register_size, arch.registers.fp
    return (
        isinstance(cfa, RegisterOffset)
        and (cfa.register, cfa.offset) == (fp, 2 * word)
        and rule.return_address == AtCfa(-word)
        and (fp, AtCfa(-2 * word)) in rule.registers
    )


def record_made(code: bytes | memoryview, arch: Arch) -> int | None:
    """How many bytes of a function are behind it when it has made its record.

    ``code`` is its beginning, at most :data:`LOOKED_AT` bytes of it. None where no record is seen
    to be made, which does not mean that there is none.
    """
    if arch.is_arm64:
        return _made_on_arm64(code)
    beginning = bytes(code[:4])
    for record in _X86_RECORD.get(arch, ()):
        if beginning.startswith(record):
            return len(record)
    return None


def _made_on_arm64(code: bytes | memoryview) -> int | None:
    count = len(code) // 4
    place: int | None = None
    """From sp to the pair."""
    for index, word in enumerate(unpack(f"<{count}I", code[: 4 * count])):
        if word & _BRANCH_MASK == _BRANCH and word & _HINT_MASK != _HINT:
            return None
        pair = word & _PAIR_MASK
        if pair == _PAIR_AT:
            place = (word >> 15 & 0x7F) * 8
        elif pair == _PAIR_BELOW:
            place = 0
        elif word & _SUB_MASK == _SUB:
            place = None
        elif word & _ADD_MASK == _ADD:
            return 4 * index + 4 if place == word >> 10 & 0xFFF else None
    return None
