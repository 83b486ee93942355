"""Rules for interrupted frames of x86 code, of 32 and 64 bits, from its instructions.

The same analysis as :mod:`machtrace.unwinder.arch.arm64.analysis`, and simpler: the return address
is always at the same offset below the CFA.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.arch.x86.calls import infer_pops, resolve_probes
from machtrace.unwinder.arch.x86.decoder import Decoder
from machtrace.unwinder.arch.x86.encoding import Effects
from machtrace.unwinder.arch.x86.registers import MODE_32, MODE_64, Mode
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
    AddConstant,
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    Trap,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.function_analysis import (
    MAX_BEGINNING_LENGTH,
    MAX_CHECKED_LENGTH,
    FunctionAnalysis,
    entry_with,
    pushed_before,
    returns,
    rule_at_edges,
)
from machtrace.unwinder.code.return_path import rule_across_stacks, rule_behind_call
from machtrace.unwinder.rules import Claims, FunctionAt, UnwindRule

MAX_FUNCTION_SIZE = 1 << 18
"""Bytes of the largest function that is analysed."""
CACHED_SIZE = 1 << 21
"""Bytes of code of all cached functions; a full cache is cleared."""

_MAX_INSTRUCTION_LENGTH = 15
_TRANSFERS = (Call, Jump, IndirectJump, Return, Trap)
_NESTING = 4
MODES = {Arch.X86_64: MODE_64, Arch.X86_64H: MODE_64, Arch.I386: MODE_32}
"""The decoding mode of an architecture."""
_SWEPT_AT_ONCE = 256
"""Bytes of the longest function that is decoded without first searching its bytes for a return that
pops."""
_RETURN_AND_POP = re.compile(rb"\xc2.[\x00-\x0f]", re.DOTALL)
_RETURN = b"\xc3"
_ADDRESSES = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)
"""``lea reg, [rip + n]``, which loads the address of a table."""
_ENTRY, _MIN_ENTRIES = 4, 3
_MAX_LEAF_LENGTH = 1024
"""Bytes of the longest function whose unchanged caller-saved registers are tracked."""
_MAX_STUB_LENGTH = 256
"""Bytes of the longest code that is jumped to after pushes."""
_STEPS_FOR_A_START = 300
"""Steps for a function's first instructions, which are not analysed with less."""
_STEPS_AN_INSTRUCTION = 2
_STEPS_UNKNOWN = 8
"""Steps for an instruction decoded for the first time."""
_STEPS_INSPECTED = 4
"""Steps for an instruction inspected for what calls pop."""
_STEPS_TO_FIND = 4
"""Steps to locate a function's code."""
_BYTES_PER_STEP = 64
"""Bytes searched for returns per step."""


Ranges = tuple[tuple[int, int], ...]
"""The (start, end) of each, ascending, disjoint."""


_DECODERS = {mode: Decoder(mode) for mode in (MODE_32, MODE_64)}


class _Function:
    """A followed function, as cached."""

    __slots__ = ("_effects", "_indices", "_keeps_volatile", "_starts", "flow")

    def __init__(
        self, flow: Flow, indices: dict[int, int], effects: list[Effect], *, keeps_volatile: bool
    ) -> None:
        """``indices``: positions in ``effects``, by the instruction's offset in the function."""
        self.flow = flow
        self._keeps_volatile = keeps_volatile
        self._effects = effects
        self._indices = indices
        self._starts = list(indices)

    def rule_across_stacks(self, at: int, state: FrameState) -> UnwindRule | None:
        """See :mod:`machtrace.unwinder.code.return_path`; ``state`` is the one at ``at``."""
        rule = state.rule(keeps_volatile=self._keeps_volatile)
        return rule_across_stacks(self._effects, self._indices[at], state, rule)

    def rule_ahead(self, at: int) -> UnwindRule | None:
        """Return the rule before an instruction from the path to the return.

        Parts that only a jump table leads to do not show the frame, but the code behind them
        releases it.
        """
        index = self._indices.get(at)
        return None if index is None else rule_behind_call(self._effects, index, MODE_64.machine)

    def state(self, at: int) -> FrameState | None:
        """Return the state before the instruction that starts there."""
        index = self._indices.get(at)
        return None if index is None else self.flow.state(index)

    state_before = state

    def state_in_call(self, at: int) -> FrameState | None:
        """Return the state before the instruction that has that byte."""
        index = bisect_right(self._starts, at) - 1
        return None if index < 0 else self.state(self._starts[index])


