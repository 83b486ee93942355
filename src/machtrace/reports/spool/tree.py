"""The stacks of a spool: a tree whose nodes are a frame with all its callers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from machtrace.reports.spool.node_columns import SCATTER, SPREAD, NodeColumns, node_columns, varints

_WORD = (1 << 64) - 1
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
    """Nodes in the order in which they were stored, callers first; a row for each."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._numbers: npt.NDArray[np.uint64] | None = None
        self._rows: dict[int, int] | None = {ROOT: ROOT}
        self._order: npt.NDArray[np.int64] | None = None
        """Rows by their numbers."""
        self.callers = array("I", [ROOT])
        """The row of the caller; marks of eras are skipped."""
        self.images = array("i", [NO_IMAGE])
        """The index of the image."""
        self.offsets = array("Q", [0])
        """Bytes from the image's start; the whole address without an image."""
        self._eras: set[int] = set()

    def __len__(self) -> int:
        return len(self.callers)

    @property
    def rows(self) -> dict[int, int]:
        """The row of each node number."""
        if self._rows is None:
            self._rows = {number: row for row, number in enumerate(self.numbers.tolist())}
        return self._rows

    @property
    def numbers(self) -> npt.NDArray[np.uint64]:
        """The node number of each row."""
        if self._numbers is None or len(self._numbers) != len(self):
            # Rows were added in their order.
            self._numbers = np.fromiter(self.rows, np.uint64, len(self.rows))
        return self._numbers

    def rows_of(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the rows of node numbers; the root's for those that are not stored."""
        if self._order is None or len(self._order) != len(self):
            self._order = np.argsort(self.numbers)
        ordered = self.numbers[self._order]
        wanted = numbers.astype(np.uint64)
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        return np.where(ordered[at] == wanted, self._order[at], ROOT)

    def are_sites(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return :meth:`is_site` of rows."""
        is_mark = (np.array(self.images) == NO_IMAGE) & (np.array(self.offsets) == SITE)
        return np.asarray(is_mark[rows] | is_mark[np.array(self.callers)[rows]])

    def read(self, payloads: Sequence[memoryview], starts: Mapping[int, tuple[int, int]]) -> int:
        """Set the nodes of all records of a log; return how many of these are invalid.

        Args:
            payloads: of the records.
            starts: by number of an image, its index and start (Avma).
        """
        columns = node_columns(payloads, starts, self._bits)
        if columns is None:  # as far as the records are valid
            return sum(not self.add(payload, starts) for payload in payloads)
        self._set(columns)
        return 0

    def _set(self, columns: NodeColumns) -> None:
        offset, image = columns.offset, columns.image
        is_mark = (image == NO_IMAGE) & (offset >= _ERAS) & (offset < _MARKS)
        caller = columns.caller + 1
        eras = np.flatnonzero(is_mark) + 1
        if len(eras):
            caller[np.isin(caller, eras)] = ROOT
        self._eras = set(eras.tolist())
        self._numbers, self._rows = np.append(np.uint64(ROOT), columns.number), None
        self.callers.frombytes(caller.astype(np.uint32).tobytes())
        self.images.frombytes(image.astype(np.int32).tobytes())
        self.offsets.frombytes(offset.tobytes())

    def add(self, payload: memoryview, starts: Mapping[int, tuple[int, int]]) -> bool:
        """Add the nodes of a record, one by one; return whether it is valid.

        Args:
            payload: of the record.
            starts: by number of an image, its index and start (Avma).
        """
        values = varints(np.frombuffer(payload, np.uint8))
        if values is None:
            return False
        numbers, image = iter(values.tolist()), _NOWHERE
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
            scattered = node * SCATTER & mask
            scattered = (scattered ^ scattered >> half) * SCATTER
            spread = ((address ^ address >> 32) * SPREAD & _WORD) >> 64 - bits
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
