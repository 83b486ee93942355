"""Places of a list that are marked one after the other, and the nearest of them to any other."""

from __future__ import annotations

_BLOCK = 512


class MarkedPlaces:
    """Indices of a list that grow in number; the nearest of them is found without a search."""

    __slots__ = ("_blocks", "_marks")

    def __init__(self, size: int) -> None:
        """``size``: of the list; none is marked."""
        self._marks = bytearray(size)
        self._blocks = bytearray(size // _BLOCK + 1)
        """Which blocks of marks have any."""

    def add(self, index: int) -> None:
        """Mark one."""
        self._marks[index] = 1
        self._blocks[index // _BLOCK] = 1

    def before(self, index: int) -> int | None:
        """The last that is below ``index``."""
        block = index // _BLOCK
        found = self._marks.rfind(1, block * _BLOCK, index)
        if found < 0:
            block = self._blocks.rfind(1, 0, block)
            if block >= 0:
                found = self._marks.rfind(1, block * _BLOCK, (block + 1) * _BLOCK)
        return found if found >= 0 else None

    def behind(self, index: int) -> int | None:
        """The first that is above ``index``."""
        block = index // _BLOCK
        found = self._marks.find(1, index + 1, (block + 1) * _BLOCK)
        if found < 0:
            block = self._blocks.find(1, block + 1)
            if block >= 0:
                found = self._marks.find(1, block * _BLOCK, (block + 1) * _BLOCK)
        return found if found >= 0 else None
