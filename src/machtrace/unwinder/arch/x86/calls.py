"""The bytes of arguments that callees of 32-bit x86 pop, and the one kind of call that keeps rax.

A function that returns a structure pops the hidden argument, and ``stdcall`` pops all. For a call
through a pointer, or into another image, the instructions after it show it: at each call sp is a
multiple of 16 (*OS X ABI Function Call Guide*, "IA-32 Function Calling Conventions"), and at a
return it has its entry value.

Where a frame is larger than a page, compilers put its size into eax, call a stack probe that
touches each page of it (``___chkstk_darwin``), and subtract rax from the stack pointer. Any other
callee leaves its result in rax, but no code subtracts a result from sp without masking, because sp
must stay aligned.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableSequence

from machtrace.frozen import dataclass
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
    LoadIndexed,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)

LOOK_AHEAD = 256
"""Instructions inspected after one call."""
MAX_INSTRUCTIONS = 1 << 14
"""Instructions inspected in total; calls beyond them pop an unknown number."""
MAX_POPPED = 256
"""In bytes of arguments."""
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class _Stack:
    """Offsets from the CFA; None if unknown."""

    sp: int | None
    fp: int | None


def infer_pops(
    code: MutableSequence[Effect],
    calls: Container[int],
    machine: Machine,
    *,
    limit: int = MAX_INSTRUCTIONS,
) -> int:
    """Infer how much unknown callees pop, and store it in ``code`` after their calls.

    Args:
        code: a function's instructions; distances of jumps are in indices. An entry for what the
            callee pops follows each call.
        calls: the indices of calls of unknown functions.
        machine: the architecture's.
        limit: instructions to inspect, never more than :data:`MAX_INSTRUCTIONS`.

    Returns:
        How many were inspected.
    """
    inference = _Inference(code, calls, machine, min(limit, MAX_INSTRUCTIONS))
    inference.run()
    return min(limit, MAX_INSTRUCTIONS) - inference.left


class _Inference:
    """One pass over all reachable instructions, with look-ahead after unknown calls."""

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
        """Follow the function from its entry, then from code that no direct jump leads to."""
        inside = _Stack(self._machine.entry_sp, None)
        self._follow(0, inside)
        for start in range(len(self._code)):
            if not self._seen[start] and self.left > 0:
                # The frame of a switch's case may be unknown: the alignment at calls is enough.
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
        """Return the bytes that a callee pops, as far as the code after the call shows."""
        sp = stack.sp
        if sp is None:
            stack = _Stack(0, stack.fp)
        is_aligned = sp is None or sp % _ALIGNMENT == 0
        at_call, at_return = self._evidence(call, stack, is_aligned=is_aligned)
        if sp is None or (
            at_return is not None and at_call is not None and (at_return - at_call) % _ALIGNMENT
        ):
            at_return = None  # it is another frame's
        return (at_call if at_return is None else at_return) or 0

    def _evidence(
        self, call: int, stack: _Stack, *, is_aligned: bool
    ) -> tuple[int | None, int | None]:
        """Return the pops that would align the next call, and that would balance the return."""
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
                    continue  # this callee's pops are unknown, too
            elif self._leaves(index, instruction):
                popped = self._machine.entry_sp - stack.sp
                if 0 <= popped <= MAX_POPPED and popped % self._machine.word == 0:
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
        """Yield the instructions that follow one, and the stack there; the likeliest last."""
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

    def _after(  # noqa: PLR0911 - one branch a kind
        self, instruction: Effect, stack: _Stack
    ) -> _Stack:
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
            case LoadIndexed(register):
                sp = None if machine.sp == register else sp
                return _Stack(sp, None if machine.fp == register else fp)
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
            # An sp computed from fp proves nothing about pops.
            return _Stack(value if source == machine.sp else None, stack.fp)
        return _Stack(stack.sp, value if destination == machine.fp else stack.fp)


def _sum(value: int | None, amount: int) -> int | None:
    return None if value is None else value + amount


_RAX = 0
"""The DWARF number, in 32-bit code, too."""
MIN_PROBED = 1 << 12
"""Bytes of the smallest frame that is probed."""


def resolve_probes(effects: list[Effect], sp: int) -> None:
    """Replace the subtraction of a probed frame's size from sp by one of a constant.

    Args:
        effects: a function's instructions in order; changed in place.
        sp: the stack pointer, by DWARF number.
    """
    lowers = AddRegister(sp, sp, _RAX, 0, -1)
    for at, effect in enumerate(effects):
        if effect != lowers:
            continue
        before = at - 1
        while before > 0 and effects[before] == NOTHING:  # the entry after the call
            before -= 1
        size = effects[before - 1] if before > 0 else NOTHING
        if (
            isinstance(effects[before], Call)
            and isinstance(size, SetConstant)
            and size.destination == _RAX
            and size.value >= MIN_PROBED
        ):
            effects[at] = AddConstant(sp, sp, -size.value)
