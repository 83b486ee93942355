"""The state before every instruction of a function, found along its control flow.

States spread from the entry along jumps and from each instruction to the next; where paths meet,
only what they agree on is known. What distinguishes this from textbook data flow is that two kinds
of edges are not in the code:

- Whether a call returns. If it does not, the code after it is reached from elsewhere, maybe with
  another frame, or is of the next function. So these edges are followed last; if one leads to a
  state that contradicts the other paths, or to a second prologue, the call is assumed not to
  return.
- The target of an indirect jump. Code that nothing else reaches is assumed to be the target of the
  function's indirect jumps, else (landing pads of exceptions) to have the frame of nearby calls. A
  jump to a loaded pointer, where the caller's frame is restored, is a tail call.

A contradiction between two states is settled by running both on: with the right one, the function
returns with sp restored and the caller's registers in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from machtrace.unwinder.code.blocks import OUTSIDE, Blocks
from machtrace.unwinder.code.effects import (
    Call,
    Effect,
    IndirectJump,
    Jump,
    Return,
    Store,
    Trap,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.path_search import OutlinedBody, PathSearch, after_all
from machtrace.unwinder.step_budget import WALK_STEPS, StepBudget

_BLOCK = 512


class MarkedIndices:
    """Marked indices of a list; finds the nearest marked index without scanning the list."""

    __slots__ = ("_blocks", "_marks")

    def __init__(self, size: int) -> None:
        """``size``: of the list; no index is marked."""
        self._marks = bytearray(size)
        self._blocks = bytearray(size // _BLOCK + 1)
        """Whether a block of marks has any."""

    def add(self, index: int) -> None:
        """Mark an index."""
        self._marks[index] = 1
        self._blocks[index // _BLOCK] = 1

    def before(self, index: int) -> int | None:
        """Return the last marked index below ``index``."""
        # Search the index's own block, then the nearest block that has a mark.
        block = index // _BLOCK
        mark = self._marks.rfind(1, block * _BLOCK, index)
        if mark < 0:
            block = self._blocks.rfind(1, 0, block)
            if block >= 0:
                mark = self._marks.rfind(1, block * _BLOCK, (block + 1) * _BLOCK)
        return mark if mark >= 0 else None

    def after(self, index: int) -> int | None:
        """Return the first marked index above ``index``."""
        block = index // _BLOCK
        mark = self._marks.find(1, index + 1, (block + 1) * _BLOCK)
        if mark < 0:
            block = self._blocks.find(1, block + 1)
            if block >= 0:
                mark = self._marks.find(1, block * _BLOCK, (block + 1) * _BLOCK)
        return mark if mark >= 0 else None


STEPS_PER_INSTRUCTION = 20
MIN_STEPS = 4096
"""The least step budget of a function if the caller sets none; compiled functions need less than a
third of it."""

_LANDINGS_TRIED = 4


class _Landing:
    """The state of indirect jumps with the same frame, and the blocks they may lead to."""

    __slots__ = ("is_switch", "state", "targets")

    def __init__(self, state: FrameState, *, is_switch: bool) -> None:
        self.state = state
        self.is_switch = is_switch
        """Whether the target of one of the jumps is computed."""
        self.targets: list[int] = []


def _no_outlined_body(_: int) -> None:
    return None


class Flow:
    """The states of one function, computed on construction within a step budget."""

    __slots__ = (
        "_after_calls",
        "_behind_calls",
        "_blocks",
        "_budget",
        "_doubts_calls",
        "_ends",
        "_entry",
        "_is_sure",
        "_landings",
        "_next_unreached",
        "_reached_calls",
        "_ready",
        "_return_register",
        "_runs",
        "_size",
        "_states",
        "_verdicts",
        "is_complete",
    )

    def __init__(
        self,
        code: Sequence[Effect],
        entry: FrameState,
        outlined: OutlinedBody = _no_outlined_body,
        *,
        unit: int = 4,
        budget: StepBudget | None = None,
    ) -> None:
        """Follow ``code`` from its start.

        Args:
            code: the instructions of a function.
            entry: the state before the first.
            outlined: see :data:`OutlinedBody`.
            unit: bytes, or indices, of a distance in ``code`` per instruction.
            budget: the steps that may be spent; None for the need of functions of this size.
        """
        self._entry = entry
        self._size = len(code)
        self._return_register = entry.machine.return_address.register
        steps = min(STEPS_PER_INSTRUCTION * len(code) + MIN_STEPS, WALK_STEPS)
        self._budget = StepBudget(steps) if budget is None else budget
        self._ready: list[tuple[int, FrameState]] = [(0, entry)]
        self._after_calls: dict[int, FrameState] = {}
        """The last state after the call before a block, by block, for those still to be
        followed."""
        self._behind_calls: list[int] = []
        """Those blocks, as a heap."""
        self._landings: list[_Landing] = []
        self._next_unreached = 0
        self.is_complete = False
        """Whether the analysis ended within its budget."""
        self._verdicts: set[bool | None] | None = None
        if not self._budget.afford(len(code)):
            return
        self._blocks = blocks = Blocks(code, entry, unit)
        self._runs = PathSearch(blocks, entry, outlined, unit, self._budget)
        self._doubts_calls = False
        self._follow_all()
        if self._returns_lowered():
            self._doubts_calls = True
            self._ready = [(0, entry)]
            self._after_calls.clear()
            self._behind_calls.clear()
            self._landings.clear()
            self._next_unreached = 0
            self._follow_all()
        self.is_complete = not self._budget.is_used_up
        self._runs.forget()

    def _follow_all(self) -> None:
        blocks = self._blocks
        self._states: list[FrameState | None] = [None] * len(blocks)
        """The state before the first instruction of each block."""
        self._ends: list[FrameState | None] = [None] * len(blocks)
        """The state before each block's last instruction, if that leaves the block."""
        self._is_sure = bytearray(len(blocks))
        self._reached_calls = MarkedIndices(len(blocks))
        self._run()

    def _returns_lowered(self) -> bool:
        """Return whether a return is reached with sp below the caller's, after a call."""
        entry_sp = self._entry.machine.entry_sp
        return self._reached_calls.before(len(self._ends)) is not None and any(
            state is not None
            and isinstance(leaving, Return)
            and state.sp_offset is not None
            and state.sp_offset < entry_sp
            for leaving, state in zip(self._blocks.leaving, self._ends, strict=True)
        )

    def state(self, index: int) -> FrameState | None:
        """Return the state before an instruction; None if unknown."""
        if not self.is_complete or not 0 <= index < self._size:
            return None
        block, effects = self._blocks.effects_before(index)
        state = self._states[block]
        return None if state is None else after_all(state, effects)

    def leaving(self) -> Iterator[tuple[Jump | IndirectJump | Return, FrameState]]:
        """Yield the instructions that may leave the function, and the states before them."""
        if not self.is_complete:
            return
        for leaving, target, state in zip(
            self._blocks.leaving, self._blocks.targets, self._ends, strict=True
        ):
            if state is None or not isinstance(leaving, Jump | IndirectJump | Return):
                continue
            if target is None or target == OUTSIDE:
                yield leaving, state

    @property
    def is_direct(self) -> bool:
        """Whether all its successors are known: no call, which may not return, no indirect jump."""
        return self.is_complete and not any(
            isinstance(leaving, Call | IndirectJump) for leaving in self._blocks.leaving
        )

    @property
    def is_balanced(self) -> bool:
        """Whether it restores its caller's frame as a function should.

        False for code that the compiler outlined: it returns, or jumps on, with sp above or below
        its entry value, or before the return address is restored.
        """
        if not self.is_complete:
            return True
        if self._verdicts is None:
            self._verdicts = {
                self._runs.verdict(block, state)
                for block, state in enumerate(self._ends)
                if state is not None
            }
        return False not in self._verdicts or True in self._verdicts

    def _run(self) -> None:
        budget = self._budget
        while budget.left > 0:
            if self._ready:
                block, state = self._ready.pop()
                self._follow(block, state, sure=True)
            elif self._after_calls:
                # In code order, so that later code is seldom followed twice.
                block = heappop(self._behind_calls)
                state = self._after_calls.pop(block)
                if not self._begins_function(block, state):
                    self._follow(block, state, sure=False)
            elif not self._reach_further():
                return

    def _begins_function(self, block: int, state: FrameState) -> bool:
        """Return whether a block after a call, with its ``state``, belongs to another function.

        It saves registers, and returns with sp lowered: the call never returns. In code where any
        return has sp lowered, so do blocks that return properly from the state at the entry.
        """
        if self._doubts_calls and block < len(self._states) and self._states[block] is None:
            runs = self._runs
            if runs.promise(block, state) < 0 < runs.promise(block, self._entry):
                return True
        effects = self._blocks.effects(block) if block < len(self._states) else ()
        first = effects[0] if effects else None
        return (
            isinstance(first, Store)
            and first.write_back < 0
            and first.base == state.machine.sp
            and not state.machine.preserved.isdisjoint(first.registers)
            and self._states[block] is None
            and self._runs.promise(block, state) < 0
        )

    def _follow(  # noqa: C901 - one branch a kind of leaving
        self, block: int, state: FrameState, *, sure: bool
    ) -> None:
        blocks, states, budget = self._blocks, self._states, self._budget
        while block < len(states):
            budget.left -= 2
            if budget.left <= 0:
                return
            known = states[block]
            if known is None:
                self._is_sure[block] = sure
            else:
                merged = self._merge(block, known, state, sure=sure)
                if merged is known:
                    return
                state = merged
            states[block] = state
            state = self._ends[block] = self._runs.through(block, state)
            leaving = blocks.leaving[block]
            if leaving is not None:
                target = blocks.targets[block]
                if target is not None:
                    if target != OUTSIDE:
                        self._ready.append((target, state))
                    if not leaving.is_conditional:  # type: ignore[union-attr] # it is a jump
                        return
                elif isinstance(leaving, Call):
                    self._call(block, leaving, state)
                    return
                else:
                    if isinstance(leaving, IndirectJump):
                        self._jump_anywhere(block, state)
                    return
            block += 1
            sure = True

    def _call(self, block: int, call: Call, state: FrameState) -> None:
        """Record that a call at a block's end, made with ``state``, may return."""
        self._reached_calls.add(block)
        if block + 1 not in self._after_calls:
            heappush(self._behind_calls, block + 1)
        self._after_calls[block + 1] = self._runs.after_call(block, call, state)

    def _merge(self, block: int, known: FrameState, new: FrameState, *, sure: bool) -> FrameState:
        if known is not new:
            self._budget.left -= 2 + len(known.slots) // 8
        joined = known.join(new)
        if joined is not known and known.contradicts(new):
            before, now = self._runs.promise(block, known), self._runs.promise(block, new)
            if before != now:
                return known if before > now else new
            if sure != bool(self._is_sure[block]):
                self._is_sure[block] = True
                return new if sure else known
        self._is_sure[block] |= sure
        return joined

    def _jump_anywhere(self, block: int, state: FrameState) -> None:
        """Pass ``state`` to all code that only indirect jumps lead to, unless it is a tail call."""
        if self._runs.is_tail_call(block, state):
            return
        is_pointer = self._blocks.jumps_to_pointer(block)
        if state.sp_offset is not None and is_pointer:
            self._runs.is_threaded = True  # a tail call would have removed the frame
        for landing in self._landings:
            self._budget.left -= 2
            if not landing.state.contradicts(state):
                break
        else:
            self._landings.append(_Landing(state, is_switch=is_pointer is False))
            return
        landing.is_switch = landing.is_switch or is_pointer is False
        joined = landing.state.join(state)
        if joined != landing.state:
            landing.state = joined
            self._budget.left -= len(landing.targets)
            self._ready += [(target, joined) for target in landing.targets]

    def _reach_further(self) -> bool:
        """Restart at the first unreached instruction; return False if there is none."""
        states, budget = self._states, self._budget
        for block in range(self._next_unreached, len(states)):
            if states[block] is not None or self._only_traps(block):
                continue
            self._next_unreached = block + 1
            if self._is_padding(block):
                states[block] = states[block + 1]
                continue
            if not budget.spend(2 + len(self._landings)):
                return False
            best = self._best_candidate(block)
            if best is None:
                continue
            for landing in self._landings:
                if landing.state is best:
                    landing.targets.append(block)
            self._follow(block, best, sure=False)
            return True
        return False

    def _is_padding(self, block: int) -> bool:
        """Return whether a block changes no state, and falls into one that was reached."""
        is_last = block + 1 == len(self._states)
        return (
            not is_last
            and self._states[block + 1] is not None
            and self._blocks.leaving[block] is None
            and not self._blocks.effects(block)
        )

    def _only_traps(self, block: int) -> bool:
        is_trap = isinstance(self._blocks.leaving[block], Trap)
        return is_trap and self._blocks.ends[block] - self._blocks.starts[block] == 1

    def _best_candidate(self, block: int) -> FrameState | None:
        """Return the likeliest state with a proper return, else one with no return at all."""
        best: FrameState | None = None
        tried: list[FrameState] = []
        for state in self._candidates(block):
            if state in tried:
                continue
            tried.append(state)
            promise = self._runs.promise(block, state)
            if promise > 0:
                return state
            if promise == 0 and best is None:
                best = state
        return best

    def _candidates(self, block: int) -> Iterator[FrameState]:
        """Yield the states that an unreached block may have, likeliest first."""
        landings = self._landings[:_LANDINGS_TRIED]
        tail_calls = [
            landing.state
            for landing in landings
            if not landing.is_switch and landing.state.is_restored(self._return_register)
        ]
        yield from (landing.state for landing in landings if landing.state not in tail_calls)
        # Landing pads have the frame of the calls that they serve.
        for at in (self._reached_calls.before(block), self._reached_calls.after(block)):
            state = None if at is None else self._ends[at]
            if state is not None:
                yield state
        yield from tail_calls
        yield self._entry
