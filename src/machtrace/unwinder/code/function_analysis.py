"""Instruction analysis that is the same for every architecture: follow functions, and cache them.

An image's code is followed a function at a time, on the first query. Reading a function's
instructions is each architecture's own.

Functions that are too expensive to be followed as a whole are followed at their edges, which tables
do not describe: at the start the instructions before, at the end those up to the return. Both are
straight runs.

Some code is jumped to after a push (stub helpers, on the path into dyld). It looks like a function,
and pops what it did not push; so its sp starts lower than a called function's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.unwinder.code.calling_convention import FromCfa, Machine
from machtrace.unwinder.code.code_check import verdict
from machtrace.unwinder.code.data_flow import MIN_STEPS, Flow
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    Store,
    Trap,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.return_path import MAX_PATH_LENGTH, rule_on_path
from machtrace.unwinder.rules import FunctionAt, UnwindRule
from machtrace.unwinder.step_budget import StepBudget, WalkBudgets

STEPS_PER_BYTE = 5
"""Steps per byte of a function's code that its analysis may take from the budget's reserve;
compiled functions need 1 to 4."""


class FollowedFunction(Protocol):
    """A function that was followed."""

    @property
    def flow(self) -> Flow:
        """The states before its instructions."""
        ...

    def state_in_call(self, at: int, /) -> FrameState | None:
        """Return the state while the call at the offset ``at`` from the start is in progress."""
        ...

    def state_before(self, at: int, /) -> FrameState | None:
        """Return the state before the instruction at the offset ``at`` from the start."""
        ...


_Function = TypeVar("_Function", bound=FollowedFunction)

Effects = Sequence[Effect]
"""The effects of one processor instruction."""


class FunctionAnalysis(ABC, Generic[_Function]):
    """The functions of one image that were queried."""

    def __init__(
        self,
        function_at: FunctionAt,
        *,
        limit: int,
        caches: tuple[dict[Svma, Any], ...] = (),
    ) -> None:
        """Start with an empty cache.

        Args:
            function_at: returns function bounds.
            limit: bytes of code of all cached functions; a full cache is cleared.
            caches: other results by function start, which are cleared with it.
        """
        self.function_at = function_at
        self._limit = limit
        self._with_scratch: dict[Svma, _Function | None] = {}
        """Functions that were followed with their caller-saved registers."""
        self._caches = (self._with_scratch, *caches)
        self._functions: dict[Svma, _Function | None] = {}
        self._wholes: dict[Svma, tuple[Svma, Svma]] = {}
        """The bounds of functions that begin at labels, with the code that runs into them."""
        self._size = 0
        """Bytes of code of the cached functions."""
        self._budget = WalkBudgets(per_query=True).code

    def draw_on(self, budgets: WalkBudgets) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudgets`."""
        self._budget = budgets.code

    def state_in_call(self, lookup: Svma, most: int) -> FrameState | None:
        """See :class:`~machtrace.unwinder.code.code_check.CodeAnalysis`."""
        self._budget.begin_query()
        bounds = self._bounds_at(lookup, most)
        if bounds is None or bounds[1] - bounds[0] > most:
            return None
        function = self._function(*bounds)
        if function is None or not function.flow.is_balanced:
            return None
        return function.state_in_call(lookup - bounds[0])

    def rule_against(
        self, lookup: Svma, stated: UnwindRule, *, is_undescribed: bool
    ) -> UnwindRule | None:
        """Return the rule of an interrupted frame if the code contradicts ``stated``, a table's.

        All paths must contradict it, and a straight one: from the function's start, or to its
        return. None without both. Code that may be undescribed needs no straight path if it returns
        with its caller's frame restored, and has neither calls nor indirect jumps.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        self._budget.begin_query()
        bounds = self.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > MAX_CHECKED_LENGTH:
            return None
        function = self._function(*bounds)
        state = None if function is None else function.state_before(lookup - bounds[0])
        own = None if state is None or verdict(state, stated) is not False else state.rule()
        straight = None if own is None else self._rule_at_edges(lookup, bounds)
        if function is None or own is None:
            return None
        if straight is None:
            flow = function.flow
            is_whole = is_undescribed and flow.is_direct and flow.is_balanced and returns(flow)
            return own if is_whole else None
        return own if own.cfa == straight.cfa else None

    @abstractmethod
    def _rule_at_edges(self, lookup: Svma, bounds: tuple[Svma, Svma]) -> UnwindRule | None:
        """See :func:`rule_at_edges`."""

    def unchanged_at(self, lookup: Svma, /, *, interrupted: bool) -> tuple[int, ...]:
        """See :class:`~machtrace.unwinder.rules.KnowsScratchRegisters`.

        The function is followed with its caller-saved registers; a second time if it is longer
        than those that are always followed so.
        """
        self._budget.begin_query()
        bounds = self._bounds_at(lookup, MAX_ASSEMBLY_LENGTH)
        if bounds is None or bounds[1] - bounds[0] > MAX_ASSEMBLY_LENGTH:
            return ()
        if bounds[0] not in self._with_scratch:
            self._with_scratch[bounds[0]] = self._followed(*bounds, with_volatile=True)
        function = self._with_scratch[bounds[0]]
        at = lookup - bounds[0]
        if function is None:
            return ()
        state = function.state_before(at) if interrupted else function.state_in_call(at)
        if state is None:
            return ()
        machine = state.machine
        return tuple(
            register
            for register in machine.volatile
            if state.value(register) is machine.caller_values[register]
        )

    def _bounds_at(self, lookup: Svma, most: int) -> tuple[Svma, Svma] | None:
        """Return the (start, end) of the function that holds ``lookup``; None outside of functions.

        Linkers list some labels in assembly as functions. Such a part does not return as a function
        does, and the code before it continues into it: it is followed with that code.

        ``most``: the bytes of the largest function that is followed.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        bounds = self.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > most:
            return bounds
        if bounds[0] not in self._wholes:
            function = self._function(*bounds)
            if function is None or not function.flow.is_complete or returns(function.flow):
                return bounds
            whole = self._with_neighbours(bounds, most)
            if self._budget.is_used_up:
                return whole
            self._wholes[bounds[0]] = self._wholes[whole[0]] = whole
            if whole != bounds:
                self._functions.pop(whole[0], None)  # only its first part
        return self._wholes[bounds[0]]

    def _with_neighbours(self, bounds: tuple[Svma, Svma], most: int) -> tuple[Svma, Svma]:
        """Return the bounds with the code that continues into them, and that they continue into."""
        start, end = bounds
        for _ in range(MAX_LABELS):
            before = self.function_at(Svma(start - 1))
            if before is None or before[1] != start or end - before[0] > most:
                break
            if not self._is_continued(*before):
                break
            start = before[0]
        last = bounds
        for _ in range(MAX_LABELS if start < bounds[0] else 0):
            behind = self.function_at(end)
            if behind is None or behind[0] != end or behind[1] - start > most:
                break
            if not self._is_continued(*last):
                break
            last, end = behind, behind[1]
        return start, end

    def _is_continued(self, start: Svma, end: Svma) -> bool:
        if end - start > _MAX_LABEL_LENGTH:
            return False
        try:
            return _continues(self._straight_code(start, end), end - start)
        except MemoryReadError:
            return False

    def _function(self, start: Svma, end: Svma, *, is_queried: bool = True) -> _Function | None:
        """Return the function there, followed; None if it is too expensive or makes no sense.

        Only one that ``is_queried`` itself may take steps from the budget's reserve.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        functions = self._functions
        if start in functions:
            return functions[start]
        budget = self._budget
        needed = MIN_STEPS + STEPS_PER_BYTE * (end - start)
        is_enough = budget.reserve(needed) if is_queried else budget.is_whole
        if budget.is_used_up:
            return None
        if self._size + end - start > self._limit:
            self._forget()
        # A query for a function during its own analysis, through its callers, has no answer.
        functions[start] = None
        is_final = False
        try:
            function = self._followed(start, end)
            is_final = is_enough or not budget.is_used_up  # a later walk may do better
        finally:
            if not is_final:
                functions.pop(start, None)
        if is_final:
            functions[start] = function
            self._size += end - start
        return function

    def _forget(self) -> None:
        self._functions.clear()
        self._wholes.clear()
        for cache in self._caches:
            cache.clear()
        self._size = 0

    @abstractmethod
    def _straight_code(self, start: Svma, end: Svma) -> Iterable[tuple[int, Effects]]:
        """Return offset and effects of the instructions between two addresses.

        Raises:
            MemoryReadError: they were not captured.
        """

    @abstractmethod
    def _followed(self, start: Svma, end: Svma, *, with_volatile: bool = False) -> _Function | None:
        """Follow the function there; ``with_volatile``, with its caller-saved registers."""


MAX_LABELS = 256
"""Labels of one function that are listed as functions."""
_MAX_LABEL_LENGTH = 1 << 16
MAX_CHECKED_LENGTH = 1 << 14
"""Bytes of the longest function that is followed to check a table in an interrupted frame."""
MAX_ASSEMBLY_LENGTH = 1 << 13
"""Bytes of the longest function whose caller-saved registers are followed on request."""
"""Bytes of code that may continue into a label."""
MAX_BEGINNING_LENGTH = 64
"""Instructions analysed at a function's start."""
_TRANSFERS = (Call, Jump, IndirectJump, Return, Trap)


