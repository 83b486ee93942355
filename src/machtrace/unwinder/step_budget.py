"""Step budgets that bound the lookups of one stack.

Hostile tables and code can make every lookup of a walk as expensive as a lookup can be. So a walk
has a budget for each kind of lookup: the analysis of code, the descriptions of tables, and
expressions. One that is exhausted does not affect the others: its source returns no rule, and the
next source is queried. Steps are counted, not timed; one step is about a microsecond on a machine
of 2020.

What an ordinary program needs grows with the size of its functions and with the depth of its
stacks. So does the budget: a large function may take steps from a reserve in proportion to its
size, and one ordinary description costs nothing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

WALK_STEPS = 40_000
"""Steps per walk and kind of lookup: 100 ms at most. Nearly all compiled functions of real programs
need far fewer."""

RESERVED_STEPS = 1 << 18
"""Further steps per walk for the analysis of functions, in proportion to their size. The main loops
of interpreters, some ten thousand instructions, take 30,000 to 75,000, functions that Rust has
inlined much into 50,000 to 100,000, a database's for x86-64 without frame pointers 91,000. Beyond
them a function is unwound exactly near its start and end, and by tables between (see
:data:`EDGES`)."""

EDGES = 8
"""Functions per walk, too expensive to analyse, whose start and end are analysed all the same."""

DESCRIPTION_STEPS = 256
"""Steps for one lookup in a table that are not counted: compilers' descriptions of functions take
50 to 150."""


class StepBudget:
    """A number of steps that can be refilled."""

    __slots__ = (
        "_edges",
        "_free",
        "_per_query",
        "_reserve",
        "_reserved",
        "_uncounted",
        "left",
        "limit",
    )

    def __init__(
        self,
        limit: int = WALK_STEPS,
        *,
        per_query: bool = False,
        reserve: int = 0,
        uncounted: int = 0,
    ) -> None:
        """Start with a full budget.

        Args:
            limit: the number of steps.
            per_query: whether :meth:`begin_query` refills it, and not the walk.
            reserve: further steps, for :meth:`reserve`.
            uncounted: steps of :meth:`afford` that each query may take besides.
        """
        self.limit = limit
        self._per_query = per_query
        self._edges = EDGES
        self._reserve = self._reserved = reserve
        self._uncounted = self._free = uncounted
        self.left = limit
        """Steps left; 0 or less once the budget is exhausted."""

    def refill(self) -> None:
        """Restore the full budget."""
        self.left = self.limit
        self._edges = EDGES
        self._reserve = self._reserved
        self._free = self._uncounted

    def begin_query(self) -> None:
        """Refill the budget of a lookup that belongs to no walk."""
        if self._per_query:
            self.refill()
        self._free = self._uncounted

    def reserve(self, steps: int) -> bool:
        """Move steps from the reserve until ``steps`` are left, as far as it lasts.

        Return whether a full budget would have no more for the same purpose.
        """
        is_whole = self.is_whole and self._reserve == self._reserved
        moved = min(max(0, steps - max(0, self.left)), self._reserve)
        if moved:
            self._reserve -= moved
            self.left = max(0, self.left) + moved
        return is_whole or self.left >= steps

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
        if steps <= self._free:
            self._free -= steps
            return True
        if steps >= self.left:
            self.left = min(self.left, 0)
            return False
        self.left -= steps
        return True

    @property
    def spent(self) -> int:
        """Steps spent since the last refill."""
        return self.limit - self.left + self._reserved - self._reserve

    @property
    def is_used_up(self) -> bool:
        """Whether no steps are left."""
        return self.left <= 0

    @property
    def is_whole(self) -> bool:
        """Whether so little was spent that a full budget would not suffice either."""
        return 8 * self.left >= 7 * self.limit


class WalkBudgets:
    """The budgets of one walk."""

    __slots__ = ("code", "expressions", "tables")

    def __init__(self, *, per_query: bool = False) -> None:
        """``per_query``: see :class:`StepBudget`."""
        self.code = StepBudget(per_query=per_query, reserve=RESERVED_STEPS)
        """For the analysis of instructions."""
        self.tables = StepBudget(per_query=per_query, uncounted=DESCRIPTION_STEPS)
        """For descriptions in call-frame information."""
        self.expressions = StepBudget(per_query=per_query)
        """For DWARF expressions."""

    def refill(self) -> None:
        """Restore all of them."""
        self.code.refill()
        self.tables.refill()
        self.expressions.refill()

    @property
    def is_whole(self) -> bool:
        """Whether a full budget would not suffice for a lookup that these do not suffice for."""
        return self.code.is_whole and self.tables.is_whole

    @property
    def is_used_up(self) -> bool:
        """Whether a lookup may lack steps."""
        return self.code.is_used_up or self.tables.is_used_up


@runtime_checkable
class DrawsOnBudgets(Protocol):
    """A rule source that may be expensive.

    It refills a budget of its own for each query until it is given those of a walk.
    """

    def draw_on(self, budgets: WalkBudgets, /) -> None:
        """Spend from ``budgets`` from now on; the walk refills them."""
        ...
