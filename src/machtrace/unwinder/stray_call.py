"""Calls to where no code is: through a null or an overwritten function pointer.

The processor has called, and nothing of what was called ran. So there is no frame to look for: the
return address is where the call left it, in the link register or on top of the stack.
"""

from __future__ import annotations

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule, link_register_rule
from machtrace.unwinder.step import NULL_PAGE

_X86_LONGEST_CALL = 7
_X86_CALL = 0xE8
_X86_CALL_SIZE = 5
_X86_INDIRECT = 0xFF
_X86_INDIRECT_SIZES = (2, 3, 4, 6, 7)
_X86_INDIRECT_CALL = 2
"""Of the ModRM byte's middle bits: ``FF /2`` is a call."""
_ARM64_INDIRECT = {0xD63F0000: 0xFFFFFC1F, 0xD63F0800: 0xFFFFF800, 0xD73F0800: 0xFFFFF800}
"""BLR; BLRAAZ and BLRABZ; BLRAA and BLRAB: bits, and which of them count."""


def entry_rule(arch: Arch) -> UnwindRule:
    """What holds before the first instruction of a function."""
    if arch.has_link_register:
        return link_register_rule(arch)
    word = arch.pointer_size
    return UnwindRule(RegisterOffset(arch.registers.sp, word), AtCfa(-word))


def is_stray_call(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> bool:
    """Whether ``registers``, whose pc is in no image, are those of a function just called.

    That is so at a null pointer. Elsewhere it may be code that a program generated while it ran;
    so what should be the return address must follow a call that leads here, or may.
    """
    if registers.pc < NULL_PAGE:
        return True
    try:
        return_address = _return_address(registers, memory, mask)
        if return_address is None:
            return False
        if registers.arch.is_arm64:
            return _follows_arm64_call(return_address, registers.pc, memory)
        if registers.arch.has_link_register:
            return False
        return _follows_x86_call(return_address, registers.pc, memory)
    except MemoryReadError:
        return False


def _return_address(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> int | None:
    if registers.arch.has_link_register:
        return None if registers.lr is None else mask.strip(registers.lr)
    if registers.sp is None:
        return None
    word = memory.read(Avma(registers.sp), registers.arch.pointer_size)
    return int.from_bytes(word, "little")


def _follows_arm64_call(address: int, target: int, memory: MemoryReader) -> bool:
    word = int.from_bytes(memory.read(Avma(address - 4), 4), "little")
    if word >> 26 == 0b100101:  # noqa: PLR2004 - BL
        distance = (word & 0x03FFFFFF) << 2
        distance -= (distance & 1 << 27) << 1
        return address - 4 + distance == target
    return any(word & counts == bits for bits, counts in _ARM64_INDIRECT.items())


def _follows_x86_call(address: int, target: int, memory: MemoryReader) -> bool:
    before = bytes(memory.read(Avma(address - _X86_LONGEST_CALL), _X86_LONGEST_CALL))
    if before[-_X86_CALL_SIZE] == _X86_CALL:
        distance = int.from_bytes(before[-4:], "little", signed=True)
        if address + distance == target:
            return True
    return any(
        before[-size] == _X86_INDIRECT and before[1 - size] >> 3 & 7 == _X86_INDIRECT_CALL
        for size in _X86_INDIRECT_SIZES
    )
