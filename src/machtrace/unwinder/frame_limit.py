"""Which frames of a stack are kept: all of an ordinary one, both ends of a very deep one.

Whether a walk has come back to where it was, told in constant memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Self

from machtrace.model.stack import AddressChain, FrameAddress, Gap, Stop

MOST_OUTER = 64
"""Frames that are kept of the outer end, where a stack is cut; fewer where few are kept at all."""


def outer_frames(limit: int) -> int:
    """How many of ``limit`` frames that are kept of a deeper stack are of its outer end."""
    return min(MOST_OUTER, limit // 4)


class FrameLimiter:
    """Takes frames one by one, innermost first, in memory for ``limit`` of them.

    A stack that is deeper has overflowed, or soon will. Who called whom over and over shows at
    its inner end, and where that began at its outer end; a quarter of the frames, or
    :data:`MOST_OUTER`, is of the latter (as in Swift's backtraces, 16 of 64).
    """

    __slots__ = ("_head", "_head_size", "_outer", "count")

    def __init__(self, limit: int) -> None:
        """``limit`` is at least 1."""
        outer = outer_frames(limit)
        self._head: list[FrameAddress] = []
        self._head_size = limit - outer
        self._outer: deque[FrameAddress] = deque(maxlen=outer)
        self.count = 0
        """How many were taken."""

    @classmethod
    def of(cls, limit: int, kept: Sequence[FrameAddress], count: int) -> Self:
        """What ``count`` frames leave of which these were ``kept``."""
        frames = cls(limit)
        for frame in kept:
            frames.add(frame)
        frames.count = count
        return frames

    def add(self, frame: FrameAddress) -> None:
        """Take the next frame."""
        self.count += 1
        if self.count <= self._head_size:
            self._head.append(frame)
        else:
            self._outer.append(frame)

    def chain(self, stop: Stop) -> AddressChain:
        """What was kept, and how much was not."""
        head, outer = tuple(self._head), tuple(self._outer)
        left_out = self.count - len(head) - len(outer)
        gap = Gap(len(head), left_out) if left_out else None
        return AddressChain(addresses=head + outer, stop=stop, gap=gap)


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
