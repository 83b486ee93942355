"""How much one walk may spend on finding out what it is not told.

Tables and code may be made to take as long as they can: each lookup of a walk may lead into
another function whose analysis is as hard as a function's can be. So a walk has one allowance,
which all that is analysed for it draws on, in steps that are counted and not timed. One step is
about a microsecond of a machine of 2020. What is used up gives no rule: the next method is asked.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

WALK_STEPS = 40_000
"""What one walk may spend, so that none takes 100 ms. Nearly all functions that compilers made of
real programs need far less; the main loops of interpreters, some ten thousand instructions, take
30,000 to 75,000, a database's for x86-64 without frame pointers 91,000. Those beyond it are right
at their beginning and end, and by tables between (see :data:`EDGES`)."""

EDGES = 8
"""Functions too dear to follow whose beginning and end one walk may look at all the same."""


class StepBudget:
    """An allowance of steps."""

    __slots__ = ("_edges", "left", "limit")

    def __init__(self, limit: int = WALK_STEPS) -> None:
        self.limit = limit
        self._edges = EDGES
        self.left = limit
        """Steps that may still be made; 0 or less where they are used up."""

    def refill(self) -> None:
        """Allow as much as at first."""
        self.left = self.limit
        self._edges = EDGES

    def afford_edges(self) -> bool:
        """Look at the edges of one more function that was too dear as a whole; or leave it."""
        self._edges -= 1
        return self._edges >= 0

    def spend(self, steps: int) -> bool:
        """Count ``steps`` steps that were made; False once there are no more."""
        self.left -= steps
        return self.left > 0

    def afford(self, steps: int) -> bool:
        """Make ``steps`` steps that are still to be made; False, and none are left, if too many."""
        if steps >= self.left:
            self.left = min(self.left, 0)
            return False
        self.left -= steps
        return True

    @property
    def is_used_up(self) -> bool:
        """Whether there are no more steps."""
        return self.left <= 0

    @property
    def is_whole(self) -> bool:
        """Whether so little was spent that what does not fit in the rest never would."""
        return 8 * self.left >= 7 * self.limit


@runtime_checkable
class DrawsOnBudget(Protocol):
    """What may be dear to ask.

    It has an allowance of its own, refilled for each question, until it is given that of a walk.
    """

    def draw_on(self, work: StepBudget, /) -> None:
        """From now on spend from ``work``, which whoever walks refills."""
        ...


class Allowance:
    """The work that an analysis draws on: a walk's, or as much for each question."""

    __slots__ = ("_is_own", "work")

    def __init__(self) -> None:
        self.work = StepBudget()
        self._is_own = True

    def draw_on(self, work: StepBudget) -> None:
        """See :class:`DrawsOnBudget`."""
        self.work = work
        self._is_own = False

    def begin_question(self) -> None:
        """Refill what nobody else does."""
        if self._is_own:
            self.work.refill()

    def afford(self, steps: int) -> bool:
        """See :meth:`Work.afford`."""
        return self.work.afford(steps)
