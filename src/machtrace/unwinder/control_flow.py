"""The state before every instruction of a function, found along its control flow.

States spread from the entry along jumps and from each instruction to the next; where paths meet,
what they do not agree on is unknown. What makes this more than textbook data flow is that two
kinds of edges cannot be read off the code:

- Whether a call returns. If it does not, what stands behind it is reached from elsewhere, maybe
  with another frame. So these edges are followed last, and where one leads to a state that
  contradicts what other paths say, the call is taken to be one that does not return.
- Where an indirect jump goes. Code that nothing else reaches is taken to be where the function's
  indirect jumps lead, else (landing pads of exceptions) to have the frame of the calls before it.

A contradiction between two states is settled by running both on: in the right one, the function
returns with sp where it was and with the caller's registers in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from machtrace.unwinder.frame_state import FrameState
from machtrace.unwinder.instruction_effects import (
    Call,
    IndirectJump,
    Instruction,
    Jump,
    Return,
    Trap,
    Writes,
)

TRIAL_LIMIT = 400
"""Instructions looked at to see whether a state leads to a proper return."""

WORK_PER_INSTRUCTION = 32
WORK_AT_LEAST = 8192
"""Instructions looked at, all in all; no compiled function was seen to need a tenth of it."""
WORK_AT_MOST = 1 << 18
"""The same, of functions of any size."""

OutlinedBody = Callable[[int], tuple[Instruction, ...] | None]
"""By distance in bytes from the function's start: all that the callee there does, without the
return, where it is so short and simple that the compiler may have cut it out of its callers; else
None."""


def _no_outlined_body(_: int) -> None:
    return None


class Flow:
    """The states of one function. Making it does the work, bounded by the function's size."""

    __slots__ = (
        "_after_calls",
        "_budget",
        "_code",
        "_entry",
        "_is_sure",
        "_landings",
        "_linking",
        "_next_unreached",
        "_outlined",
        "_reached_calls",
        "_ready",
        "_return_register",
        "_states",
        "_unit",
    )

    def __init__(
        self,
        code: Sequence[Instruction],
        entry: FrameState,
        outlined: OutlinedBody = _no_outlined_body,
        *,
        unit: int = 4,
    ) -> None:
        """``unit``: how much of a distance in ``code`` leads to the next instruction."""
        self._code = code
        self._entry = entry
        self._outlined = outlined
        self._unit = unit
        self._return_register = entry.machine.return_address.register
        self._linking = Writes((self._return_register,))
        self._states: list[FrameState | None] = [None] * len(code)
        self._is_sure = bytearray(len(code))
        self._ready: list[tuple[int, FrameState]] = [(0, entry)]
        self._after_calls: deque[tuple[int, FrameState]] = deque()
        self._landings: list[_Landing] = []
        self._next_unreached = 0
        self._reached_calls = _Places(len(code))
        self._budget = min(WORK_PER_INSTRUCTION * len(code) + WORK_AT_LEAST, WORK_AT_MOST)
        self._run()

    @property
    def is_complete(self) -> bool:
        """Whether the work came to its end within its bounds."""
        return self._budget > 0

    def state(self, index: int) -> FrameState | None:
        """The state before an instruction; None where it is not known."""
        return self._states[index] if self.is_complete else None

    @property
    def is_balanced(self) -> bool:
        """Whether it leaves its caller's frame as a function should.

        False for code that the compiler cut out of functions: it returns, or jumps on, with sp
        above or below where it was, or without having had its return address.
        """
        verdicts = {
            self._verdict(index, state)
            for index, state in enumerate(self._states)
            if state is not None
        }
        return False not in verdicts or True in verdicts

    def _leaves(self, index: int, jump: Jump) -> bool:
        return not 0 <= index + jump.distance // self._unit < len(self._code)

    def _run(self) -> None:
        while self._budget > 0:
            if self._ready:
                index, state = self._ready.pop()
                self._follow(index, state, sure=True)
            elif self._after_calls:
                index, state = self._after_calls.popleft()
                self._follow(index, state, sure=False)
            elif not self._reach_further():
                return

    def _follow(self, index: int, state: FrameState, *, sure: bool) -> None:
        code, states = self._code, self._states
        while 0 <= index < len(code):
            self._budget -= 1
            if self._budget <= 0:
                return
            known = states[index]
            if known is None:
                self._is_sure[index] = sure
            else:
                merged = self._merge(index, known, state, sure=sure)
                if merged is known:
                    return
                state = merged
            states[index] = state
            instruction = code[index]
            if isinstance(instruction, Call):
                self._reached_calls.add(index)
                self._after_calls.append((index + 1, self._after(index, state)))
                return
            if isinstance(instruction, Jump):
                self._ready.append((index + instruction.distance // self._unit, state))
                if not instruction.is_conditional:
                    return
            elif isinstance(instruction, IndirectJump):
                self._jump_anywhere(state)
                return
            elif isinstance(instruction, Return | Trap):
                return
            else:
                state = state.after(instruction)
            index += 1
            sure = True

    def _after(self, index: int, state: FrameState) -> FrameState:
        """The state behind an instruction that goes on to the next."""
        instruction = self._code[index]
        if isinstance(instruction, Call) and instruction.distance is not None:
            body = self._outlined(index * self._unit + instruction.distance)
            if body is not None:
                self._budget -= len(body)
                state = state.after(self._linking)
                for inner in body:
                    state = state.after(inner)
                return state
        return state.after(instruction)

    def _merge(self, index: int, known: FrameState, new: FrameState, *, sure: bool) -> FrameState:
        joined = known.join(new)
        if joined is not known and known.contradicts(new):
            before, now = self._promise(index, known), self._promise(index, new)
            if before != now:
                return known if before > now else new
            if sure != bool(self._is_sure[index]):
                self._is_sure[index] = True
                return new if sure else known
        self._is_sure[index] |= sure
        return joined

    def _promise(self, index: int, state: FrameState) -> int:
        """1 if a state leads to a proper return, -1 if only to improper ones, 0 if to none.

        One proper return outweighs the others: what stands behind a call that never returns, or
        data among the code, leads anywhere.
        """
        paths = [(index, state)]
        seen: set[int] = set()
        promise = 0
        for _ in range(TRIAL_LIMIT):
            if not paths:
                break
            index, state = paths.pop()
            if index in seen or not 0 <= index < len(self._code):
                continue
            seen.add(index)
            self._budget -= 1
            verdict = self._verdict(index, state)
            if verdict:
                return 1
            if verdict is False:
                promise = -1
            paths += self._onwards(index, state)
        return promise

    def _verdict(self, index: int, state: FrameState) -> bool | None:
        """Whether leaving the function here with this state is proper; None where nobody leaves."""
        instruction = self._code[index]
        if isinstance(instruction, Return):
            return state.is_restored(instruction.register)
        if isinstance(instruction, Jump) and self._leaves(index, instruction):
            body = self._outlined(index * self._unit + instruction.distance)
            if body is not None:
                for inner in body:
                    state = state.after(inner)
                return state.is_restored(self._return_register)
            if state.is_restored(self._return_register):
                return True
            # With sp below, it may lead to a part of this function that was cut out.
            return False if (state.sp_offset or 0) > 0 else None
        # An indirect jump says nothing: most lead to another case of a switch.
        return None

    def _onwards(self, index: int, state: FrameState) -> list[tuple[int, FrameState]]:
        """Where an instruction goes on, and with which state; the likeliest last."""
        instruction = self._code[index]
        if isinstance(instruction, Jump):
            target = (index + instruction.distance // self._unit, state)
            return [(index + 1, state), target] if instruction.is_conditional else [target]
        if isinstance(instruction, IndirectJump | Return | Trap):
            return []
        return [(index + 1, self._after(index, state))]

    def _jump_anywhere(self, state: FrameState) -> None:
        """An indirect jump leads to all code that only indirect jumps lead to."""
        for landing in self._landings:
            self._budget -= 1
            if not landing.state.contradicts(state):
                break
        else:
            self._landings.append(_Landing(state))
            return
        joined = landing.state.join(state)
        if joined != landing.state:
            landing.state = joined
            self._ready += [(target, joined) for target in landing.targets]

    def _reach_further(self) -> bool:
        """Start again at the first instruction that nothing reached; False if there is none."""
        code, states = self._code, self._states
        for index in range(self._next_unreached, len(code)):
            if states[index] is not None or isinstance(code[index], Trap):
                continue
            self._next_unreached = index + 1
            self._budget -= 1 + len(self._landings)
            if self._budget <= 0:
                return False
            best = self._best_candidate(index)
            if best is None:
                continue
            for landing in self._landings:
                if landing.state is best:
                    landing.targets.append(index)
            self._follow(index, best, sure=False)
            return True
        return False

    def _best_candidate(self, index: int) -> FrameState | None:
        """The likeliest state that leads to a proper return, else one that leads to none."""
        best: FrameState | None = None
        tried: list[FrameState] = []
        for state in self._candidates(index):
            if state in tried:
                continue
            tried.append(state)
            promise = self._promise(index, state)
            if promise > 0:
                return state
            if promise == 0 and best is None:
                best = state
        return best

    def _candidates(self, index: int) -> Iterator[FrameState]:
        """States that code at ``index``, which nothing reached, may have; likeliest first."""
        landings = [landing.state for landing in self._landings[:_LANDINGS_TRIED]]
        tail_calls = [state for state in landings if state.is_restored(self._return_register)]
        yield from (state for state in landings if state not in tail_calls)
        # Landing pads have the frame of the calls that they are for.
        for at in (self._reached_calls.before(index), self._reached_calls.behind(index)):
            state = None if at is None else self._states[at]
            if state is not None:
                yield state
        yield from tail_calls
        yield self._entry


class _Places:
    """Indices of a list that grow in number; the nearest of them is found without a search."""

    __slots__ = ("_blocks", "_marks")

    def __init__(self, size: int) -> None:
        self._marks = bytearray(size)
        self._blocks = bytearray(size // _BLOCK + 1)
        """Which blocks of marks have any."""

    def add(self, index: int) -> None:
        self._marks[index] = 1
        self._blocks[index // _BLOCK] = 1

    def before(self, index: int) -> int | None:
        """The last that is below ``index``."""
        block = index // _BLOCK
        found = self._marks.rfind(1, block * _BLOCK, index)
        if found < 0:
            block = self._blocks.rfind(1, 0, block)
            if block >= 0:
                found = self._marks.rfind(1, block * _BLOCK, (block + 1) * _BLOCK)
        return found if found >= 0 else None

    def behind(self, index: int) -> int | None:
        """The first that is above ``index``."""
        block = index // _BLOCK
        found = self._marks.find(1, index + 1, (block + 1) * _BLOCK)
        if found < 0:
            block = self._blocks.find(1, block + 1)
            if block >= 0:
                found = self._marks.find(1, block * _BLOCK, (block + 1) * _BLOCK)
        return found if found >= 0 else None


class _Landing:
    """What is known where indirect jumps lead that have the same frame."""

    __slots__ = ("state", "targets")

    def __init__(self, state: FrameState) -> None:
        self.state = state
        self.targets: list[int] = []


_LANDINGS_TRIED = 4
_BLOCK = 512
