"""Distinct stacks put together as a tree, while they are walked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from machtrace.model.profile import OUTERMOST, StackTable

_BITS = 32
"""Enough for a row; :data:`MOST_ROWS` keeps within it."""

MOST_ROWS = 1 << 22
"""Of one table: about half a GiB of memory with what finds them."""


class StackRows:
    """Makes a :class:`~machtrace.model.profile.StackTable`, stack by stack."""

    __slots__ = ("_callers", "_children", "_frames")

    def __init__(self) -> None:
        self._callers = array("i")
        self._frames = array("i")
        self._children: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def is_full(self) -> bool:
        """Whether there are as many rows as there may be."""
        return len(self._callers) >= MOST_ROWS

    def row(self, frames: Iterable[int]) -> int:
        """The row of the stack of ``frames``, outermost first; made if there was none.

        Of an empty stack it is :data:`~machtrace.model.profile.OUTERMOST`. Where the table is full,
        it is that of the frames that it has, from the outermost on.
        """
        children = self._children
        at = OUTERMOST
        for frame in frames:
            key = (at + 1) << _BITS | frame
            found = children.get(key)
            if found is None:
                if self.is_full:
                    break
                found = children[key] = len(self._callers)
                self._callers.append(at)
                self._frames.append(frame)
            at = found
        return at

    def table(self) -> StackTable:
        """All stacks so far."""
        return StackTable(self._callers, self._frames)
