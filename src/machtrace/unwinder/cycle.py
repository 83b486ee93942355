"""Whether a walk has come back to where it was, told in constant memory."""

from __future__ import annotations

from collections.abc import Hashable

REMEMBERED = 512
"""States that are remembered one by one: among them a return is seen at once."""


class CycleDetector:
    """Sees that a sequence of states, each of which follows from the one before, repeats.

    A return to one of the first :data:`REMEMBERED` states is seen at once. After them one state
    is remembered, and replaced at numbers that double (R. P. Brent, *An improved Monte Carlo
    factorization algorithm*, 1980): a return is seen after fewer than twice as many states as
    there were before it, and as the cycle has.
    """

    __slots__ = ("_count", "_first", "_mark", "_next_mark")

    def __init__(self) -> None:
        self._first: set[Hashable] = set()
        self._mark: Hashable = None
        self._count = 0
        self._next_mark = REMEMBERED + 1

    def has_passed(self, state: Hashable) -> bool:
        """Whether ``state`` is known to have been here before; it is, from now on. Never None."""
        if state in self._first or state == self._mark:
            return True
        self._count += 1
        if self._count <= REMEMBERED:
            self._first.add(state)
        elif self._count == self._next_mark:
            self._mark = state
            self._next_mark *= 2
        return False
