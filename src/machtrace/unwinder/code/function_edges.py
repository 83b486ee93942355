"""The beginning and the end of functions that are too large to be followed as a whole.

Tables say what holds in the middle. At the beginning, what the instructions from the start did
says all; near the end, what those up to the return will do. Both are straight runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from machtrace.model.address import Svma
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.effects import (
    Call,
    IndirectJump,
    Effect,
    Jump,
    Return,
    Trap,
)
from machtrace.unwinder.code.return_path import LONGEST_WAY, rule_on_way
from machtrace.unwinder.rules import UnwindRule
from machtrace.unwinder.step_budget import StepBudget

LONGEST_BEGINNING = 64
"""Instructions from a function's start that are looked at."""
_TRANSFERS = (Call, Jump, IndirectJump, Return, Trap)

Effects = Sequence[Effect]
"""Of one instruction of the processor."""

ReadStraight = Callable[[Svma, Svma], Iterable[tuple[int, Effects]]]
"""The first instructions of what is between two addresses: offset from the first, and effects."""


def rule_at_edges(
    read: ReadStraight, lookup: Svma, bounds: tuple[Svma, Svma], entry: FrameState, work: StepBudget
) -> UnwindRule | None:
    """The rule at ``lookup``, if it is near the beginning or the end of its function; else None.

    Args:
        read: the function's code.
        lookup: where an instruction starts.
        bounds: (start, end) of the function.
        entry: the state before its first instruction.
        work: what looks at edges are counted in.
    """
    if not work.afford_edges():
        return None
    start, end = bounds
    found = rule_from_start(read(start, end), lookup - start, entry)
    inside = range(start - lookup, end - lookup)
    return found or rule_to_return(read(lookup, end), inside, entry)


def rule_from_start(
    instructions: Iterable[tuple[int, Effects]], at: int, entry: FrameState
) -> UnwindRule | None:
    """The rule at ``at``, if a function runs straight there from its start; else None.

    Args:
        instructions: offset from the start and effects of each, in order.
        at: offset of one.
        entry: the state before the first.
    """
    state = entry
    for index, (offset, effects) in enumerate(instructions):
        if offset >= at or index == LONGEST_BEGINNING:
            return state.rule() if offset == at else None
        if any(isinstance(one, _TRANSFERS) for one in effects):
            return None
        for one in effects:
            state = state.after(one)
    return None


def rule_to_return(
    instructions: Iterable[tuple[int, Effects]], inside: range, entry: FrameState
) -> UnwindRule | None:
    """The rule before the first of ``instructions``, if they go straight on to a return.

    A jump out of the function, to one that is called in its place, is a return too. A jump to what
    is computed may be that, but in functions as large as these leads to another part of them.

    Args:
        instructions: offset from the first and effects of each, in order.
        inside: offsets from the first that are in the function, those before it included.
        entry: the state before a function's first instruction.
    """
    machine = entry.machine
    way: list[Effect] = []
    for offset, effects in instructions:
        for one in effects:
            if isinstance(one, IndirectJump):
                return None
            if isinstance(one, Jump) and not one.is_conditional:
                if offset + one.distance in inside:
                    return None
                way.append(Return(machine.return_address.register))
            elif not isinstance(one, Jump):  # a condition that does not hold
                way.append(one)
        if len(way) >= LONGEST_WAY or (way and isinstance(way[-1], Return)):
            break
    return rule_on_way(way, 0, machine)
