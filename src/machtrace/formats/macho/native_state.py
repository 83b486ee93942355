"""Registers as ``thread_get_state`` gives them: the states that cores hold in thread commands."""

from __future__ import annotations

from dataclasses import replace

from machtrace.formats.macho.thread_state import (
    ARM_THREAD_STATE64,
    STATE_HEADER,
    X86_THREAD_STATE64,
    parse_thread_state,
)
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet

_BLANK_COMMAND_HEADER = bytes(8)


def read_native_state(data: bytes, arch: Arch, mask: PacMask, source: str) -> RegisterSet:
    """The registers in ``data``: ``arm_thread_state64_t`` or ``x86_thread_state64_t``.

    Args:
        data: of a size that is a multiple of four.
        arch: of the process.
        mask: takes signatures off pc and sp: a caller whose own pointers are signed gets them so.
        source: what to call it in errors.

    Raises:
        CoreFileError: they are cut short.
    """
    flavour = ARM_THREAD_STATE64 if arch.is_arm64 else X86_THREAD_STATE64
    command = _BLANK_COMMAND_HEADER + STATE_HEADER.pack(flavour, len(data) // 4) + data
    found = parse_thread_state(memoryview(command), arch, mask=mask, source=source).registers
    sp = found.sp
    if not arch.is_arm64 or sp is None or mask.strip(sp) == sp:
        return found
    place = arch.registers.sp
    values = (*found.values[:place], mask.strip(sp), *found.values[place + 1 :])
    return replace(found, values=values)
