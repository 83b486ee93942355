"""The stacks of a spool: a tree whose nodes are a frame with all its callers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy.typing as npt

_WORD = (1 << 64) - 1
_VARINT_MOST = 10
_LAST_BYTE_MOST = 1
_MORE = 128
"""The bit that another byte follows."""
_SCATTER = 0x9E3779B1
_SPREAD = 0x9E3779B97F4A7C15
CUT = 1
"""The address that marks a stack whose outer frames are missing."""
SITE = 2
"""The caller of a call site alone: the stacks of its calls were not taken."""
_ERAS = 16
_MARKS = 1 << 16
"""Addresses below are marks."""
ROOT = 0
"""The row of the root, the caller of outermost frames."""
NO_IMAGE = -1
_NOWHERE = NO_IMAGE, 0


class StackTree:
    """Nodes in the order in which they were stored, callers first; a row for each.

    The columns are no arrays of numpy: each node follows from the ones before it.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.rows: dict[int, int] = {ROOT: ROOT}
        """The row of each node number."""
        self.callers = array("I", [ROOT])
        """The row of the caller; marks of eras are skipped."""
        self.images = array("i", [NO_IMAGE])
        """The index of the image."""
        self.offsets = array("Q", [0])
        """Bytes from the image's start; the whole address without an image."""
        self._eras: set[int] = set()

    def __len__(self) -> int:
        return len(self.callers)

    def add(self, payload: memoryview, starts: Mapping[int, tuple[int, int]]) -> bool:
        """Add the nodes of a record; return whether it is valid.

        Args:
            payload: of the record.
            starts: by number of an image, its index and start (Avma).
        """
        values = varints(payload)
        if values is None:
            return False
        numbers, image = iter(values), _NOWHERE
        try:
            for caller in numbers:
                image = self._add_chain(caller, numbers, image, starts)
        except (KeyError, StopIteration):  # no such caller or image, or a chain without its end
            return False
        return True

    def _add_chain(
        self,
        node: int,
        numbers: Iterator[int],
        image: tuple[int, int],
        starts: Mapping[int, tuple[int, int]],
    ) -> tuple[int, int]:
        """Add nodes that call one another, from ``node`` on; return the last one's image."""
        rows, images, bits = self.rows, self.images, self._bits
        mask, half = (1 << bits) - 1, (bits + 1) // 2
        row, (index, start) = rows[node], image
        for _ in range(next(numbers)):
            distance, code = next(numbers), next(numbers)
            if code & 1:
                number = next(numbers)
                index, start = starts[number] if number else _NOWHERE
            offset = next(numbers) if index == NO_IMAGE else code >> 1
            address = start + offset & _WORD
            # The number of a node follows from its caller, its address and the distance.
            scattered = node * _SCATTER & mask
            scattered = (scattered ^ scattered >> half) * _SCATTER
            spread = ((address ^ address >> 32) * _SPREAD & _WORD) >> 64 - bits
            node = scattered + spread + distance & mask
            if node in rows:
                raise KeyError(node)
            # Callees of an era's mark are outermost frames.
            self.callers.append(ROOT if row in self._eras else row)
            row = rows[node] = len(images)
            images.append(index)
            self.offsets.append(offset)
            if index == NO_IMAGE and _ERAS <= offset < _MARKS:
                self._eras.add(row)
        return index, start

    def path(self, row: int) -> list[int]:
        """Return the rows of a stack, innermost first."""
        path = []
        while row != ROOT:
            if row not in self._eras:
                path.append(row)
            row = self.callers[row]
        return path

    def is_empty(self, row: int) -> bool:
        """Return whether a stack has no frames: it is the root, or the mark of an era."""
        return row == ROOT or row in self._eras

    def is_cut(self, row: int) -> bool:
        """Return whether a row stands for outer frames that are missing."""
        return self.images[row] == NO_IMAGE and self.offsets[row] in (CUT, SITE)

    def is_site(self, row: int) -> bool:
        """Return whether a stack was not taken: its frame is the call site alone."""
        caller = self.callers[row]
        return any(
            self.images[each] == NO_IMAGE and self.offsets[each] == SITE for each in (row, caller)
        )


def varints(payload: memoryview) -> Sequence[int] | None:
    """Return the unsigned LEB128 numbers in some bytes; None if one is invalid."""
    import numpy as np

    data: npt.NDArray[np.uint8] = np.frombuffer(payload, np.uint8)
    if not len(data):
        return []
    # A number ends with the first byte without the bit.
    ends = np.flatnonzero(data < _MORE)
    if not len(ends) or ends[-1] != len(data) - 1:
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _VARINT_MOST:
        return None
    values = (data[starts] & 127).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        digits = data[starts[longer] + place]
        if place == _VARINT_MOST - 1 and (digits > _LAST_BYTE_MOST).any():
            return None
        values[longer] |= (digits & 127).astype(np.uint64) << np.uint64(7 * place)
    numbers: list[int] = values.tolist()
    return numbers
