"""The instructions of a 32-bit arm function, found by following them, and their effects as a list.

Code of this architecture contains data: jump tables, and constants after the code that loads them.
So a function is not decoded linearly, but from its start, and from jump targets, to instructions
that do not fall through. Code that remains, and is not data, is reached only by an indirect jump or
an exception.

An instruction can have several effects. One that is conditional follows a jump over it, together
with the next instructions that have the same condition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from machtrace.unwinder.arch.arm32 import arm, thumb
from machtrace.unwinder.arch.arm32.registers import ALWAYS, SP, Decoded, TableBranch
from machtrace.unwinder.code.effects import (
    NOTHING,
    TRAP,
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
    Trap,
    Writes,
)
from machtrace.unwinder.step_budget import StepBudget

Range = tuple[int, int]
"""(start, end)."""

_CODE, _DATA = 1, 2
_STEPS_AN_INSTRUCTION = 8


class Code:
    """The instructions of a function."""

    __slots__ = (
        "_budget",
        "_data",
        "_kinds",
        "_later",
        "_ready",
        "bytes",
        "decoded",
        "is_thumb",
        "start",
        "tables",
    )

    def __init__(
        self,
        code: bytes,
        start: int,
        *,
        is_thumb: bool,
        data: Sequence[Range] = (),
        budget: StepBudget | None = None,
    ) -> None:
        """Find the instructions within ``budget``; None for the need of any function.

        ``start`` is the function's Svma; ``data`` are the ranges known to be data, as offsets from
        it, ascending.
        """
        self.bytes = code
        self.start = start
        self.is_thumb = is_thumb
        self.decoded: dict[int, Decoded] = {}
        """By offset from the start."""
        self.tables: dict[int, tuple[int, ...]] = {}
        """The targets of jumps by tables, by the jump's offset."""
        self._budget = StepBudget() if budget is None else budget
        self._kinds = bytearray(len(code))
        self._data = data
        for low, high in data:
            self._claim(low & -self.unit, high, _DATA)
        self._ready = [0]
        self._later: deque[int] = deque()
        """Offsets after calls: some calls never return, and data follow."""
        self._find()

    @property
    def unit(self) -> int:
        """The alignment of instructions."""
        return thumb.UNIT if self.is_thumb else arm.SIZE

    def _find(self) -> None:
        gap = 0
        while not self._budget.is_used_up:
            if self._ready:
                self._follow(self._ready.pop())
            elif self._later:
                self._follow(self._later.popleft())
            else:
                gap = self._kinds.find(0, gap)
                if gap < 0:
                    return
                if gap % self.unit or gap + self.unit > len(self.bytes):
                    self._kinds[gap] = _DATA
                else:
                    self._follow(gap)

    def _follow(self, at: int) -> None:
        conditions: list[int] = []
        while 0 <= at < len(self.bytes) and not self._kinds[at] and at % self.unit == 0:
            decoded = self._decoded(at)
            if conditions:
                decoded = decoded._replace(condition=conditions.pop())
            elif decoded.it:
                conditions = conditions_of(decoded.it)
            self.decoded[at] = decoded
            if not self._budget.spend(_STEPS_AN_INSTRUCTION):
                return
            self._claim(at, at + decoded.size, _CODE)
            if decoded.literal is not None:
                low = (self.start + at & -4) - self.start + decoded.literal.distance
                self._claim(low, low + decoded.literal.size, _DATA)
            following = at + decoded.size
            if self._ends(at, decoded, following):
                return
            at = following

    def _ends(self, at: int, decoded: Decoded, following: int) -> bool:
        """Return whether the straight run ends with an instruction; record its targets."""
        last = decoded.effects[-1] if decoded.effects else None
        is_sure = decoded.condition == ALWAYS
        if isinstance(last, Jump):
            self._ready.append(at + last.distance)
            return is_sure and not last.is_conditional
        if isinstance(last, Call):
            self._later.append(following)
            return True
        if isinstance(last, IndirectJump) and decoded.table is not None:
            targets = self._targets(following, decoded.table)
            if targets:
                self.tables[at] = targets
                self._ready += targets
        return is_sure and isinstance(last, Return | IndirectJump | Trap)

    def _decoded(self, at: int) -> Decoded:
        if not self.is_thumb:
            return arm.decode(int.from_bytes(self.bytes[at : at + 4], "little"))
        first = int.from_bytes(self.bytes[at : at + 2], "little")
        if not thumb.is_wide(first):
            return thumb.decode(first)
        if at + 4 > len(self.bytes) or self._kinds[at + 2]:
            return Decoded(thumb.UNIT, (TRAP,))
        second = int.from_bytes(self.bytes[at + 2 : at + 4], "little")
        return thumb.decode(first, second)

    def _claim(self, low: int, high: int, kind: int) -> None:
        """Claim bytes that are unclaimed; of data, all or none."""
        low, high = max(low, 0), min(high, len(self.bytes))
        high = min(-(-high // self.unit) * self.unit, len(self.bytes))
        if low < high and (kind == _CODE or self._kinds.find(_CODE, low, high) < 0):
            self._kinds[low:high] = bytes((kind,)) * (high - low)

    def _targets(self, table: int, branch: TableBranch) -> tuple[int, ...]:
        """Return the targets of a jump table, which ends before the first of them."""
        size = branch.entry_size
        scale = 1 if size == arm.SIZE else thumb.UNIT
        stated = bisect_right(self._data, (table, len(self.bytes))) - 1
        is_stated = stated >= 0 and table < self._data[stated][1]
        end = self._data[stated][1] if is_stated else len(self.bytes)
        targets: dict[int, None] = {}
        at = table
        while at + size <= end and self._kinds[at] != _CODE and self._budget.spend(1):
            target = table + scale * int.from_bytes(self.bytes[at : at + size], "little")
            if not at < target < len(self.bytes) or target % self.unit:
                break
            targets[target] = None
            at += size
            if not is_stated:
                end = min(end, target)
        self._claim(table, at, _DATA)
        return tuple(targets)


def conditions_of(it: int) -> list[int]:
    """Return the conditions of the instructions after IT, the last first."""
    first, mask = it >> 4, it & 15
    length = 4 - (mask & -mask).bit_length() + 1
    others = [first & 14 | mask >> (4 - i) & 1 for i in range(1, length)]
    return [first, *others][::-1]


_NEVER = 15


class ArmEffects:
    """The effects of a function's instructions; distances of jumps are in effects."""

    __slots__ = ("_code", "_jumps", "_skipped_to", "effects", "indices")

    def __init__(self, code: Code) -> None:
        self._code = code
        self.effects: list[Effect] = []
        self.indices: dict[int, int] = {}
        """The index of the first effect of an instruction, by its offset from the function's start,
        ascending."""
        self._jumps: list[tuple[int, int]] = []
        self._skipped_to = 0
        following = 0
        for at, decoded in sorted(code.decoded.items()):
            if at != following:
                self.effects.append(TRAP)  # data
            following = at + decoded.size
            self.indices[at] = len(self.effects)
            self._add(at, decoded)
        for index, target in self._jumps:
            self.effects[index] = self._resolved(index, target)

    def _add(self, at: int, decoded: Decoded) -> None:
        effects = decoded.effects or (NOTHING,)
        last = effects[-1]
        is_certain = decoded.condition in (ALWAYS, _NEVER)
        if isinstance(last, Jump):
            self._jump(at + last.distance, is_conditional=last.is_conditional or not is_certain)
            return
        if not is_certain:
            simple = _assignment(effects)
            if simple is None:
                if at >= self._skipped_to:
                    self._skipped_to = self._end_of_run(at, decoded)
                    self._jump(self._skipped_to, is_conditional=True)
            else:
                effects = (simple,)
        targets = self._code.tables.get(at)
        if targets:
            for target in targets[1:]:
                self._jump(target, is_conditional=True)
            self._jump(targets[0], is_conditional=False)
            return
        self.effects += effects

    def _jump(self, target: int, *, is_conditional: bool) -> None:
        self._jumps.append((len(self.effects), target))
        self.effects.append(Jump(0, is_conditional))

    def _end_of_run(self, at: int, first: Decoded) -> int:
        """Return the end of the instructions that run if this one does."""
        decoded: Decoded | None = first
        while decoded is not None and decoded.condition == first.condition:
            at += decoded.size
            if decoded.sets_flags:
                break
            decoded = self._code.decoded.get(at)
        return at

    def _resolved(self, index: int, target: int) -> Effect:
        jump = self.effects[index]
        is_conditional = isinstance(jump, Jump) and jump.is_conditional
        if target in self.indices:
            return Jump(self.indices[target] - index, is_conditional)
        if 0 <= target < len(self._code.bytes):  # into data, or the middle of an instruction
            return NOTHING if is_conditional else TRAP
        return Jump(-1 - index, is_conditional)


def _assignment(effects: tuple[Effect, ...]) -> Writes | None:
    """Merge conditional effects that only change registers into a write; return None for others.

    Whether they happen or not, the registers' values are unknown afterwards.
    """
    written: list[int] = []
    for effect in effects:
        match effect:
            case Writes(registers):
                written += registers
            case (
                AddConstant(destination)
                | AddRegister(destination)
                | MoveRegister(destination)
                | SetConstant(destination)
                | InsertConstant(destination)
            ):
                written.append(destination)
            case Load(registers, _, _, _, 0):
                written += [register for register in registers if register is not None]
            case _:
                return None
    return None if SP in written else Writes(tuple(written))
