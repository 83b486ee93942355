"""Stacks as a tree: equal stacks have one node, and different ones have different nodes.

A node is the code address of a frame and the node of its caller. Node 0 is the root, the caller of
outermost frames. A node's parent has a lower number, so that columns are computed from the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass

Nodes: TypeAlias = npt.NDArray[np.int32]
"""Numbers of nodes."""
Mask: TypeAlias = npt.NDArray[np.bool_]
ROOT = 0
NO_IMAGE = -1
"""The image of code outside of images, and of marks."""
OUTER_MISSING = 1
"""The offset of a mark, without an image, that stands for missing outer frames."""
SEVERAL = 2
"""That of a mark for functions of one library or of another."""
UNKNOWN_JUMP = 3
"""That of a mark for code that a function jumped to."""


class CodeAddress(NamedTuple):
    """A frame's return address, in a trail."""

    image: int
    """The index of the image, or :data:`NO_IMAGE`."""
    offset: int
    """From the image's start; without an image the address."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackTree:
    """The nodes, as columns of equal length."""

    parent: Nodes
    image: npt.NDArray[np.int32]
    offset: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.parent)

    def frames(self, node: int) -> list[CodeAddress]:
        """Return a stack, the innermost frame first."""
        nodes: list[int] = []
        caller = self.parent.item
        while node != ROOT:
            nodes.append(node)
            node = caller(node)
        rows = np.array(nodes, np.int64)
        return list(map(CodeAddress, self.image[rows].tolist(), self.offset[rows].tolist()))

    @property
    def depth(self) -> npt.NDArray[np.int32]:
        """By node: the number of frames."""
        return path_sums(self.parent, np.arange(len(self)) != ROOT)

    def check(self, images: int) -> None:
        """Check columns of a source that is not trusted.

        Raises:
            ArgumentError: a parent does not precede its node, or an image does not exist.
        """
        size = len(self.parent)
        if size == 0 or len(self.image) != size or len(self.offset) != size:
            raise ArgumentError("stacks: columns without a root, or of different lengths")
        if self.parent[ROOT] != ROOT:
            raise ArgumentError("stacks: the root has a caller")
        later = (self.parent[1:] >= np.arange(1, size)) | (self.parent[1:] < ROOT)
        if later.any():
            raise ArgumentError(f"stacks: node {int(np.argmax(later)) + 1} precedes its caller")
        if ((self.image < NO_IMAGE) | (self.image >= images)).any():
            raise ArgumentError("stacks: a frame is in an image that is not listed")


class StackTreeBuilder:
    """Adds stacks one by one."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._rows: list[tuple[int, int, int]] = [(ROOT, NO_IMAGE, 0)]

    def add(self, frames: Sequence[tuple[int, int]]) -> int:
        """Return the node of a stack.

        Args:
            frames: image and offset of each frame, the innermost first.
        """
        node = ROOT
        for image, offset in reversed(frames):
            row = node, image, offset
            known = self._nodes.get(row)
            if known is None:
                known = self._nodes[row] = len(self._rows)
                self._rows.append(row)
            node = known
        return node

    def build(self) -> StackTree:
        """Return the tree of what was added."""
        parents, images, offsets = zip(*self._rows, strict=True)
        return StackTree(
            parent=np.array(parents, np.int32),
            image=np.array(images, np.int32),
            offset=np.array(offsets, np.uint64),
        )


def tree_of(stacks: Iterable[Sequence[tuple[int, int]]]) -> tuple[StackTree, Nodes]:
    """Return a tree, and the node of each stack."""
    builder = StackTreeBuilder()
    nodes = [builder.add(stack) for stack in stacks]
    return builder.build(), np.array(nodes, np.int32)


def follow(links: Nodes) -> Nodes:
    """Return where each node's chain of links ends: at a node that links to itself.

    Links are doubled until nothing changes, which takes the logarithm of the longest chain; all
    links must lead to lower numbers.
    """
    ends = links
    while True:
        further = ends[ends]
        if np.array_equal(further, ends):
            return ends
        ends = further


def reach(tree: StackTree, stops: Mask) -> Nodes:
    """Return for each node the innermost one of its stack, from itself outward, that stops.

    The root always stops.
    """
    links = np.where(stops, np.arange(len(tree), dtype=np.int32), tree.parent)
    links[ROOT] = ROOT
    return follow(links)


def path_sums(parent: Nodes, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Return for each node how many of its stack's nodes, with itself, have a value."""
    sums = values.astype(np.int32)
    sums[ROOT] = 0  # its caller is itself: it would be counted at every doubling
    links = parent
    while links.any():
        sums = sums + sums[links]
        links = links[links]
    return sums