def returns(flow: Flow) -> bool:
    """Return whether code returns as a function does, with the caller's sp."""
    return any(
        isinstance(leaving, Return) and state.is_restored(leaving.register)
        for leaving, state in flow.leaving()
    )


def _continues(instructions: Iterable[tuple[int, Effects]], size: int) -> bool:
    """Return whether code of ``size`` bytes continues behind its end.

    Its last instruction, padding aside, falls through (a call may never return), or a condition
    leads there.
    """
    last: Effect = TRAP
    for offset, effects in instructions:
        for effect in effects:
            if _is_condition(effect, size - offset):
                return True
            if effect != NOTHING:
                last = effect
    if isinstance(last, Jump):
        return last.is_conditional
    # x86's call of the next instruction is a push.
    is_call = isinstance(last, Store) and last.registers == (None,) and last.write_back < 0
    return not is_call and not isinstance(last, _TRANSFERS)


def _is_condition(effect: Effect, distance: int) -> bool:
    return isinstance(effect, Jump) and effect.is_conditional and effect.distance == distance


ReadStraight = Callable[[Svma, Svma], Iterable[tuple[int, Effects]]]
"""Returns the first instructions between two addresses: the offset from the first, and effects."""


def rule_at_edges(
    read: ReadStraight,
    lookup: Svma,
    bounds: tuple[Svma, Svma],
    entry: FrameState,
    budget: StepBudget,
) -> UnwindRule | None:
    """Return the rule at ``lookup`` if it is near the start or end of its function; else None.

    Args:
        read: reads the function's code.
        lookup: the address of an instruction.
        bounds: (start, end) of the function.
        entry: the state before its first instruction.
        budget: counts the functions analysed so.
    """
    if not budget.afford_edges():
        return None
    start, end = bounds
    rule = rule_from_start(read(start, end), lookup - start, entry)
    inside = range(start - lookup, end - lookup)
    return rule or rule_to_return(read(lookup, end), inside, entry)


