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
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule, link_register_rule
from machtrace.unwinder.step import NULL_PAGE, THUMB_BIT

_X86_LONGEST_CALL = 7
_X86_CALL = 0xE8
_X86_CALL_SIZE = 5
_X86_INDIRECT = 0xFF
_X86_INDIRECT_SIZES = (2, 3, 4, 6, 7)
_X86_INDIRECT_CALL = 2
"""Of the ModRM byte's middle bits: ``FF /2`` is a call."""
_ARM64_BL = 0b100101
"""The top six bits."""
_ARM64_INDIRECT = {0xD63F0000: 0xFFFFFC1F, 0xD63F0800: 0xFFFFF800, 0xD73F0800: 0xFFFFF800}
"""BLR; BLRAAZ and BLRABZ; BLRAA and BLRAB: bits, and which of them count."""

_ARM_BLX, _ARM_BLX_COUNTS = 0x012FFF30, 0x0FFFFFF0
_THUMB_BLX, _THUMB_BLX_COUNTS = 0x4780, 0xFF87
"""BLX (register): bits, and which of them count."""


def entry_rule(arch: Arch) -> UnwindRule:
    """What holds before the first instruction of a function."""
    if arch.has_link_register:
        return link_register_rule(arch)
    word = arch.pointer_size
    return UnwindRule(RegisterOffset(arch.registers.sp, word), AtCfa(-word))


def _called_bad_pointer(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> FrameTrust | None:
    """How sure it is that ``registers``, of code that nothing is known of, are at a call's target.

    At a null pointer they are. Elsewhere the code may be what a program generated while it ran, or
    a function without tables; so what should be the return address must follow a call that leads
    here, or may: a call through a register, which makes the caller the link register's word, or
    the stack's. None where it does not. Raises nothing.
    """
    if registers.pc < NULL_PAGE:
        return FrameTrust.PROLOGUE
    try:
        return_address = _return_address(registers, memory, mask)
        if return_address is None:
            return None
        if registers.arch.is_arm64:
            return _behind_arm64_call(return_address, registers.pc, memory)
        if registers.arch.is_arm:
            return _behind_arm_call(return_address, memory)
        return _behind_x86_call(return_address, registers.pc, memory)
    except MemoryReadError:
        return None


def is_arm64_call(word: int) -> bool:
    """Whether an instruction is BL or one of BLR's kinds."""
    return word >> 26 == _ARM64_BL or any(
        word & counts == bits for bits, counts in _ARM64_INDIRECT.items()
    )


def _return_address(registers: RegisterSet, memory: MemoryReader, mask: PacMask) -> int | None:
    if registers.arch.has_link_register:
        return None if registers.lr is None else mask.strip(registers.lr)
    if registers.sp is None:
        return None
    word = memory.read(Avma(registers.sp), registers.arch.pointer_size)
    return int.from_bytes(word, "little")


def _behind_arm64_call(address: int, target: int, memory: MemoryReader) -> FrameTrust | None:
    word = int.from_bytes(memory.read(Avma(address - 4), 4), "little")
    if word >> 26 == _ARM64_BL:
        distance = (word & 0x03FFFFFF) << 2
        distance -= (distance & 1 << 27) << 1
        return FrameTrust.PROLOGUE if address - 4 + distance == target else None
    return FrameTrust.LINK_REGISTER if is_arm64_call(word) else None


def _behind_arm_call(address: int, memory: MemoryReader) -> FrameTrust | None:
    """By the return address, which says of which instruction set the call is."""
    at = address & ~THUMB_BIT
    if address & THUMB_BIT:
        halfword = int.from_bytes(memory.read(Avma(at - 2), 2), "little")
        is_indirect = halfword & _THUMB_BLX_COUNTS == _THUMB_BLX
    else:
        word = int.from_bytes(memory.read(Avma(at - 4), 4), "little")
        is_indirect = word & _ARM_BLX_COUNTS == _ARM_BLX
    return FrameTrust.LINK_REGISTER if is_indirect else None


def _behind_x86_call(address: int, target: int, memory: MemoryReader) -> FrameTrust | None:
    before = bytes(memory.read(Avma(address - _X86_LONGEST_CALL), _X86_LONGEST_CALL))
    if before[-_X86_CALL_SIZE] == _X86_CALL:
        distance = int.from_bytes(before[-4:], "little", signed=True)
        if address + distance == target:
            return FrameTrust.PROLOGUE
    is_indirect = any(
        before[-size] == _X86_INDIRECT and before[1 - size] >> 3 & 7 == _X86_INDIRECT_CALL
        for size in _X86_INDIRECT_SIZES
    )
    return FrameTrust.SCAN if is_indirect else None
