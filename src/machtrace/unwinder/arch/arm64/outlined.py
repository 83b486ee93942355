"""Recognition of code that a compiler outlined.

A call leaves the caller's frame alone, unless the callee is a part of the caller: code that saves
or restores its registers, or makes or removes its frame (LLVM's machine outliner,
``AArch64InstrInfo::buildOutlinedFrame``).
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.unwinder.arch.arm64.registers import ARM64, ENTRY, FP, INSTRUCTION_SIZE, SP
from machtrace.unwinder.code.calling_convention import CallerValue
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.function_analysis import entry_with

_FRAME = frozenset({SP, FP})
_PRESERVED = frozenset({*range(19, 31), *range(72, 80)})
"""DWARF numbers of callee-saved registers and the link register."""


def leaves_frame(instruction: Effect) -> bool:
    """Return whether an instruction moves sp out of the function's and its callers' frames.

    ``longjmp`` does: its call does not change the caller's frame but ends it.
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
    """Return whether straight code makes its own frame, saves registers there, and removes it.

    Then it is an ordinary function, however short, and does not change its caller's frame.
    """
    state = ENTRY
    makes_frame = False
    for instruction in body:
        state = state.after(instruction)
        makes_frame = makes_frame or (state.sp_offset or 0) < 0
    preserved = (*ARM64.callee_saved, ARM64.return_address.register)
    return (
        makes_frame
        and state.sp_offset == 0
        and all(state.value(register) == CallerValue(register) for register in preserved)
    )


def touches_callers_frame(body: Sequence[Effect]) -> bool:
    """Return whether a function with these instructions may change its caller's frame.

    Jumps are ignored: an ordinary function lowers sp, saves registers below its entry value, and
    raises sp again. True if that is not recognised.
    """
    if _loops(body):
        return False  # only straight code is outlined
    offsets = {SP: 0}
    saved: set[int] = set()
    for instruction in body:
        match instruction:
            case AddConstant(register, source, amount) if register in _FRAME:
                if register == FP and FP not in saved:
                    return True
                base = offsets.get(source)
                if base is None:
                    return True
                offsets[register] = base + amount
            case AddRegister(register) | MoveRegister(register) if register in _FRAME:
                return True
            case Store(registers, _, source, offset, write_back) | Load(
                registers, _, source, offset, write_back
            ) if source == SP:
                preserved = _PRESERVED.intersection(r for r in registers if r is not None)
                if preserved and offsets[SP] + offset >= 0:
                    return True
                if isinstance(instruction, Store):
                    saved |= preserved
                offsets[SP] += write_back
            case _:
                pass
    return offsets[SP] != 0


MOST_REMOVED = 1 << 12
"""Bytes of the largest frame of functions with a common end."""


def entry_of_end(body: Sequence[Effect], entry: FrameState) -> FrameState | None:
    """Return the state at the first instruction of an outlined end of functions.

    They jump to it: it restores registers that they saved, raises sp, and returns. None if
    ``body`` is something else.

    Args:
        body: a function's instructions, in order.
        entry: the state at the first instruction of a function.
    """
    sp, restored = 0, dict[int, int]()
    ending = (Return, Call, Jump, IndirectJump, Trap)
    end = next((at for at, one in enumerate(body) if isinstance(one, ending)), len(body))
    if not isinstance(body[end] if end < len(body) else None, Return):
        return None
    for instruction in body[:end]:
        match instruction:
            case AddConstant(destination, source, amount) if destination == source == SP:
                sp += amount
            case Load(registers, size, source, offset, write_back) if source == SP:
                for index, register in enumerate(registers):
                    if register is not None and register in _PRESERVED:
                        restored[register] = sp + offset + index * size
                sp += write_back
            case _:
                pass
    if not 0 < sp <= MOST_REMOVED or sp % ARM64.word:
        return None
    values, slots = list(entry_with(sp, entry).values), dict(entry.slots)
    for register, at in restored.items():
        if register in ARM64.indices:
            values[ARM64.indices[register]] = None
            slots[at - sp] = ARM64.caller_values[register]
    return FrameState(ARM64, tuple(values), slots)