def rule_from_start(
    instructions: Iterable[tuple[int, Effects]], at: int, entry: FrameState
) -> UnwindRule | None:
    """Return the rule at ``at`` if a function runs straight there from its start; else None.

    Args:
        instructions: offset from the start and effects of each, in order.
        at: the offset of one.
        entry: the state before the first.
    """
    state = entry
    for index, (offset, effects) in enumerate(instructions):
        if offset >= at or index == MAX_BEGINNING_LENGTH:
            return state.rule() if offset == at else None
        if any(isinstance(effect, _TRANSFERS) for effect in effects):
            return None
        for effect in effects:
            state = state.after(effect)
    return None


def rule_to_return(
    instructions: Iterable[tuple[int, Effects]], inside: range, entry: FrameState
) -> UnwindRule | None:
    """Return the rule before the first of ``instructions`` if they run straight to a return.

    A jump out of the function, to a tail call, is a return, too. An indirect jump may be one, but
    in functions as large as these leads to another part of them.

    Args:
        instructions: offset from the first and effects of each, in order.
        inside: offsets from the first that are in the function, including those before it.
        entry: the state before a function's first instruction.
    """
    machine = entry.machine
    path: list[Effect] = []
    for offset, effects in instructions:
        for effect in effects:
            if isinstance(effect, IndirectJump):
                return None
            if isinstance(effect, Jump) and not effect.is_conditional:
                if offset + effect.distance in inside:
                    return None
                path.append(Return(machine.return_address.register))
            elif not isinstance(effect, Jump):  # a condition that does not hold
                path.append(effect)
        if len(path) >= MAX_PATH_LENGTH or (path and isinstance(path[-1], Return)):
            break
    return rule_on_path(path, 0, machine)


MAX_PUSHED = 64
"""In bytes."""


def pushed_before(flow: Flow, machine: Machine) -> int:
    """Return the bytes that are pushed before code is entered; 0 for a function.

    Args:
        flow: the code's, as if it were a function.
        machine: the architecture's.
    """
    offsets = set(_sp_where_left(flow, machine))
    if len(offsets) != 1:
        return 0
    above = offsets.pop() - machine.entry_sp
    return above if 0 < above <= MAX_PUSHED and above % machine.word == 0 else 0


def entry_with(pushed: int, entry: FrameState) -> FrameState:
    """Return the state at the first instruction, with ``pushed`` bytes more on the stack."""
    machine = entry.machine
    values = list(entry.values)
    values[machine.indices[machine.sp]] = FromCfa(machine.entry_sp - pushed)
    return FrameState(machine, tuple(values), entry.slots)


def _sp_where_left(flow: Flow, machine: Machine) -> Iterator[int]:
    """Yield the offset from the CFA to sp at each instruction that may leave the code."""
    for instruction, state in flow.leaving():
        if state.sp_offset is None:
            continue
        if state.slots.get(state.sp_offset) == machine.return_address:
            yield machine.entry_sp  # it may have moved the return address, over its arguments
            continue
        if isinstance(instruction, IndirectJump):
            if state.value(instruction.register) == machine.return_address:
                yield machine.entry_sp  # a return
                continue
            if state.sp_offset < machine.entry_sp:
                continue  # it stays in the code
        yield state.sp_offset
