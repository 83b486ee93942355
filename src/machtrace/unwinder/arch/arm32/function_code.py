"""The instructions of a 32-bit arm function, found by following them.

Code of this architecture has data in it: tables of jumps, constants that the code reads from
behind itself. So a function is not read from its first byte to its last: from its start, and from
where jumps lead, up to what does not go on. What is left then, and is no data, is code that only
an indirect jump, or an exception, leads to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from machtrace.unwinder.arch.arm32 import arm
from machtrace.unwinder.arch.arm32 import thumb
from machtrace.unwinder.arch.arm32.registers import ALWAYS, Decoded, TableBranch
from machtrace.unwinder.code.effects import TRAP, Call, IndirectJump, Jump, Return, Trap
from machtrace.unwinder.step_budget import StepBudget

Range = tuple[int, int]
"""(start, end)."""

_CODE, _DATA = 1, 2
_STEPS_AN_INSTRUCTION = 8


class Code:
    """A function's instructions."""

    __slots__ = (
        "_data",
        "_kinds",
        "_later",
        "_ready",
        "_work",
        "bytes",
        "found",
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
        work: StepBudget | None = None,
    ) -> None:
        """Find them, within ``work``; None for as much as any function needs.

        ``start`` is the function's Svma; ``data`` is what of it is known to be none, in bytes from
        its start, ascending.
        """
        self.bytes = code
        self.start = start
        self.is_thumb = is_thumb
        self.found: dict[int, Decoded] = {}
        """By bytes from the start."""
        self.tables: dict[int, tuple[int, ...]] = {}
        """Where jumps by tables lead to, by the jump."""
        self._work = StepBudget() if work is None else work
        self._kinds = bytearray(len(code))
        self._data = data
        for low, high in data:
            self._claim(low & -self.unit, high, _DATA)
        self._ready = [0]
        self._later: deque[int] = deque()
        """What is behind calls: some never return, and data follow."""
        self._find()

    @property
    def unit(self) -> int:
        """What addresses of instructions are multiples of."""
        return thumb.UNIT if self.is_thumb else arm.SIZE

    def _find(self) -> None:
        gap = 0
        while not self._work.is_used_up:
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
            self.found[at] = decoded
            if not self._work.spend(_STEPS_AN_INSTRUCTION):
                return
            self._claim(at, at + decoded.size, _CODE)
            if decoded.literal is not None:
                place = (self.start + at & -4) - self.start + decoded.literal.distance
                self._claim(place, place + decoded.literal.size, _DATA)
            following = at + decoded.size
            if self._ends(at, decoded, following):
                return
            at = following

    def _ends(self, at: int, decoded: Decoded, following: int) -> bool:
        """Whether what follows an instruction is no more of the same; notes where it leads."""
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
        """Take bytes that nothing else has; of data, all or none."""
        low, high = max(low, 0), min(high, len(self.bytes))
        high = min(-(-high // self.unit) * self.unit, len(self.bytes))
        if low < high and (kind == _CODE or self._kinds.find(_CODE, low, high) < 0):
            self._kinds[low:high] = bytes((kind,)) * (high - low)

    def _targets(self, table: int, branch: TableBranch) -> tuple[int, ...]:
        """Where a table of jumps leads. It ends where the first of its targets begins."""
        size = branch.entry_size
        scale = 1 if size == arm.SIZE else thumb.UNIT
        stated = bisect_right(self._data, (table, len(self.bytes))) - 1
        is_stated = stated >= 0 and table < self._data[stated][1]
        end = self._data[stated][1] if is_stated else len(self.bytes)
        targets: dict[int, None] = {}
        at = table
        while at + size <= end and self._kinds[at] != _CODE and self._work.spend(1):
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
    """The conditions of the instructions after IT, the last first."""
    first, mask = it >> 4, it & 15
    length = 4 - (mask & -mask).bit_length() + 1
    others = [first & 14 | mask >> (4 - i) & 1 for i in range(1, length)]
    return [first, *others][::-1]
