"""A step budget that bounds the analysis of one stack.

Hostile tables and code can make every lookup of a walk analyse another function that is as
expensive as a function can be. So one walk has one budget, which every analysis made for it spends.
Steps are counted, not timed; one step is about a microsecond on a machine of 2020. An analysis that
exhausts the budget returns no rule, and the next rule source is queried.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

WALK_STEPS = 40_000
"""Steps per walk, so that no walk takes 100 ms. Nearly all compiled functions of real programs need
far fewer. The main loops of interpreters, some ten thousand instructions, take 30,000 to 75,000, a
database's for x86-64 without frame pointers 91,000. Beyond the budget a function is unwound exactly
near its start and end, and by tables between (see :data:`EDGES`)."""

EDGES = 8
"""Functions per walk, too expensive to analyse, whose start and end are analysed all the same."""


class StepBudget:
    """A number of steps that can be refilled."""

    __slots__ = ("_edges", "_per_query", "left", "limit")

    def __init__(self, limit: int = WALK_STEPS, *, per_query: bool = False) -> None:
        """``per_query``: whether :meth:`begin_query` refills it, and not the walk."""
        self.limit = limit
        self._per_query = per_query
        self._edges = EDGES
        self.left = limit
        """Steps left; 0 or less once the budget is exhausted."""

    def refill(self) -> None:
        """Restore the full budget."""
        self.left = self.limit
        self._edges = EDGES

    def begin_query(self) -> None:
        """Refill the budget of an analysis that belongs to no walk."""
        if self._per_query:
            self.refill()

    def afford_edges(self) -> bool:
        """Return whether the edges of one more function may be analysed, and count it."""
        self._edges -= 1
        return self._edges >= 0

    def spend(self, steps: int) -> bool:
        """Count ``steps`` steps already made; return False once none are left."""
        self.left -= steps
        return self.left > 0

    def afford(self, steps: int) -> bool:
        """Reserve ``steps`` steps; return False, and exhaust the budget, if too few are left."""
        if steps >= self.left:
            self.left = min(self.left, 0)
            return False
        self.left -= steps
        return True

    @property
    def is_used_up(self) -> bool:
        """Whether no steps are left."""
        return self.left <= 0

    @property
    def is_whole(self) -> bool:
        """Whether so little was spent that a full budget would not suffice either."""
        return 8 * self.left >= 7 * self.limit


@runtime_checkable
class DrawsOnBudget(Protocol):
    """A rule source that may be expensive.

    It refills a budget of its own for each query until it is given that of a walk.
    """

    def draw_on(self, budget: StepBudget, /) -> None:
        """Spend from ``budget`` from now on; the walk refills it."""
        ...
