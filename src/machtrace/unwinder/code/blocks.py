"""A function in blocks: instructions that run one after the other, entered at the first only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.liveness import all_registers, live_registers

LONGEST = 64
"""Instructions of a block at most: the state within it is found from its start."""

OUTSIDE = -1
"""In place of a block's number: somewhere else than in the function."""

Leaving = Jump | IndirectJump | Call | Return | Trap
"""What ends a block."""
_LEAVING = frozenset({Jump, IndirectJump, Call, Return, Trap})


class Blocks:
    """The blocks of one function, by number, in order of their places in the code.

    Of instructions only those are looked at that can change a :class:`FrameState`.
    """

    __slots__ = (
        "_code",
        "_effects",
        "_known",
        "_needed",
        "_sp",
        "_valued",
        "ends",
        "leaving",
        "starts",
        "targets",
    )

    def __init__(self, code: Sequence[Effect], entry: FrameState, unit: int) -> None:
        """``unit``: how much of a distance in ``code`` leads to the next instruction."""
        self._code = code
        needed = all_registers(entry.machine)
        if not any(entry.value(register) for register in entry.machine.volatile):
            needed = live_registers(code, entry.machine)
        self._sp = entry.machine.sp
        self._needed, self._valued = needed.followed, needed.valued
        self._known: dict[int, Effect | None] = {}
        """By identity of an instruction: what it does to a state, if anything."""
        size = len(code)
        starts = set(range(0, size, LONGEST))
        jumps: dict[int, int] = {}
        for index, instruction in enumerate(code):
            if type(instruction) in _LEAVING:
                starts.add(index + 1)
                if isinstance(instruction, Jump):
                    jumps[index] = target = index + instruction.distance // unit
                    if 0 <= target < size:
                        starts.add(target)
        starts.discard(size)
        self.starts = sorted(starts)
        """Index of each one's first instruction."""
        self.ends = [*self.starts[1:], size] if size else []
        """The index behind each one's last instruction."""
        self.leaving: list[Leaving | None] = []
        """Of each: the instruction at its end; None where it merely goes on."""
        for end in self.ends:
            last = code[end - 1]
            self.leaving.append(last if isinstance(last, Leaving) else None)
        numbers = {start: number for number, start in enumerate(self.starts)}
        self.targets = [
            numbers.get(jumps[end - 1], OUTSIDE) if end - 1 in jumps else None for end in self.ends
        ]
        """Of each that ends in a jump: the block that it leads to, or :data:`OUTSIDE`."""
        self._effects: list[tuple[Effect, ...] | None] = [None] * len(self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    def effects(self, number: int) -> tuple[Effect, ...]:
        """What it does to a state, but for what leaves it."""
        found = self._effects[number]
        if found is None:
            end = self.ends[number] - (self.leaving[number] is not None)
            found = self._effects[number] = self._between(self.starts[number], end)
        return found

    def effects_before(self, index: int) -> tuple[int, tuple[Effect, ...]]:
        """The block that an instruction is in, and what is done in it before."""
        number = bisect_right(self.starts, index) - 1
        return number, self._between(self.starts[number], index)

    def _between(self, start: int, end: int) -> tuple[Effect, ...]:
        known = self._known
        found: list[Effect] = []
        written: list[int] = []
        for instruction in self._code[start:end]:
            key = id(instruction)
            effect = known[key] if key in known else known.setdefault(key, self._of(instruction))
            if effect is None:
                continue
            if type(effect) is Writes:
                written += effect.registers
                continue
            if written:
                found.append(Writes(tuple(written)))
                written.clear()
            found.append(effect)
        if written:
            found.append(Writes(tuple(written)))
        return tuple(found)

    def _of(  # noqa: PLR0911 - one branch a kind
        self, instruction: Effect
    ) -> Effect | None:
        """What it does to a state where nothing is known of registers not needed, if anything."""
        needed, valued = self._needed, self._valued
        match instruction:
            case Writes(registers):
                return _writes(tuple(register for register in registers if register in needed))
            case MoveRegister(destination, source):
                if destination not in needed:
                    return None
                if destination in valued or (source in needed and source != self._sp):
                    return instruction  # it may hold what its caller had in it
                return _writes((destination,))
            case (
                AddConstant(destination)
                | SetConstant(destination)
                | InsertConstant(destination)
                | AddRegister(destination)
            ):
                if destination in valued:
                    return instruction
                return _writes((destination,)) if destination in needed else None
            case Load(registers, _, base, _, write_back):
                if needed.isdisjoint(registers) and not (write_back and base in needed):
                    return None
                return instruction
            case Store(_, _, base):
                return instruction if base in needed else None
            case _:
                return instruction


def _writes(registers: tuple[int, ...]) -> Writes | None:
    return Writes(registers) if registers else None