class X86InstructionRules(FunctionAnalysis[_Function]):
    """Instruction analysis of one image's x86 code. A :class:`RuleSource`.

    It has rules for interrupted frames only: at calls, tables are better.
    """

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(
        self,
        contents: ImageContents,
        function_at: FunctionAt,
        data: Ranges = (),
        mode: Mode = MODE_64,
    ) -> None:
        """``data``: the ranges that are not code."""
        self._popped: dict[Svma, int | None] = {}
        super().__init__(function_at, limit=CACHED_SIZE, caches=(self._popped,))
        self._contents = contents
        self._mode = mode
        self._data = data
        self._data_starts = [start for start, _ in data]

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        if not interrupted:
            return None
        self._budget.begin_query()
        bounds = self._bounds_at(lookup, MAX_FUNCTION_SIZE)
        if bounds is None:
            return None
        is_small = bounds[1] - bounds[0] <= MAX_FUNCTION_SIZE
        function = self._function(*bounds) if is_small else None
        if function is None or not function.flow.is_complete:
            return self._rule_at_edges(lookup, bounds)
        at = lookup - bounds[0]
        state = function.state(at)
        rule = None if state is None else function.rule_across_stacks(at, state)
        return rule or (function.rule_ahead(at) if self._mode.is_64 else None)

    def _rule_at_edges(self, lookup: Svma, bounds: tuple[Svma, Svma]) -> UnwindRule | None:
        return rule_at_edges(self._straight, lookup, bounds, self._mode.entry, self._budget)

    def _straight(self, start: Svma, end: Svma) -> Iterator[tuple[int, Effects]]:
        """Yield offset and effects of the first instructions from ``start``; no steps are spent."""
        size = min(end - start, MAX_BEGINNING_LENGTH * _MAX_INSTRUCTION_LENGTH)
        code, at = bytes(self._contents.read_svma(start, size)), 0
        while at < size:
            length, effects = _DECODERS[self._mode].decode(code, at)
            yield at, effects
            at += length

    def state_behind_start(self, lookup: Svma, count: int) -> FrameState | None:
        """See :class:`~machtrace.unwinder.code.code_check.CodeAnalysis`."""
        self._budget.begin_query()
        bounds = self.function_at(lookup)
        if bounds is None or not self._budget.afford(_STEPS_FOR_A_START):
            return None
        start, end = bounds
        end = Svma(min(end, start + (count + 1) * _MAX_INSTRUCTION_LENGTH))
        state = self._mode.entry
        for index, (at, effects) in enumerate(self._instructions(start, end)):
            if index == count or any(isinstance(effect, _TRANSFERS) for effect in effects):
                return state if start + at <= lookup else None
            for effect in effects:
                state = state.after(effect)
        return state if end <= lookup else None

    def rule_at_call(self, lookup: Svma) -> UnwindRule | None:
        """See :class:`~machtrace.unwinder.rules.CallAnalysis`."""
        state = self.state_in_call(lookup, MAX_FUNCTION_SIZE)
        rule = None if state is None else state.rule()
        if rule is not None or not self._mode.is_64:
            return rule
        bounds = self._bounds_at(lookup, MAX_FUNCTION_SIZE)
        if bounds is None or bounds[1] - bounds[0] > MAX_CHECKED_LENGTH:
            return None
        function = self._function(*bounds)
        return None if function is None else function.rule_ahead(lookup + 1 - bounds[0])

    def _straight_code(self, start: Svma, end: Svma) -> Iterator[tuple[int, Effects]]:
        code = bytes(self._contents.read_svma(start, end - start))
        last = len(code.rstrip(b"\0"))  # zeros are padding, not stores
        for at, effects in self._instructions(start, end):
            if at >= last:
                return
            yield at, effects

    def _followed(self, start: Svma, end: Svma, *, with_volatile: bool = False) -> _Function | None:
        budget = self._budget
        sweep = _Sweep(self._instructions(start, end), end - start, self._mode)
        self._add_pops(sweep, start)
        resolve_probes(sweep.effects, self._mode.sp)
        if budget.is_used_up:
            return None
        # Assembly keeps values in scratch registers that the functions which it calls leave alone.
        is_leaf = (
            self._mode.is_64
            and end - start <= _MAX_LEAF_LENGTH
            and not any(isinstance(effect, Call) for effect in sweep.effects)
        )
        entry = self._mode.entry_of_leaf if is_leaf or with_volatile else self._mode.entry
        flow = Flow(sweep.effects, entry, unit=1, budget=budget)
        pushed = pushed_before(flow, self._mode.machine) if end - start <= _MAX_STUB_LENGTH else 0
        if pushed:
            entry = entry_with(pushed, entry)
            flow = Flow(sweep.effects, entry, unit=1, budget=budget)
        shared = None if returns(flow) else self._entry_of_shared_frame(flow, sweep, start)
        if shared is not None:
            flow = Flow(sweep.effects, shared, unit=1, budget=budget)
        return _Function(flow, sweep.indices, sweep.effects, keeps_volatile=is_leaf)

    def _entry_of_shared_frame(self, flow: Flow, sweep: _Sweep, start: Svma) -> FrameState | None:
        """Return the state at the start of a label that jumps into the function whose frame it has.

        It creates no frame itself, and that function has one at the jump's target. None for a
        function.
        """
        entry: FrameState | None = None
        entry_sp = self._mode.machine.entry_sp
        for leaving, state in flow.leaving():
            index = -1 - leaving.distance if isinstance(leaving, Jump) else -1
            target = Svma(start + sweep.outside.get(index, 0))
            around = self.function_at(target) if index in sweep.outside else None
            if around is None or around[0] == target:
                continue
            whole = self._bounds_at(target, MAX_CHECKED_LENGTH) or around
            if state.sp_offset != entry_sp or whole[1] - whole[0] > MAX_CHECKED_LENGTH:
                return None
            other = self._function(*whole, is_queried=False)
            there = None if other is None else other.state(target - whole[0])
            if there is None or there.sp_offset == entry_sp:
                return None
            entry = there if entry is None else entry.join(there)
        return entry

    def _instructions(self, start: Svma, end: Svma) -> Iterator[tuple[int, Effects]]:
        """Yield offset and effects of each instruction, fewer if the budget is exhausted.

        A range of data is an instruction that traps, and so is a table of jumps that the code
        addresses.
        """
        code = bytes(self._contents.read_svma(start, end - start))
        at, budget, decoder = 0, self._budget, _DECODERS[self._mode]
        tables = _jump_tables(code) if self._mode.is_64 else {}
        while at < len(code):
            misses = decoder.misses
            data = bisect_right(self._data_starts, start + at) - 1
            if data >= 0 and start + at < self._data[data][1]:
                yield at, (TRAP,)
                at = self._data[data][1] - start
                continue
            if at in tables:
                yield at, (TRAP,)
                at = tables[at]
                continue
            length, effects = decoder.decode(code, at)
            if not budget.spend(_STEPS_AN_INSTRUCTION + _STEPS_UNKNOWN * (decoder.misses - misses)):
                return
            yield at, effects
            at += length

    def _add_pops(self, sweep: _Sweep, start: Svma) -> None:
        """Add the callees' change of sp after calls."""
        sp = self._mode.sp
        unknown: set[int] = set()
        for index, target in sweep.calls_that_may_pop:
            popped = None if target is None else self._popped_by(Svma(start + target))
            if popped:
                sweep.effects[index] = AddConstant(sp, sp, popped)
            elif popped is None:
                unknown.add(index - 1)
        if unknown and not self._mode.is_64:
            budget = self._budget
            inspected = infer_pops(
                sweep.effects,
                unknown,
                self._mode.machine,
                limit=budget.left // _STEPS_INSPECTED,
            )
            budget.spend(_STEPS_INSPECTED * inspected)

    def _popped_by(self, target: Svma, nesting: int = 0) -> int | None:
        """Return the bytes of arguments that a function pops on return.

        None if no function is known to return there.
        """
        if target in self._popped:
            return self._popped[target]
        popped = self._popped_by_return(target, nesting)
        if not self._budget.is_used_up:
            self._popped[target] = popped
        return popped

    def _popped_by_return(  # noqa: PLR0911 - one for each reason to know nothing
        self, target: Svma, nesting: int
    ) -> int | None:
        bounds = self.function_at(target)
        if bounds is None or bounds[0] != target or bounds[1] - target > MAX_FUNCTION_SIZE:
            return None
        tail_call: Svma | None = None
        try:
            size = bounds[1] - bounds[0]
            if not self._budget.afford(_STEPS_TO_FIND + size // _BYTES_PER_STEP):
                return None
            if self._surely_pops_nothing(*bounds):
                return 0
            for at, effects in self._instructions(*bounds):
                last = effects[-1]
                if isinstance(last, Return):
                    return last.pops
                if isinstance(last, Jump) and not last.is_conditional:
                    to = Svma(target + at + last.distance)
                    tail_call = tail_call if to in range(*bounds) else to
        except MemoryReadError:
            return None
        # It ends with a tail call of a function that pops the same.
        if tail_call is None or nesting >= _NESTING:
            return None
        return self._popped_by(tail_call, nesting + 1)

    def _surely_pops_nothing(self, start: Svma, end: Svma) -> bool:
        """Search a long function's bytes: return whether it returns, and no return can pop."""
        if end - start <= _SWEPT_AT_ONCE:
            return False
        code = bytes(self._contents.read_svma(start, end - start))
        return _RETURN in code and not _RETURN_AND_POP.search(code)


def _jump_tables(code: bytes) -> dict[int, int]:
    """Return the ends of tables of distances in a function's code, by start.

    An instruction has a table's address; entries are 32-bit distances from there to instructions.
    """
    tables: dict[int, int] = {}
    for match in _ADDRESSES.finditer(code):
        table = match.end() + int.from_bytes(match[1], "little", signed=True)
        at = table
        while 0 < at <= len(code) - _ENTRY:
            target = table + int.from_bytes(code[at : at + _ENTRY], "little", signed=True)
            if at in tables or not 0 <= target < len(code):
                break
            at += _ENTRY
        if at - table >= _MIN_ENTRIES * _ENTRY:
            tables[table] = at
    return tables


class _Sweep:
    """The effects of a function's instructions as one list.

    Distances of jumps are converted to distances in the list.
    """

    __slots__ = ("calls_that_may_pop", "effects", "indices", "outside")

    def __init__(self, instructions: Iterable[tuple[int, Effects]], size: int, mode: Mode) -> None:
        self.effects: list[Effect] = []
        self.indices: dict[int, int] = {}
        """Indices in the list, by the instruction's offset."""
        self.calls_that_may_pop: list[tuple[int, int | None]] = []
        """Indices after calls, and the calls' targets: a callee may pop its arguments. In 64-bit
        code that is rare, and the next instruction restores sp."""
        jumps: list[tuple[int, int, Jump]] = []
        called: int | None = None
        is_behind_call = False
        for at, effects in instructions:
            first = effects[0]
            if is_behind_call and (not mode.is_64 or _lowers(first, mode.sp)):
                self.calls_that_may_pop.append((len(self.effects), called))
                self.effects.append(NOTHING)
            is_behind_call = isinstance(first, Call)
            self.indices[at] = len(self.effects)
            if isinstance(first, Call):
                # No callee shares this function's frame, so no analysis needs the target.
                called = None if first.distance is None else at + first.distance
                effects = (Call(None),)  # noqa: PLW2901
            for effect in effects:
                if isinstance(effect, Jump):
                    jumps.append((len(self.effects), at + effect.distance, effect))
                self.effects.append(effect)
        self.outside = {index: to for index, to, _ in jumps if not 0 <= to < size}
        """Targets of direct jumps out of the function, by the jump's index in the list."""
        for index, target, jump in jumps:
            self.effects[index] = self._resolved(index, target, jump, size)

    def _resolved(self, index: int, target: int, jump: Jump, size: int) -> Effect:
        if target in self.indices:
            distance = self.indices[target] - index
            return Jump(distance, is_conditional=jump.is_conditional)
        if 0 <= target < size:
            return TRAP  # into the middle of an instruction: one of the two is invalid
        return Jump(-1 - index, is_conditional=jump.is_conditional)


def _lowers(effect: Effect, sp: int) -> bool:
    return isinstance(effect, AddConstant) and effect.destination == sp and effect.amount < 0
