"""The basic blocks of a function: runs of instructions that are entered at the first only."""

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
    LoadIndexed,
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
"""Instructions per block; the state in a block is computed from its start."""

OUTSIDE = -1
"""The number of a block outside of the function."""

Leaving = Jump | IndirectJump | Call | Return | Trap
"""The instructions that end a block."""
_LEAVING = frozenset({Jump, IndirectJump, Call, Return, Trap})


class Blocks:
    """The blocks of one function, numbered in code order.

    Instructions that cannot change a :class:`FrameState` are skipped.
    """

    __slots__ = (
        "_code",
        "_effects",
        "_known",
        "_machine",
        "_needed",
        "_pointers",
        "_sp",
        "_valued",
        "ends",
        "leaving",
        "starts",
        "targets",
    )

    def __init__(self, code: Sequence[Effect], entry: FrameState, unit: int) -> None:
        """``unit``: bytes, or indices, of a distance in ``code`` per instruction."""
        self._code = code
        needed = all_registers(entry.machine)
        if not any(entry.value(register) for register in entry.machine.volatile):
            needed = live_registers(code, entry.machine)
        self._machine = entry.machine
        self._sp = entry.machine.sp
        self._pointers: dict[int, bool | None] = {}
        self._needed, self._valued = needed.followed, needed.valued
        self._known: dict[int, Effect | None] = {}
        """The effect of an instruction on a state, if any, by the instruction's identity."""
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
        """The index of each block's first instruction."""
        self.ends = [*self.starts[1:], size] if size else []
        """The index after each block's last instruction."""
        self.leaving: list[Leaving | None] = []
        """The instruction that ends each block; None if the block falls through."""
        for end in self.ends:
            last = code[end - 1]
            self.leaving.append(last if isinstance(last, Leaving) else None)
        numbers = {start: number for number, start in enumerate(self.starts)}
        self.targets = [
            numbers.get(jumps[end - 1], OUTSIDE) if end - 1 in jumps else None for end in self.ends
        ]
        """The block that each block's jump leads to, or :data:`OUTSIDE`; None without a jump."""
        self._effects: list[tuple[Effect, ...] | None] = [None] * len(self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    def jumps_to_pointer(self, number: int) -> bool | None:
        """Return whether the indirect jump at a block's end goes to a function's address.

        True if it is an argument, or was loaded from a location that no index selects: from a table
        of virtual functions, or a variable. False if it was computed, as the cases of a switch are
        from an index. None if unknown.
        """
        if number not in self._pointers:
            leaving = self.leaving[number]
            self._pointers[number] = (
                self._has_pointer(self.ends[number] - 1, leaving)
                if isinstance(leaving, IndirectJump)
                else None
            )
        return self._pointers[number]

    def _has_pointer(  # noqa: C901, PLR0911 - one branch a kind
        self, index: int, jump: IndirectJump
    ) -> bool | None:
        frame = (self._machine.sp, self._machine.fp)
        if jump.base is not None:
            return jump.base not in frame or None
        register = jump.register
        if register not in self._machine.indices:
            return None  # of an address without a base, or with an index
        for instruction in reversed(self._code[max(0, index - LONGEST) : index]):
            match instruction:
                case Load(registers, _, base, _, write_back) if register in registers:
                    return (base not in frame and not write_back) or None
                case MoveRegister(destination, source) | AddConstant(destination, source, 0):
                    register = source if destination == register else register
                case Jump(_, is_conditional):
                    if not is_conditional:
                        return None
                case Store():
                    pass
                case _:
                    if type(instruction) in _LEAVING:
                        return None
                    if register in _written(instruction):
                        return False
        return index <= LONGEST or None  # since the function's start it is unchanged

    def effects(self, number: int) -> tuple[Effect, ...]:
        """Return the effects of a block, without its last instruction if that leaves it."""
        effects = self._effects[number]
        if effects is None:
            end = self.ends[number] - (self.leaving[number] is not None)
            effects = self._effects[number] = self._between(self.starts[number], end)
        return effects

    def effects_before(self, index: int) -> tuple[int, tuple[Effect, ...]]:
        """Return the block of an instruction, and the effects in it before the instruction."""
        number = bisect_right(self.starts, index) - 1
        return number, self._between(self.starts[number], index)

    def _between(self, start: int, end: int) -> tuple[Effect, ...]:
        known = self._known
        effects: list[Effect] = []
        written: list[int] = []
        for instruction in self._code[start:end]:
            key = id(instruction)
            effect = known[key] if key in known else known.setdefault(key, self._of(instruction))
            if effect is None:
                continue
            if type(effect) is Writes:  # consecutive ones become one
                written += effect.registers
                continue
            if written:
                effects.append(Writes(tuple(written)))
                written.clear()
            effects.append(effect)
        if written:
            effects.append(Writes(tuple(written)))
        return tuple(effects)

    def _of(  # noqa: PLR0911 - one branch a kind
        self, instruction: Effect
    ) -> Effect | None:
        """Return an instruction's effect on the needed registers, or None."""
        needed, valued = self._needed, self._valued
        match instruction:
            case Writes(registers):
                return _writes(tuple(register for register in registers if register in needed))
            case MoveRegister(destination, source):
                if destination not in needed:
                    return None
                if destination in valued or (source in needed and source != self._sp):
                    return instruction  # it may be the caller's value
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


def _written(instruction: Effect) -> tuple[int, ...]:
    """Return the registers that a computation sets."""
    match instruction:
        case Writes(registers):
            return registers
        case (
            AddConstant(destination)
            | SetConstant(destination)
            | InsertConstant(destination)
            | AddRegister(destination)
            | LoadIndexed(destination)
        ):
            return (destination,)
        case _:
            return ()


def _writes(registers: tuple[int, ...]) -> Writes | None:
    return Writes(registers) if registers else None
