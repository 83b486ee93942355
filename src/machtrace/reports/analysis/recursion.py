"""Recursion in a stack: a sequence of frames that repeats, told once with how often it does."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import eq
from typing import NamedTuple

LONGEST_PERIOD = 32
"""Functions that call one another in a circle, at most; longer circles are left as they are."""
LEAST_TIMES = 3
"""How often a sequence comes before it counts as one."""


class Fold(NamedTuple):
    """A part of a stack: ``period`` frames, ``times`` over.

    What does not repeat is one fold with ``times`` 1, as long as it is.
    """

    first: int
    """Where it begins: a place in the stack."""
    period: int
    times: int

    @property
    def length(self) -> int:
        """All frames of it."""
        return self.period * self.times


def folds(
    stack: Sequence[Hashable],
    *,
    longest_period: int = LONGEST_PERIOD,
    least_times: int = LEAST_TIMES,
) -> tuple[Fold, ...]:
    """The parts of a stack, in its order, which together are all of it.

    At each place the sequence that covers the most frames is taken, of those the shortest. The time
    is that of the stack's length times ``longest_period``.

    Args:
        stack: what tells frames apart, innermost or outermost first; equal ones are the same.
        longest_period: frames that a repeated sequence may have.
        least_times: how often it has to come; at least 2.
    """
    numbers: dict[Hashable, int] = {}
    ids = array("q", (numbers.setdefault(one, len(numbers)) for one in stack))
    runs = [] if len(numbers) == len(ids) else _all_runs(ids, longest_period, least_times)
    found: list[Fold] = []
    at = plain = 0
    while runs:
        best, at, runs = _best(runs, at, least_times)
        if best is None:
            continue
        if plain < best.first:
            found.append(Fold(plain, best.first - plain, 1))
        found.append(best)
        at = plain = best.first + best.length
    if plain < len(ids):
        found.append(Fold(plain, len(ids) - plain, 1))
    return tuple(found)


@dataclass(slots=True)
class _Runs:
    """Where frames are the same as those ``period`` later: first and end of each such run."""

    period: int
    left: list[tuple[int, int]]
    """Those that were not passed yet, the last ones first."""


def _all_runs(ids: array[int], longest_period: int, least_times: int) -> list[_Runs]:
    """Of each period the runs that are long enough."""
    found: list[_Runs] = []
    for period in range(1, min(longest_period, len(ids) // least_times) + 1):
        equal = bytes(map(eq, ids, islice(ids, period, None)))
        least = period * (least_times - 1)
        left = [match.span() for match in re.finditer(b"\1+", equal)]
        left = [span for span in reversed(left) if span[1] - span[0] >= least]
        if left:
            found.append(_Runs(period, left))
    return found


def _best(runs: list[_Runs], at: int, least_times: int) -> tuple[Fold | None, int, list[_Runs]]:
    """What begins at ``at`` and covers most; else where to look next. And the runs still ahead."""
    best: Fold | None = None
    following: list[int] = []
    ahead: list[_Runs] = []
    for one in runs:
        period, left = one.period, one.left
        while left and left[-1][1] - max(at, left[-1][0]) < period * (least_times - 1):
            left.pop()
        if not left:
            continue
        ahead.append(one)
        first, end = left[-1]
        if first > at:
            following.append(first)
            continue
        fold = Fold(at, period, (end - at) // period + 1)
        if best is None or fold.length > best.length:
            best = fold
    return best, at if best or not following else min(following), ahead
