"""What a register or a word of the stack holds, said in terms of the frame.

A register as the caller left it, a distance from the canonical frame address (CFA: sp at the
function's entry), or a number. None is anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import is_


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
