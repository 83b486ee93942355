"""Constant-memory bounds of a walk: the frames that a deep stack keeps, and cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Self

from machtrace.model.options import DEFAULT_FRAME_LIMIT
from machtrace.model.stack import AddressChain, FrameAddress, Gap, Stop

_DEFAULT_OUTER = 64
"""Outermost frames that the default limit keeps; Swift's backtraces keep 16 of 64."""


class FrameLimit(NamedTuple):
    """How many frames of a stack are returned: all of them, unless the stack has more."""

    inner: int
    """Innermost frames."""
    outer: int = 0
    """Outermost frames."""

    @classmethod
    def of(cls, limit: int) -> Self:
        """Return the limit for ``limit`` frames, 1 or more.

        These are the innermost, as with lldb's ``bt N``. Only the default keeps both ends: a deeper
        stack has overflowed, or soon will; its inner end shows the functions that recurse, and its
        outer end where the recursion began.
        """
        if limit == DEFAULT_FRAME_LIMIT:
            return cls(limit - _DEFAULT_OUTER, _DEFAULT_OUTER)
        return cls(limit)


DEFAULT_LIMIT = FrameLimit.of(DEFAULT_FRAME_LIMIT)


class FrameLimiter:
    """Collects frames, innermost first, in memory for those that ``limit`` retains."""

    __slots__ = ("_head", "_head_size", "_outer", "count")

    def __init__(self, limit: FrameLimit) -> None:
        self._head: list[FrameAddress] = []
        self._head_size = limit.inner
        self._outer: deque[FrameAddress] = deque(maxlen=limit.outer)
        self.count = 0
        """The number of frames added."""

    @classmethod
    def of(cls, limit: FrameLimit, frames: Sequence[FrameAddress], count: int) -> Self:
        """Return the limiter after ``count`` frames, of which it retained ``frames``."""
        limiter = cls(limit)
        for frame in frames:
            limiter.add(frame)
        limiter.count = count
        return limiter

    def add(self, frame: FrameAddress) -> None:
        """Add the next frame."""
        self.count += 1
        if self.count <= self._head_size:
            self._head.append(frame)
        else:
            self._outer.append(frame)

    def chain(self, stop: Stop) -> AddressChain:
        """Return the retained frames and the gap between them."""
        head, outer = tuple(self._head), tuple(self._outer)
        left_out = self.count - len(head) - len(outer)
        gap = Gap(len(head), left_out) if left_out else None
        return AddressChain(addresses=head + outer, stop=stop, gap=gap)


STORED_STATES = 512
"""The number of states that are stored individually."""


class CycleDetector:
    """Detects a cycle in a sequence of states, each of which follows from the one before.

    A repetition of one of the first :data:`STORED_STATES` is detected at once. After them one state
    is stored, and replaced at numbers that double (R. P. Brent, *An improved Monte Carlo
    factorization algorithm*, 1980): a cycle is detected after fewer than twice as many states as
    precede it and it contains.
    """

    __slots__ = ("_count", "_first", "_mark", "_next_mark")

    def __init__(self) -> None:
        self._first: set[Hashable] = set()
        self._mark: Hashable = None
        self._count = 0
        self._next_mark = STORED_STATES + 1

    def has_passed(self, state: Hashable) -> bool:
        """Return whether ``state``, which is not None, is known to repeat; store it."""
        if state in self._first or state == self._mark:
            return True
        self._count += 1
        if self._count <= STORED_STATES:
            self._first.add(state)
        elif self._count == self._next_mark:
            self._mark = state
            self._next_mark *= 2
        return False
