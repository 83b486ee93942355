"""Recursion in a stack: a sequence of frames that repeats, folded into one with a count."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from itertools import islice
from operator import eq
from typing import NamedTuple

from machtrace.frozen import dataclass

MAX_PERIOD = 32
"""Maximum functions in a recursive cycle; longer cycles are left unfolded."""
MIN_TIMES = 3
"""Minimum repetitions of a sequence to be folded."""


class Fold(NamedTuple):
    """A part of a stack: ``period`` frames, ``times`` over.

    A part that does not repeat is one fold with ``times`` 1.
    """

    first: int
    """Its index in the stack."""
    period: int
    times: int

    @property
    def length(self) -> int:
        """The number of all its frames."""
        return self.period * self.times


def folds(
    stack: Sequence[Hashable],
    *,
    longest_period: int = MAX_PERIOD,
    least_times: int = MIN_TIMES,
) -> tuple[Fold, ...]:
    """Return the parts of a stack in its order, which together cover all of it.

    At each index the sequence that covers the most frames wins, the shortest of equals. Time is
    proportional to the stack's length times ``longest_period``.

    Args:
        stack: the identities of frames, innermost or outermost first.
        longest_period: maximum frames of a repeated sequence.
        least_times: minimum repetitions; at least 2.
    """
    numbers: dict[Hashable, int] = {}
    ids = array("q", (numbers.setdefault(one, len(numbers)) for one in stack))
    runs = [] if len(numbers) == len(ids) else _all_runs(ids, longest_period, least_times)
    result: list[Fold] = []
    at = plain = 0
    while runs:
        best, at, runs = _best(runs, at, least_times)
        if best is None:
            continue
        if plain < best.first:
            result.append(Fold(plain, best.first - plain, 1))
        result.append(best)
        at = plain = best.first + best.length
    if plain < len(ids):
        result.append(Fold(plain, len(ids) - plain, 1))
    return tuple(result)


@dataclass(slots=True)
class _Runs:
    """Runs of frames that equal those ``period`` later: start and end of each."""

    period: int
    left: list[tuple[int, int]]
    """The runs not passed yet, last ones first."""


def _all_runs(ids: array[int], longest_period: int, least_times: int) -> list[_Runs]:
    """Return the runs of each period that are long enough."""
    result: list[_Runs] = []
    for period in range(1, min(longest_period, len(ids) // least_times) + 1):
        # Byte i is 1 if frame i equals frame i + period: n ones are n + period frames of a cycle.
        equal = bytes(map(eq, ids, islice(ids, period, None)))
        least = period * (least_times - 1)
        left = [match.span() for match in re.finditer(b"\1+", equal)]
        left = [span for span in reversed(left) if span[1] - span[0] >= least]
        if left:
            result.append(_Runs(period, left))
    return result


def _best(runs: list[_Runs], at: int, least_times: int) -> tuple[Fold | None, int, list[_Runs]]:
    """Return the fold at ``at`` that covers most, or None; the next index; the runs still ahead."""
    best: Fold | None = None
    following: list[int] = []
    ahead: list[_Runs] = []
    for run in runs:
        period, left = run.period, run.left
        # ``at`` only grows: a run without room for least_times cycles from there is of no more use.
        while left and left[-1][1] - max(at, left[-1][0]) < period * (least_times - 1):
            left.pop()
        if not left:
            continue
        ahead.append(run)
        first, end = left[-1]
        if first > at:
            following.append(first)
            continue
        fold = Fold(at, period, (end - at) // period + 1)
        if best is None or fold.length > best.length:
            best = fold
    return best, at if best or not following else min(following), ahead
