"""Telling code that a compiler cut out of its callers from functions that keep to themselves.

A call leaves the caller's frame alone, unless what it calls is a piece of the caller: code that
saves or restores registers for it, or makes or takes down its frame (LLVM's machine outliner,
``AArch64InstrInfo::buildOutlinedFrame``).
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.unwinder.arch.arm64.registers import ARM64, ENTRY, FP, INSTRUCTION_SIZE, SP
from machtrace.unwinder.code.calling_convention import CallerValue
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Effect,
    Jump,
    Load,
    MoveRegister,
    Store,
    Writes,
)

_FRAME = frozenset({SP, FP})
_PRESERVED = frozenset({*range(19, 31), *range(72, 80)})
"""DWARF numbers of what a call preserves, and of the link register."""


def leaves_frame(instruction: Effect) -> bool:
    """Whether sp comes to be where no frame of the function or of its callers leads.

    As in ``longjmp``: a call of that does not change the caller's frame but ends it.
    """
    match instruction:
        case AddConstant(register, source) | MoveRegister(register, source):
            return register == SP and source not in _FRAME
        case Load(registers) | Writes(registers):
            return SP in registers
        case _:
            return False


def _loops(body: Sequence[Effect]) -> bool:
    return any(
        isinstance(instruction, Jump) and at * INSTRUCTION_SIZE >= -instruction.distance > 0
        for at, instruction in enumerate(body)
    )


def keeps_own_frame(body: Sequence[Effect]) -> bool:
    """Whether straight code saves registers in a frame that it makes, and leaves as it came.

    Then it is a function like others, however short, and its caller's frame no concern of it.
    """
    state = ENTRY
    makes_frame = False
    for instruction in body:
        state = state.after(instruction)
        makes_frame = makes_frame or (state.sp_offset or 0) < 0
    kept = (*ARM64.callee_saved, ARM64.return_address.register)
    return (
        makes_frame
        and state.sp_offset == 0
        and all(state.value(register) == CallerValue(register) for register in kept)
    )


def touches_callers_frame(body: Sequence[Effect]) -> bool:
    """Whether a function, all of whose instructions are given, may change its caller's frame.

    Read in one line, without regard to jumps: a function that keeps to itself lowers sp, saves
    what it must below where sp was, and raises sp again. True where that is not to be seen.
    """
    if _loops(body):
        return False  # only straight code is cut out
    places = {SP: 0}
    saved: set[int] = set()
    for instruction in body:
        match instruction:
            case AddConstant(register, source, amount) if register in _FRAME:
                if register == FP and FP not in saved:
                    return True
                base = places.get(source)
                if base is None:
                    return True
                places[register] = base + amount
            case AddRegister(register) | MoveRegister(register) if register in _FRAME:
                return True
            case Store(registers, _, source, offset, write_back) | Load(
                registers, _, source, offset, write_back
            ) if source == SP:
                kept = _PRESERVED.intersection(r for r in registers if r is not None)
                if kept and places[SP] + offset >= 0:
                    return True
                if isinstance(instruction, Store):
                    saved |= kept
                places[SP] += write_back
            case _:
                pass
    return places[SP] != 0
