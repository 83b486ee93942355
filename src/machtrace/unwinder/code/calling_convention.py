"""An architecture's calling convention, and the values that registers and stack words can have.

A value is a register as the caller left it, an offset from the canonical frame address (CFA: sp at
the function's entry), a number, or an index of a location; None is unknown.

Code that aligns the stack pointer, or subtracts a number known at run time only, moves it to an
address whose distance from the CFA is unknown, but constant. Such addresses are offsets, too: from
:data:`MOVED`, so far from the CFA that no frame reaches it.
"""

from __future__ import annotations

from functools import lru_cache
from operator import is_

from machtrace.frozen import dataclass
from machtrace.unwinder.code.effects import Writes
from machtrace.unwinder.rules import InRegister


@dataclass(frozen=True, slots=True)
class CallerValue:
    """The value that a register had at the function's entry."""

    register: int


@dataclass(frozen=True, slots=True)
class FromCfa:
    """The canonical frame address plus ``offset``."""

    offset: int


MOVED = -(1 << 44)
"""The offset that stands for the stack pointer after it was moved by an unknown amount."""


@dataclass(frozen=True, slots=True)
class Index:
    """A register's value with ``*(MOVED + offset + value * scale) == CFA + saved``.

    Assembly that allocates an array of a size known at run time saves the caller's stack pointer
    behind it.
    """

    scale: int
    offset: int
    saved: int


@dataclass(frozen=True, slots=True)
class Number:
    """A constant set by instructions."""

    value: int


Value = CallerValue | FromCfa | Number | Index


def is_moved(offset: int) -> bool:
    """Return whether an offset is from :data:`MOVED`."""
    return offset < MOVED // 2


def depends_on_moved(value: Value | None) -> bool:
    """Return whether a value is relative to :data:`MOVED`."""
    return isinstance(value, Index) or (isinstance(value, FromCfa) and is_moved(value.offset))


@lru_cache(maxsize=1 << 12)
def from_cfa(offset: int) -> FromCfa:
    """Return the value for an offset; common ones share an object, as identity is quick to test."""
    return FromCfa(offset)


def is_same(one: Value | None, other: Value | None) -> bool:
    """Return whether two values are equal; quick if they are the same object."""
    return one is other or (one is not None and other is not None and one == other)


def in_common(
    values: tuple[Value | None, ...], others: tuple[Value | None, ...]
) -> tuple[Value | None, ...]:
    """Return the elements that both have in common, else None.

    ``values`` itself if all are equal.
    """
    same = list(map(is_, values, others))  # most are the same objects, which is quick to test
    changed: list[Value | None] | None = None
    index = -1
    for _ in range(same.count(False)):
        index = same.index(False, index + 1)
        if values[index] is not None and not is_same(values[index], others[index]):
            changed = list(values) if changed is None else changed
            changed[index] = None
    return values if changed is None else tuple(changed)


def with_part(value: Value | None, part: int, shift: int) -> Value | None:
    """Return ``value`` with the 16 bits from ``shift`` on replaced by ``part``."""
    if not isinstance(value, Number):
        return None
    return Number(value.value & ~(0xFFFF << shift) | part << shift)


MAX_DISTANCE = 1 << 40
"""The largest distance in a frame; bounds the numbers that hostile arithmetic makes."""


class Machine:
    """An architecture's calling convention."""

    __slots__ = (
        "callee_saved",
        "caller_values",
        "cfa_bases",
        "doubles",
        "entry_sp",
        "fp",
        "indices",
        "longest",
        "preserved",
        "return_address",
        "sp",
        "tracked",
        "unchanged",
        "volatile",
        "volatile_set",
        "word",
        "written_by_calls",
    )

    def __init__(  # noqa: PLR0913 - keywords, each a fact of its own
        self,
        *,
        sp: int,
        fp: int,
        return_column: int,
        general: range,
        others: tuple[int, ...],
        callee_saved: tuple[int, ...],
        lost_in_calls: tuple[int, ...],
        entry_sp: int,
        word: int = 8,
        doubles: range = range(0),
    ) -> None:
        """Store register numbers, which are DWARF's.

        Args:
            sp: the stack pointer.
            fp: the frame pointer.
            return_column: the return address's register, or a number that is not tracked.
            general: the number of general registers, which begin at 0.
            others: further registers to track.
            callee_saved: the registers that functions preserve, except sp.
            lost_in_calls: the registers that calls change.
            entry_sp: the offset from the CFA to sp at a function's entry.
            word: bytes of a general register.
            doubles: registers of two words.
        """
        self.sp = sp
        self.fp = fp
        self.return_address = CallerValue(return_column)
        self.tracked = (*general, *others)
        self.caller_values = {register: CallerValue(register) for register in self.tracked}
        """One object per register: identity is quick to test."""
        self.caller_values[return_column] = self.return_address
        self.unchanged = {register: InRegister(register) for register in self.caller_values}
        """The recovery of a register that still has its caller's value."""
        self.indices = {register: index for index, register in enumerate(self.tracked)}
        self.callee_saved = callee_saved
        kept = {*callee_saved, sp, fp, return_column}
        self.preserved = frozenset({*callee_saved, fp, return_column})
        """The registers that functions preserve, and the return address's."""
        self.volatile = tuple(register for register in general if register not in kept)
        self.volatile_set = frozenset(self.volatile)
        self.cfa_bases = (
            sp,
            fp,
            *(register for register in reversed(callee_saved) if register in general),
            *self.volatile,
            *(register for register in (return_column,) if register in general),
        )
        self.entry_sp = entry_sp
        self.written_by_calls = Writes(lost_in_calls)
        self.word = word
        self.doubles = doubles
        self.longest = 2 * word if doubles else word
        """Bytes of the longest tracked register."""

    def size_of(self, value: Value) -> int:
        """Return the bytes that a value takes in memory."""
        is_double = isinstance(value, CallerValue) and value.register in self.doubles
        return 2 * self.word if is_double else self.word

    def plus(self, value: Value | None, amount: int | None) -> Value | None:
        """Return the sum of a value and a number; None if unknown."""
        if amount is None:
            return None
        if isinstance(value, FromCfa):
            half = 1 << (8 * self.word - 1)
            offset = value.offset + (amount + half) % (2 * half) - half
            origin = MOVED if is_moved(value.offset) else 0
            return from_cfa(offset) if abs(offset - origin) < MAX_DISTANCE else None
        if isinstance(value, Number):
            return Number((value.value + amount) % (1 << 8 * self.word))
        return value if amount == 0 else None
