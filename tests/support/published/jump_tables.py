"""Jumps through tables: whether the index can be one that the program computes.

A random state may hold an index that no program has, where the compiler knew the range: the
discriminant of an enumeration. Then the jump leads anywhere. An index that was compared is in
range. Another one of a table with narrow entries (AArch64), or with distances from the table
(x86-64), is replaced by one in range before the load: the table's extent is that of the first
entries that lead to blocks of the function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tests.support.emulated.cpu import EmulatedCpu
from tests.support.published.functions import Functions
from tests.support.published.image import PublishedImage
from tests.support.published.instructions import Kind

_BEFORE = 24
"""Executed instructions among which the comparison is."""
_NEAR = 8
"""Instructions between the load of an entry and its jump."""
_MAX_TABLE_LENGTH = 256
_ADR, _ADR_MASK = 0x10000000, 0x9F000000
_BOUNDS = ((0x7F80001F, 0x7100001F), (0x7F800000, 0x12000000), (0x7F800000, 0x53000000))
"""``cmp`` with a constant, ``and`` with a mask, ``ubfx`` and similar."""
_ZERO = 31
_NEAR_X86, _BEFORE_X86, _MAX_X86_LENGTH = 4, 8, 15
_X86_BOUND = re.compile(r"(cmp|and|shr) .*, \w+$")
"""A comparison, a mask, or a shift that leaves few bits, with any operand."""


class JumpTables:
    """Checks indirect jumps of one image."""

    def __init__(self, image: PublishedImage, functions: Functions) -> None:
        self._image = image
        self._functions = functions
        self._extents: dict[tuple[int, int], int] = {}

    def problem(self, address: int, target: int, trace: Sequence[int]) -> str:
        """Return why a jump to ``target``, which is no function's start, has no meaning; or ''."""
        function = self._image.function_at(address)
        if function is None or not function[0] <= target < function[1]:
            return "a jump into another function"
        if not self._functions.is_block(target, function):
            return "a jump through a table to what starts no block"
        if not self._image.arch.is_arm64 or self._is_bounded(trace[-_BEFORE:-1]):
            return ""
        loads = [at for at in trace[-_NEAR:-1] if self._is_narrow(at)]
        if loads and self._base(loads[-1]) is None:
            return "a jump through a table by an index that was not compared"
        return ""

    def is_load(self, address: int) -> bool:
        """Return whether the instruction loads an entry for a jump that follows soon."""
        if not self._is_narrow(address):
            return False
        if self._image.arch.is_arm64:
            return self._base(address) is not None
        after = address
        for _ in range(_NEAR_X86):
            after += self._functions.instruction(after).size
            if self._functions.instruction(after).kind is Kind.INDIRECT_JUMP:
                return True
        return False

    def choose_index(self, cpu: EmulatedCpu, address: int, trace: Sequence[int]) -> None:
        """Before the load at ``address``, bring an index in range that was not compared."""
        if not self._image.arch.is_arm64:
            self._choose_distance(cpu, address, trace)
            return
        base = self._base(address)
        function = self._image.function_at(address)
        if base is None or function is None or self._is_bounded(trace[-_BEFORE:-1]):
            return
        word = self._word(address)
        index, table = word >> 16 & 31, word >> 5 & 31
        if _ZERO in (index, table):
            return
        start = cpu.read(table)
        extent = self._extents.get((address, start))
        if extent is None:
            extent = self._extent(start, base, 2 if word >> 30 & 1 else 1, function)
            self._extents[address, start] = extent
        cpu.write(index, cpu.read(index) % extent)

    def _choose_distance(self, cpu: EmulatedCpu, address: int, trace: Sequence[int]) -> None:
        """Do that for an x86-64 table of 32-bit distances from itself."""
        memory = self._functions.instruction(address).entry
        function = self._image.function_at(address)
        if memory is None or memory.base is None or memory.offset is None or function is None:
            return
        if any(_X86_BOUND.match(self._text(cpu, at)) for at in trace[-_BEFORE_X86:-1]):
            return
        table = cpu.read(memory.base) + memory.displacement
        extent = self._extents.get((address, table))
        if extent is None:
            rows = np.frombuffer(self._image.bytes_at(table, 4 * _MAX_TABLE_LENGTH), "<i4").tolist()
            wrong = (
                number
                for number, distance in enumerate(rows)
                if not self._functions.is_block(table + distance, function)
            )
            extent = self._extents[address, table] = self._certain(next(wrong, len(rows)))
        cpu.write(memory.offset, cpu.read(memory.offset) % extent)

    def _extent(self, table: int, base: int, size: int, function: tuple[int, int]) -> int:
        """Return a number of entries that the table certainly has.

        What follows a table may look like more of it, so that the last ones do not count.
        """
        data = self._image.bytes_at(table, size * _MAX_TABLE_LENGTH)
        count = 0
        for offset in range(0, len(data) - size + 1, size):
            target = base + 4 * int.from_bytes(data[offset : offset + size], "little")
            if not function[0] <= target < function[1]:
                break
            if not self._functions.is_block(target, function) and target != base:
                break
            count += 1
        return self._certain(count)

    def _text(self, cpu: EmulatedCpu, address: int) -> str:
        rows = cpu.instructions(self._image.bytes_at(address, _MAX_X86_LENGTH), address)
        return next((text for _, _, text in rows), "")

    @staticmethod
    def _certain(count: int) -> int:
        return max(1, count - 1 - count // 8)

    def _is_narrow(self, address: int) -> bool:
        return self._functions.instruction(address).loads_entry

    def _is_bounded(self, before: Sequence[int]) -> bool:
        words = [self._word(at) for at in before]
        return any(word & mask == value for word in words for mask, value in _BOUNDS)

    def _base(self, load: int) -> int | None:
        """Return the address that the entries count from, if a jump follows the load soon."""
        near = range(load - 4 * 4, load + 4 * _NEAR, 4)
        jumps = (self._functions.instruction(at).kind for at in near if at > load)
        if Kind.INDIRECT_JUMP not in jumps:
            return None
        for at in near:
            word = self._word(at)
            if word & _ADR_MASK == _ADR:
                distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
                return at + distance - (distance >> 20 << 21)
        return None

    def _word(self, address: int) -> int:
        return int.from_bytes(self._image.bytes_at(address, 4), "little")
