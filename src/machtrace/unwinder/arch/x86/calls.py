"""How many bytes of arguments unknown functions of 32-bit x86 take off the stack.

A function that returns a structure takes the hidden argument with it, and ``stdcall`` takes all.
Of a call through a pointer, or into another image, the instructions behind it tell: at each call
sp is a multiple of 16 (*OS X ABI Function Call Guide*, "IA-32 Function Calling Conventions"), and
at a return it is where it was at the entry.

Stack probes of x86 code: the one kind of call that keeps rax.

Where a frame is larger than a page, compilers put its size into eax, call what touches each page of
it (``___chkstk_darwin``), and take rax from the stack pointer at once. Any other call leaves its
result there; but nobody takes a result from sp untouched, since sp has to stay aligned.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableSequence
from dataclasses import dataclass

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import (
    NOTHING,
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)

LOOK_AHEAD = 256
"""Instructions that are looked at behind one call."""
LOOK_AT_MOST = 1 << 14
"""Instructions that are looked at, all in all; what calls behind them pop stays unknown."""
MOST_POPPED = 256
"""Bytes of arguments at most."""
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class _Stack:
    """Distances from the CFA; None where not known."""

    sp: int | None
    fp: int | None


def infer_pops(
    code: MutableSequence[Effect],
    calls: Container[int],
    machine: Machine,
    *,
    limit: int = LOOK_AT_MOST,
) -> int:
    """Find out what unknown functions pop, and put it into ``code`` behind the calls of them.

    Args:
        code: a function's instructions; distances of jumps count places in it. Behind each call
            is a place for what it pops.
        calls: where unknown functions are called.
        machine: of the architecture.
        limit: instructions that are looked at at most, and never more than :data:`LOOK_AT_MOST`.

    Returns:
        How many were looked at.
    """
    inference = _Inference(code, calls, machine, min(limit, LOOK_AT_MOST))
    inference.run()
    return min(limit, LOOK_AT_MOST) - inference.left


class _Inference:
    """One look at every instruction that can be reached, and some more behind unknown calls."""

    def __init__(
        self,
        code: MutableSequence[Effect],
        calls: Container[int],
        machine: Machine,
        limit: int,
    ) -> None:
        self._code = code
        self._calls = calls
        self._machine = machine
        self._seen = bytearray(len(code))
        self.left = limit

    def run(self) -> None:
        """Follow the function from its entry, then from what no direct jump leads to."""
        inside = _Stack(self._machine.entry_sp, None)
        self._follow(0, inside)
        for start in range(len(self._code)):
            if not self._seen[start] and self.left > 0:
                # Which frame a case of a switch has is not asked: that calls are aligned is enough.
                self._follow(start, _Stack(None, None))

    def _follow(self, index: int, stack: _Stack) -> None:
        paths = [(index, stack)]
        while paths and self.left > 0:
            self.left -= 1
            index, stack = paths.pop()
            if self._seen[index]:
                continue
            self._seen[index] = 1
            if index in self._calls and index + 1 < len(self._code):
                popped = self._popped(index, stack)
                if popped:
                    sp = self._machine.sp
                    self._code[index + 1] = AddConstant(sp, sp, popped)
            paths += self._onwards(index, stack)

    def _popped(self, call: int, stack: _Stack) -> int:
        """Bytes that the function called there pops, as far as what follows tells."""
        sp = stack.sp
        if sp is None:
            stack = _Stack(0, stack.fp)
        is_aligned = sp is None or sp % _ALIGNMENT == 0
        at_call, at_return = self._evidence(call, stack, is_aligned=is_aligned)
        if sp is None or (
            at_return is not None and at_call is not None and (at_return - at_call) % _ALIGNMENT
        ):
            at_return = None  # it is another frame's
        found = at_call if at_return is None else at_return
        return found or 0

    def _evidence(
        self, call: int, stack: _Stack, *, is_aligned: bool
    ) -> tuple[int | None, int | None]:
        """What must have been popped for the next call to be aligned, and for the return."""
        at_call: int | None = None
        paths = list(self._onwards(call, stack))
        seen = {call}
        for _ in range(min(LOOK_AHEAD, self.left)):
            if not paths:
                break
            self.left -= 1
            index, stack = paths.pop()
            if index in seen or stack.sp is None:
                continue
            seen.add(index)
            instruction = self._code[index]
            if isinstance(instruction, Call):
                if is_aligned and at_call is None:
                    at_call = -stack.sp % _ALIGNMENT
                if index in self._calls:
                    continue  # what this one pops is not known either
            elif self._leaves(index, instruction):
                popped = self._machine.entry_sp - stack.sp
                if 0 <= popped <= MOST_POPPED and popped % self._machine.word == 0:
                    return at_call, popped
            paths += self._onwards(index, stack)
        return at_call, None

    def _leaves(self, index: int, instruction: Effect) -> bool:
        if isinstance(instruction, Return):
            return True
        if not isinstance(instruction, Jump):
            return False
        return not 0 <= index + instruction.distance < len(self._code)

    def _onwards(self, index: int, stack: _Stack) -> Iterator[tuple[int, _Stack]]:
        """Where an instruction goes on, and with which stack; the likeliest last."""
        instruction = self._code[index]
        if isinstance(instruction, Return | Trap | IndirectJump):
            return
        target = -1
        if isinstance(instruction, Jump):
            target = index + instruction.distance
            if 0 <= target < len(self._code):
                yield target, stack
            if not instruction.is_conditional:
                return
        if index + 1 < len(self._code):
            yield index + 1, self._after(instruction, stack)

    def _after(self, instruction: Effect, stack: _Stack) -> _Stack:
        machine = self._machine
        sp, fp = stack.sp, stack.fp
        match instruction:
            case Store(_, _, base, _, added) if base == machine.sp and added:
                return _Stack(_sum(sp, added), fp)
            case Load(registers, _, base, _, added):
                fp = None if machine.fp in registers else fp
                sp = None if machine.sp in registers else sp
                return _Stack(_sum(sp, added) if base == machine.sp else sp, fp)
            case AddConstant(destination, source, amount):
                return self._assigned(stack, destination, source, amount)
            case MoveRegister(destination, source):
                return self._assigned(stack, destination, source, 0)
            case Writes(registers):
                sp = None if machine.sp in registers else sp
                return _Stack(sp, None if machine.fp in registers else fp)
            case _:
                return stack

    def _assigned(self, stack: _Stack, destination: int, source: int, amount: int) -> _Stack:
        machine = self._machine
        known = {machine.sp: stack.sp, machine.fp: stack.fp}
        value = _sum(known.get(source), amount)
        if destination == machine.sp:
            # What is found from fp says nothing of what was popped.
            return _Stack(value if source == machine.sp else None, stack.fp)
        return _Stack(stack.sp, value if destination == machine.fp else stack.fp)


def _sum(value: int | None, amount: int) -> int | None:
    return None if value is None else value + amount


_RAX = 0
"""DWARF's number, in 32-bit code too."""
LEAST_PROBED = 1 << 12
"""Bytes of a frame that is probed, at least."""


def resolve_probes(effects: list[Effect], sp: int) -> None:
    """Replace what takes a probed frame's size from sp by one that says the number.

    Args:
        effects: of a function's instructions, in order; changed in place.
        sp: the stack pointer, by DWARF number.
    """
    lowers = AddRegister(sp, sp, _RAX, 0, -1)
    for at, effect in enumerate(effects):
        if effect != lowers:
            continue
        before = at - 1
        while before > 0 and effects[before] == NOTHING:  # a place behind the call
            before -= 1
        size = effects[before - 1] if before > 0 else NOTHING
        if (
            isinstance(effects[before], Call)
            and isinstance(size, SetConstant)
            and size.destination == _RAX
            and size.value >= LEAST_PROBED
        ):
            effects[at] = AddConstant(sp, sp, -size.value)
