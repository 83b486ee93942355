"""Rules for frames of 32-bit arm code, from its instructions.

The same analysis as :mod:`machtrace.unwinder.arch.arm64.analysis`. Apple's 32-bit arm images have
no unwind tables, except watchOS's: exceptions were thrown with ``setjmp``. So calls are analysed,
too.

A function's instruction set, ARM or Thumb, is determined by its address: the status register is
not in every core, and a return address's lowest bit is of the caller. Tables mark the Thumb
functions; where none does, the code shows it, because nearly every ARM instruction begins with the
condition "always".
"""

from __future__ import annotations

from bisect import bisect_right

from machtrace.model.address import Svma
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.arch.arm32.function_code import ArmEffects, Code, Range
from machtrace.unwinder.arch.arm32.registers import ARM_DARWIN, LR
from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.data_flow import Flow
from machtrace.unwinder.code.effects import Writes
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.function_analysis import FunctionAnalysis
from machtrace.unwinder.code.return_path import rule_across_stacks
from machtrace.unwinder.rules import Claims, FunctionAt, UnwindRule
from machtrace.unwinder.step_budget import StepBudget

_SAMPLE_SIZE = 1 << 10
"""Bytes of a function that suffice to recognise its instruction set."""
_ALWAYS = 0xE0


class InstructionSets:
    """The instruction sets of an image's functions."""

    __slots__ = ("_is_thumb",)

    def __init__(self, is_thumb: dict[int, bool]) -> None:
        """``is_thumb``: by the Svma of the function's start."""
        self._is_thumb = is_thumb

    def is_thumb(self, start: int, code: bytes) -> bool:
        """Return whether the function at Svma ``start`` with the bytes ``code`` is Thumb code."""
        known = self._is_thumb.get(start)
        if known is None:
            known = bool(start % 4) or not looks_like_arm(code)
        return known


def looks_like_arm(code: bytes) -> bool:
    """Return whether most words of ``code`` could be ARM instructions that always run.

    Thumb code has such a byte at every fourth offset by chance only.
    """
    tops = code[3:_SAMPLE_SIZE:4]
    return 2 * sum(top & 0xF0 == _ALWAYS for top in tops) > len(tops)


MAX_FUNCTION_SIZE = 1 << 18
"""Bytes of the largest function that is analysed."""
CACHED_SIZE = 1 << 20
"""Bytes of code of all cached functions; a full cache is cleared."""

_LINKING = Writes((LR,))
"""The effect of a call itself, before the callee's first instruction."""


class _Function:
    __slots__ = ("_effects", "_indices", "_starts", "flow")

    def __init__(self, code: Code, entry: FrameState, budget: StepBudget) -> None:
        effects = ArmEffects(code)
        self._effects = effects.effects
        self.flow = Flow(effects.effects, entry, unit=1, budget=budget)
        self._starts = list(effects.indices)
        self._indices = list(effects.indices.values())

    def rule(self, at: int) -> UnwindRule | None:
        """Return the rule before the instruction at the offset ``at``."""
        state = self.state_before(at)
        if state is None:
            return None
        effect = self._indices[bisect_right(self._starts, at) - 1]
        # Compilers push more registers than they change to make room, and write over them.
        rule = state.rule(prefers_memory=False)
        return rule_across_stacks(self._effects, effect, state, rule)

    def state_before(self, at: int) -> FrameState | None:
        """Return the state before the instruction at the offset ``at`` from the start."""
        index = bisect_right(self._starts, at) - 1
        is_start = index >= 0 and self._starts[index] == at
        return self.flow.state(self._indices[index]) if is_start else None

    def state_in_call(self, at: int) -> FrameState | None:
        """Return the state in the call that has that byte."""
        index = bisect_right(self._starts, at) - 1
        state = None if index < 0 else self.flow.state(self._indices[index])
        return None if state is None else state.after(_LINKING)


class ArmInstructionRules(FunctionAnalysis[_Function]):
    """Instruction analysis of one image's arm code. A :class:`RuleSource`.

    It has rules for interrupted frames only; for calls see
    :class:`~machtrace.unwinder.rules.CallSiteRules`.
    """

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(
        self,
        contents: ImageContents,
        function_at: FunctionAt,
        sets: InstructionSets,
        data: tuple[Range, ...] = (),
        *,
        machine: Machine = ARM_DARWIN,
    ) -> None:
        """Analyse no function yet.

        Args:
            contents: the image.
            function_at: returns function bounds.
            sets: the functions' instruction sets.
            data: the ranges that are not code, in Svmas, ascending.
            machine: the calling convention.
        """
        super().__init__(function_at, limit=CACHED_SIZE)
        self._entry = FrameState.at_entry(machine, with_volatile=False)
        self._contents = contents
        self._sets = sets
        self._data = data
        self._data_starts = [start for start, _ in data]

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        located = self._function_of(lookup) if interrupted else None
        return None if located is None else located[0].rule(located[1])

    def unchanged_at(self, _: Svma, /, *, interrupted: bool) -> tuple[int, ...]:
        """See :class:`~machtrace.unwinder.rules.KnowsScratchRegisters`; of no function."""
        del interrupted
        return ()

    def rule_at_call(self, lookup: Svma) -> UnwindRule | None:
        """See :class:`~machtrace.unwinder.rules.CallAnalysis`."""
        located = self._function_of(lookup)
        state = None if located is None else located[0].state_in_call(located[1])
        return None if state is None else state.rule()

    def _function_of(self, address: Svma) -> tuple[_Function, int] | None:
        """Return the function that holds ``address``, and the offset in it."""
        bounds = self.function_at(address)
        if bounds is None or bounds[1] - bounds[0] > MAX_FUNCTION_SIZE:
            return None
        self._budget.begin_query()
        function = self._function(*bounds)
        return None if function is None else (function, address - bounds[0])

    def _rule_at_edges(self, lookup: Svma, bounds: tuple[Svma, Svma]) -> None:
        del lookup, bounds  # all functions are followed, or none of their instructions

    def _straight_code(self, start: Svma, end: Svma) -> tuple[()]:
        del start, end
        return ()  # no linker lists labels of such code

    def _followed(self, start: Svma, end: Svma, *, with_volatile: bool = False) -> _Function | None:
        del with_volatile
        code = bytes(self._contents.read_svma(start, end - start))
        budget = self._budget
        is_thumb = self._sets.is_thumb(start, code)
        instructions = Code(
            code, start, is_thumb=is_thumb, data=self._data_in(start, end), budget=budget
        )
        return None if budget.is_used_up else _Function(instructions, self._entry, budget)

    def _data_in(self, start: int, end: int) -> list[Range]:
        first = max(0, bisect_right(self._data_starts, start) - 1)
        last = bisect_right(self._data_starts, end)
        ranges = ((low - start, high - start) for low, high in self._data[first:last])
        return [(max(low, 0), high) for low, high in ranges if high > 0 and low < end - start]
