"""What instruction analysis does alike for every architecture: follow functions, and keep them.

An image's code is followed a function at a time, when it is first asked for, and what was found is
kept up to a limit. How a function's instructions are read is each architecture's own.

The beginning and the end of functions that are too large to be followed as a whole.

Tables say what holds in the middle. At the beginning, what the instructions from the start did
says all; near the end, what those up to the return will do. Both are straight runs.

Code that others jump to after they pushed something: stub helpers' way into dyld.

It looks like a function, and takes away, before it leaves, what it did not push. So sp is then
above the place where a function that was called has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from machtrace.model.address import Svma
from machtrace.unwinder.code.calling_convention import FromCfa, Machine
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    Trap,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.return_path import LONGEST_WAY, rule_on_way
from machtrace.unwinder.rules import FunctionAt, UnwindRule
from machtrace.unwinder.step_budget import StepBudget


class FollowedFunction(Protocol):
    """What is kept of a function."""

    @property
    def flow(self) -> Flow:
        """The states before its instructions."""
        ...

    def state_in_call(self, at: int, /) -> FrameState | None:
        """The state while the call is in progress that has the byte ``at`` bytes from the start."""
        ...


_Function = TypeVar("_Function", bound=FollowedFunction)


class FunctionAnalysis(ABC, Generic[_Function]):
    """The functions of one image, as far as they were asked for."""

    def __init__(
        self,
        function_at: FunctionAt,
        *,
        limit: int,
        kept_along: tuple[dict[Svma, Any], ...] = (),
    ) -> None:
        """What every analysis needs.

        Args:
            function_at: returns function bounds.
            limit: bytes of code of all functions that are kept; at the limit all are forgotten.
            kept_along: what else was learnt of functions, by start, and is forgotten with them.
        """
        self.function_at = function_at
        self._limit = limit
        self._kept_along = kept_along
        self._functions: dict[Svma, _Function | None] = {}
        self._size = 0
        """Bytes of code of those."""
        self._budget = StepBudget(per_query=True)

    def draw_on(self, budget: StepBudget) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudget`."""
        self._budget = budget

    def state_in_call(self, lookup: Svma, most: int) -> FrameState | None:
        """See :class:`~machtrace.unwinder.code.code_check.CodeAnalysis`.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        bounds = self.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > most:
            return None
        self._budget.begin_query()
        function = self._function(*bounds)
        if function is None or not function.flow.is_balanced:
            return None
        return function.state_in_call(lookup - bounds[0])

    def _function(self, start: Svma, end: Svma) -> _Function | None:
        """The function there, followed; None where that is too dear or makes no sense.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        functions = self._functions
        if start in functions:
            return functions[start]
        budget = self._budget
        if budget.is_used_up:
            return None
        if self._size + end - start > self._limit:
            self._forget()
        is_whole = budget.is_whole
        # A function that is asked for while its own callers are looked at has no answer.
        functions[start] = None
        is_kept = False
        try:
            function = self._followed(start, end)
            is_kept = is_whole or not budget.is_used_up  # else the next walk may have more for it
        finally:
            if not is_kept:
                functions.pop(start, None)
        if is_kept:
            functions[start] = function
            self._size += end - start
        return function

    def _forget(self) -> None:
        self._functions.clear()
        for kept in self._kept_along:
            kept.clear()
        self._size = 0

    @abstractmethod
    def _followed(self, start: Svma, end: Svma) -> _Function | None:
        """Follow the function there."""


LONGEST_BEGINNING = 64
"""Instructions from a function's start that are looked at."""
_TRANSFERS = (Call, Jump, IndirectJump, Return, Trap)

Effects = Sequence[Effect]
"""Of one instruction of the processor."""

ReadStraight = Callable[[Svma, Svma], Iterable[tuple[int, Effects]]]
"""The first instructions of what is between two addresses: offset from the first, and effects."""


def rule_at_edges(
    read: ReadStraight,
    lookup: Svma,
    bounds: tuple[Svma, Svma],
    entry: FrameState,
    budget: StepBudget,
) -> UnwindRule | None:
    """The rule at ``lookup``, if it is near the beginning or the end of its function; else None.

    Args:
        read: the function's code.
        lookup: where an instruction starts.
        bounds: (start, end) of the function.
        entry: the state before its first instruction.
        budget: what looks at edges are counted in.
    """
    if not budget.afford_edges():
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


MOST_PUSHED = 64
"""Bytes at most."""


def pushed_before(flow: Flow, machine: Machine) -> int:
    """Bytes that lie above the frame when code is entered; 0 for a function.

    Args:
        flow: of the code, as if it were a function.
        machine: of the architecture.
    """
    found = set(_sp_where_left(flow, machine))
    if len(found) != 1:
        return 0
    above = found.pop() - machine.entry_sp
    return above if 0 < above <= MOST_PUSHED and above % machine.word == 0 else 0


def entry_with(pushed: int, entry: FrameState) -> FrameState:
    """The state at the first instruction, with ``pushed`` bytes more on the stack."""
    machine = entry.machine
    values = list(entry.values)
    values[machine.places[machine.sp]] = FromCfa(machine.entry_sp - pushed)
    return FrameState(machine, tuple(values), entry.slots)


def _sp_where_left(flow: Flow, machine: Machine) -> Iterator[int]:
    """From the CFA to sp, at each instruction that may leave the code."""
    for instruction, state in flow.leaving():
        if state.sp_offset is None:
            continue
        if isinstance(instruction, IndirectJump):
            if state.value(instruction.register) == machine.return_address:
                yield machine.entry_sp  # a return
                continue
            if state.sp_offset < machine.entry_sp:
                continue  # it stays in the code
        yield state.sp_offset
