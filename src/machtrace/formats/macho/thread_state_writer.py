"""The thread command that holds a :class:`~machtrace.model.registers.RegisterSet`.

See :mod:`machtrace.formats.macho.thread_state` for the formats and their sources.
"""

from __future__ import annotations

from struct import Struct

from machtrace.formats.macho.command_numbers import LC_THREAD
from machtrace.formats.macho.thread_state import (
    ARM64_STATE,
    ARM_STATE,
    ARM_THREAD_STATE,
    ARM_THREAD_STATE64,
    I386_EIP,
    I386_ORDER,
    I386_STATE,
    STATE_HEADER,
    X86_64_ORDER,
    X86_64_STATE,
    X86_THREAD_STATE32,
    X86_THREAD_STATE64,
)
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet

_COMMAND_HEADER = Struct("<2I")
_WORD = 4
_ARM64_GENERAL = 32
"""x0 to x28, fp, lr and sp, which is the order of DWARF's numbers, too."""
_ARM_GENERAL = 15


def thread_command(registers: RegisterSet) -> bytes:
    """An ``LC_THREAD`` with the general registers; one that is not known is 0."""
    arch = registers.arch
    if arch.is_arm64:
        return _command(ARM_THREAD_STATE64, ARM64_STATE, _inorder(registers, _ARM64_GENERAL, 64))
    if arch in (Arch.X86_64, Arch.X86_64H):
        values = [registers.get(number) or 0 for number in X86_64_ORDER]
        return _command(X86_THREAD_STATE64, X86_64_STATE, _fitted([*values, registers.pc], 64))
    if arch is Arch.I386:
        values = [registers.get(number) or 0 for number in I386_ORDER]
        values += [0] * (I386_EIP - len(values))
        return _command(X86_THREAD_STATE32, I386_STATE, _fitted([*values, registers.pc], 32))
    return _command(ARM_THREAD_STATE, ARM_STATE, _inorder(registers, _ARM_GENERAL, 32))


def _inorder(registers: RegisterSet, count: int, width: int) -> list[int]:
    values = [registers.get(number) or 0 for number in range(count)]
    return _fitted([*values, registers.pc], width)


def _fitted(values: list[int], width: int) -> list[int]:
    mask = (1 << width) - 1
    return [value & mask for value in values]


def _command(flavour: int, layout: Struct, values: list[int]) -> bytes:
    """``values`` and zeros behind them; what follows pc in a state is not known."""
    fields = len(layout.unpack(bytes(layout.size)))
    state = layout.pack(*values, *(0,) * (fields - len(values)))
    size = _COMMAND_HEADER.size + STATE_HEADER.size + len(state)
    return (
        _COMMAND_HEADER.pack(LC_THREAD, size)
        + STATE_HEADER.pack(flavour, len(state) // _WORD)
        + state
    )
