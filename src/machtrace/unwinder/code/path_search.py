"""Searches for the exits that a state leads to, through a function's blocks.

It settles contradictions between two states: with the right one, the function returns with sp
restored and the caller's registers in place.
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
"""Blocks searched for a proper return."""

OutlinedBody = Callable[[int], tuple[Effect, ...] | None]
"""Returns all effects of the callee at a distance from the function's start, in bytes, without the
return, and with a :class:`~machtrace.unwinder.code.effects.Call` at the end for a jump to another
function; None unless it is so short and simple that the compiler may have outlined it."""

_STEPS_AN_EFFECT = 2
_CALL_ALIGNMENT = 16
"""The alignment of the CFA, and of sp at calls, in bytes (x86-64)."""


def after_all(state: FrameState, effects: Sequence[Effect]) -> FrameState:
    """Return the state after instructions that fall through."""
    for effect in effects:
        state = state.after(effect)
    return state


def _loses_caller(state: FrameState) -> bool:
    """Return whether no compiler calls in a state.

    The call would overwrite the return address, or sp has not the alignment of the ABI.
    """
    machine, wanted = state.machine, state.machine.return_address
    if wanted.register not in machine.indices:
        offset = state.sp_offset
        is_64 = machine.word == 8  # noqa: PLR2004 (bytes)
        return is_64 and offset is not None and offset % _CALL_ALIGNMENT != 0
    return (
        state.value(wanted.register) == wanted
        and state.values.count(wanted) == 1
        and wanted not in state.slots.values()
    )


class PathSearch:
    """Runs states through the blocks of one function, and caches the results."""

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
        "is_threaded",
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
        self.is_threaded = False
        """Whether the function jumps from one part to another through pointers, as interpreters
        do."""
        self._passed: dict[int, tuple[FrameState, FrameState]] = {}
        """The last state queried before a block, and the one at its end, by block."""
        self._promised: dict[tuple[int, int], tuple[int, FrameState]] = {}
        """The promise of a state before a block, by block and the state's identity; and the state,
        which keeps that identity valid."""
        self._tried: dict[tuple[object, ...], FrameState] = {}
        """The first of equal states."""

    def forget(self) -> None:
        """Clear the caches."""
        self._passed.clear()
        self._promised.clear()
        self._tried.clear()

    def through(self, block: int, state: FrameState) -> FrameState:
        """Return the state at the end of a block that is entered with ``state``."""
        effects = self._blocks.effects(block)
        if not effects:
            return state
        # Most states are searched before they are followed, and followed with the result.
        known = self._passed.get(block)
        if known is not None and (known[0] is state or known[0] == state):
            self._budget.left -= 1
            return known[1]
        self._budget.left -= len(effects) * _STEPS_AN_EFFECT
        end = after_all(state, effects)
        self._passed[block] = (state, end)
        return end

    def after_call(self, block: int, call: Call, state: FrameState) -> FrameState:
        """Return the state after a call, if it returns."""
        if call.distance is not None:
            body = self._outlined((self._blocks.ends[block] - 1) * self._unit + call.distance)
            if body is not None:
                self._budget.left -= len(body) * _STEPS_AN_EFFECT
                after = after_all(state.after(self._linking), body)
                # A callee that switches stacks returns with everything restored.
                if after.sp_offset is not None or state.sp_offset is None:
                    return after
        return state.after(call)

    def promise(  # noqa: C901, PLR0912 - a search, and what it remembers
        self, block: int, state: FrameState
    ) -> int:
        """Return 1 if a state leads to a proper return, -1 if only to improper ones, 0 if to none.

        One proper return outweighs improper ones: the code after a call that never returns, or data
        in the code, leads anywhere.
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
            cached = known.get((block, id(state)))
            if cached is not None and cached[0] == 0:
                continue
            end = state
            verdict: bool | None = cached is not None
            if cached is None:
                end = self.through(block, state)
                verdict = self.verdict(block, end)
                if isinstance(self._blocks.leaving[block], Call) and _loses_caller(end):
                    verdict = False
            if verdict:
                # Every state on the path here has the same promise.
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
        # Only an exhaustive search proves that no return is reached.
        if not paths and not promise:
            for block, (state, _) in tried.items():
                known[block, id(state)] = (0, state)
        return promise

    def verdict(  # noqa: PLR0911 - one for each way to leave
        self, block: int, state: FrameState
    ) -> bool | None:
        """Return whether leaving the function at a block's end is proper; None if inconclusive."""
        leaving = self._blocks.leaving[block]
        if isinstance(leaving, Return):
            return state.is_restored(leaving.register)
        if isinstance(leaving, Jump) and self._blocks.targets[block] == OUTSIDE:
            target = (self._blocks.ends[block] - 1) * self._unit + leaving.distance
            body = self._outlined(target)
            if body is not None:
                self._budget.left -= len(body) * _STEPS_AN_EFFECT
                is_passed_on = bool(body) and isinstance(body[-1], Call)
                before = body[:-1] if is_passed_on else body
                return after_all(state, before).is_restored(self._return_register)
            if state.is_restored(self._return_register):
                return True
            # With sp below, the target may be an outlined part of this function.
            return False if (state.sp_offset or 0) > 0 else None
        if isinstance(leaving, IndirectJump):
            if (state.sp_offset or 0) > 0:
                return False
            if self.is_tail_call(block, state):
                return True
        # Any other indirect jump proves nothing: most lead to another case of a switch.
        return None

    def is_tail_call(self, block: int, state: FrameState) -> bool:
        """Return whether the indirect jump at a block's end leaves the function for another."""
        return (
            not self.is_threaded
            and bool(self._blocks.jumps_to_pointer(block))
            and bool(state.is_restored(self._return_register))
        )

    def _onwards(self, block: int, state: FrameState) -> Iterator[tuple[int, FrameState]]:
        """Yield the blocks that follow a block, and the states there; the likeliest last."""
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
