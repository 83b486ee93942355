"""What an architecture's calling convention says of its registers.

What a register or a word of the stack holds, said in terms of the frame.

A register as the caller left it, a distance from the canonical frame address (CFA: sp at the
function's entry), or a number. None is anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import is_

from machtrace.unwinder.code.effects import Writes


@dataclass(frozen=True, slots=True)
class CallerValue:
    """What the register held when the function was entered."""

    register: int


@dataclass(frozen=True, slots=True)
class FromCfa:
    """The canonical frame address plus ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number that instructions put there."""

    value: int


Value = CallerValue | FromCfa | Number


@lru_cache(maxsize=1 << 12)
def from_cfa(offset: int) -> FromCfa:
    """One object for each of the places that functions use: told from others at a glance."""
    return FromCfa(offset)


def is_same(one: Value | None, other: Value | None) -> bool:
    """Whether two values are equal; quick where they are one object."""
    return one is other or (one is not None and other is not None and one == other)


def in_common(
    values: tuple[Value | None, ...], others: tuple[Value | None, ...]
) -> tuple[Value | None, ...]:
    """What both have in each place, else None; ``values`` itself if that is as much as it has."""
    same = list(map(is_, values, others))  # most are the same objects, which is quick to see
    changed: list[Value | None] | None = None
    place = -1
    for _ in range(same.count(False)):
        place = same.index(False, place + 1)
        if values[place] is not None and not is_same(values[place], others[place]):
            changed = list(values) if changed is None else changed
            changed[place] = None
    return values if changed is None else tuple(changed)


def with_part(value: Value | None, part: int, shift: int) -> Value | None:
    """``value`` with 16 of its bits, from ``shift`` on, replaced by ``part``."""
    if not isinstance(value, Number):
        return None
    return Number(value.value & ~(0xFFFF << shift) | part << shift)


class Machine:
    """What an architecture's calling convention says of its registers."""

    __slots__ = (
        "callee_saved",
        "caller_values",
        "cfa_bases",
        "doubles",
        "entry_sp",
        "fp",
        "longest",
        "places",
        "return_address",
        "sp",
        "tracked",
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
        """Registers are DWARF numbers.

        Args:
            sp: the stack pointer.
            fp: the frame pointer.
            return_column: what stands for the return address: its register, or none that is
                followed.
            general: the general registers, from 0.
            others: other registers to follow.
            callee_saved: what a caller finds unchanged, and functions save; sp is not among them.
            lost_in_calls: what calls change.
            entry_sp: from the CFA to sp at a function's entry.
            word: bytes of a general register.
            doubles: registers of two words.
        """
        self.sp = sp
        self.fp = fp
        self.return_address = CallerValue(return_column)
        self.tracked = (*general, *others)
        self.caller_values = {register: CallerValue(register) for register in self.tracked}
        """One object each, by register: told from others at a glance."""
        self.caller_values[return_column] = self.return_address
        self.places = {register: place for place, register in enumerate(self.tracked)}
        self.callee_saved = callee_saved
        kept = {*callee_saved, sp, fp, return_column}
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
        """Bytes of the longest register whose place is followed."""

    def size_of(self, value: Value) -> int:
        """Bytes that a value takes where it is stored."""
        is_double = isinstance(value, CallerValue) and value.register in self.doubles
        return 2 * self.word if is_double else self.word
