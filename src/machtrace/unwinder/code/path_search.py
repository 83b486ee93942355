"""What states lead to when they are run on, through a function's blocks, until it is left.

A contradiction between two states is settled so: in the right one, the function returns with sp
where it was and with the caller's registers in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from machtrace.unwinder.code.blocks import OUTSIDE, Blocks
from machtrace.unwinder.code.effects import (
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.step_budget import StepBudget

TRIAL_LIMIT = 64
"""Blocks looked at to see whether a state leads to a proper return."""

OutlinedBody = Callable[[int], tuple[Effect, ...] | None]
"""By distance in bytes from the function's start: all that the callee there does, without the
return, where it is so short and simple that the compiler may have cut it out of its callers; else
None."""

_STEPS_AN_EFFECT = 2


def after_all(state: FrameState, effects: Sequence[Effect]) -> FrameState:
    """The state behind instructions that go on each to the next."""
    for effect in effects:
        state = state.after(effect)
    return state


class PathSearch:
    """Runs states through the blocks of one function, and remembers what came of it."""

    __slots__ = (
        "_blocks",
        "_budget",
        "_linking",
        "_outlined",
        "_passed",
        "_promised",
        "_return_register",
        "_tried",
        "_unit",
    )

    def __init__(
        self,
        blocks: Blocks,
        entry: FrameState,
        outlined: OutlinedBody,
        unit: int,
        budget: StepBudget,
    ) -> None:
        """See :class:`~machtrace.unwinder.code.data_flow.Flow`; ``blocks`` are of its code."""
        self._blocks = blocks
        self._outlined = outlined
        self._unit = unit
        self._budget = budget
        self._return_register = entry.machine.return_address.register
        self._linking = Writes((self._return_register,))
        self._passed: dict[int, tuple[FrameState, FrameState]] = {}
        """By block: the last state before it that was asked for, and what was found behind it."""
        self._promised: dict[tuple[int, int], tuple[int, FrameState]] = {}
        """By block and identity of a state before it: what it leads to, and the state."""
        self._tried: dict[tuple[object, ...], FrameState] = {}
        """Of equal states that were tried, the first."""

    def forget(self) -> None:
        """Let go of what is remembered to be quick."""
        self._passed.clear()
        self._promised.clear()
        self._tried.clear()

    def through(self, block: int, state: FrameState) -> FrameState:
        """The state at the end of a block that is entered with ``state``."""
        effects = self._blocks.effects(block)
        if not effects:
            return state
        # Most are tried before they are followed, and followed with what was tried.
        known = self._passed.get(block)
        if known is not None and (known[0] is state or known[0] == state):
            self._budget.left -= 1
            return known[1]
        self._budget.left -= len(effects) * _STEPS_AN_EFFECT
        end = after_all(state, effects)
        self._passed[block] = (state, end)
        return end

    def after_call(self, block: int, call: Call, state: FrameState) -> FrameState:
        """The state behind a call, if it returns."""
        if call.distance is not None:
            body = self._outlined((self._blocks.ends[block] - 1) * self._unit + call.distance)
            if body is not None:
                self._budget.left -= len(body) * _STEPS_AN_EFFECT
                after = after_all(state.after(self._linking), body)
                # What goes to another stack comes back with all as it was.
                if after.sp_offset is not None or state.sp_offset is None:
                    return after
        return state.after(call)

    def promise(  # noqa: C901 - a search, and what it remembers
        self, block: int, state: FrameState
    ) -> int:
        """1 if a state leads to a proper return, -1 if only to improper ones, 0 if to none.

        One proper return outweighs the others: what stands behind a call that never returns, or
        data among the code, leads anywhere.
        """
        known, budget = self._promised, self._budget
        budget.left -= 2
        state = self._tried.setdefault(state.identity, state)
        tried: dict[int, tuple[FrameState, int]] = {}
        paths = [(block, state, -1)]
        promise = 0
        for _ in range(TRIAL_LIMIT):
            if not paths or budget.left <= 0:
                break
            block, state, came_from = paths.pop()
            if block in tried:
                continue
            tried[block] = (state, came_from)
            budget.left -= 2
            found = known.get((block, id(state)))
            if found is not None and found[0] == 0:
                continue
            end = state
            verdict: bool | None = found is not None
            if found is None:
                end = self.through(block, state)
                verdict = self.verdict(block, end)
            if verdict:
                while block >= 0:
                    state, came_from = tried[block]
                    known[block, id(state)] = (1, state)
                    block = came_from
                return 1
            if verdict is False:
                promise = -1
            for onwards, following in self._onwards(block, end):
                if onwards not in tried:
                    paths.append((onwards, following, block))
        if not paths and not promise:
            for block, (state, _) in tried.items():
                known[block, id(state)] = (0, state)
        return promise

    def verdict(self, block: int, state: FrameState) -> bool | None:
        """Whether leaving the function at a block's end is proper; None where nobody leaves."""
        leaving = self._blocks.leaving[block]
        if isinstance(leaving, Return):
            return state.is_restored(leaving.register)
        if isinstance(leaving, Jump) and self._blocks.targets[block] == OUTSIDE:
            target = (self._blocks.ends[block] - 1) * self._unit + leaving.distance
            body = self._outlined(target)
            if body is not None:
                self._budget.left -= len(body) * _STEPS_AN_EFFECT
                return after_all(state, body).is_restored(self._return_register)
            if state.is_restored(self._return_register):
                return True
            # With sp below, it may lead to a part of this function that was cut out.
            return False if (state.sp_offset or 0) > 0 else None
        if isinstance(leaving, IndirectJump) and (state.sp_offset or 0) > 0:
            return False
        # Any other indirect jump says nothing: most lead to another case of a switch.
        return None

    def _onwards(self, block: int, state: FrameState) -> Iterator[tuple[int, FrameState]]:
        """Where a block goes on, and with which state; the likeliest last."""
        leaving = self._blocks.leaving[block]
        if isinstance(leaving, IndirectJump | Return | Trap):
            return
        is_last = block + 1 == len(self._blocks)
        if isinstance(leaving, Jump):
            if leaving.is_conditional and not is_last:
                yield block + 1, state
            target = self._blocks.targets[block]
            if target is not None and target != OUTSIDE:
                yield target, state
        elif not is_last:
            after = state if leaving is None else self.after_call(block, leaving, state)
            yield block + 1, after
