"""Jumps through tables: whether the index can have been one that the program computes.

A random state may hold an index that no program has, where the compiler knew the range. Then the
jump leads anywhere. It is accepted if the index was compared shortly before, and the target is the
start of a block of the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.published.functions import Functions
from tests.support.published.image import PublishedImage


class JumpTables:
    """Checks indirect jumps of one image."""

    def __init__(self, image: PublishedImage, functions: Functions) -> None:
        self._image = image
        self._functions = functions

    def problem(self, address: int, target: int, trace: Sequence[int]) -> str:
        """Return why a jump to ``target``, which is no function's start, has no meaning; or ''."""
        del trace
        function = self._image.function_at(address)
        if function is None or not function[0] <= target < function[1]:
            return "a jump into another function"
        if not self._functions.is_block(target, function):
            return "a jump through a table to what starts no block"
        return ""
