"""Which of many sorted starts is the last at or before an offset, for one offset or millions.

Whatever divides an image into ranges (functions, lines, inlined calls) is looked up here.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Starts: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.uint32]
"""Ascending; several may be equal."""


class RangeIndex:
    """Ranges that begin at ``starts`` and end where the next one begins."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Starts) -> None:
        """``starts`` are of any address space, ascending; they are kept, not copied."""
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def starts(self) -> Starts:
        """Where the ranges begin."""
        return self._starts

    def find(self, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """For each offset the last row whose start is at or before it; -1 before the first.

        Args:
            offsets: in any order, of the address space of the starts.
        """
        starts: npt.NDArray[Any] = self._starts
        if starts.dtype != np.uint64:
            # Narrower starts would be widened for each call, and offsets must not be cut.
            limit = np.uint64(np.iinfo(starts.dtype).max)
            offsets = np.minimum(offsets, limit).astype(starts.dtype)
        found = starts.searchsorted(offsets, side="right")
        return found.astype(np.int32) - np.int32(1)
