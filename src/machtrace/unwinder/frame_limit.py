"""Which frames of a stack are kept: all of an ordinary one, both ends of a very deep one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
