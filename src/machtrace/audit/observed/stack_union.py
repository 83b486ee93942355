"""The union of trees of stacks: equal stacks of several processes have one node.

Nodes are compared by caller, image and offset, level by level from the root, so that equality is
exact and no hash is compared.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.trail.stacks import NO_IMAGE, ROOT, Nodes, StackTree, path_sums

_PENDING_LEAST = 1 << 22
"""Nodes that are joined at once; with fewer the union itself would be sorted too often."""


class GrowingUnion:
    """The union of many trees, of which only the last ones are in memory beside it.

    Trees are joined when they have as many nodes as the union, so that the time is proportional to
    the nodes of all trees times the logarithm.
    """

    def __init__(self) -> None:
        self._tree = empty_tree()
        self._columns: list[MutableMapping[str, npt.NDArray[Any]]] = []
        """One for each tree: those that are in the union, and of the pending ones."""
        self._pending: list[StackTree] = []
        self._size = 0

    def add(self, tree: StackTree, columns: MutableMapping[str, npt.NDArray[Any]]) -> None:
        """Add a tree.

        Args:
            tree: its images have the same numbers as those of others.
            columns: ``stack`` has nodes of the tree; it is replaced with nodes of the union.
        """
        self._columns.append(columns)
        self._pending.append(tree)
        self._size += len(tree)
        if self._size > max(_PENDING_LEAST, len(self._tree)):
            self._join()

    def tree(self) -> StackTree:
        """Return the union; the columns have its nodes from then on."""
        self._join()
        return self._tree

    def _join(self) -> None:
        joined = len(self._columns) - len(self._pending)
        union = union_of([self._tree, *self._pending])
        self._tree = union.tree
        self._pending.clear()
        self._size = 0
        for columns in self._columns[:joined]:
            columns["stack"] = union.nodes[0][columns["stack"]]
        for columns, nodes in zip(self._columns[joined:], union.nodes[1:], strict=True):
            columns["stack"] = nodes[columns["stack"]]


class Union(NamedTuple):
    """A tree that has the stacks of several trees."""

    tree: StackTree
    nodes: tuple[Nodes, ...]
    """For each of the trees: the node of the union, by its own node."""


def empty_tree() -> StackTree:
    """Return a tree of the root alone."""
    return StackTree(
        parent=np.zeros(1, np.int32),
        image=np.full(1, NO_IMAGE, np.int32),
        offset=np.zeros(1, np.uint64),
    )


def union_of(trees: Sequence[StackTree]) -> Union:
    """Return the union of trees whose images have the same numbers."""
    sizes = [len(tree) - 1 for tree in trees]
    starts = np.cumsum([1, *sizes])
    parent, image, offset = _joined(trees, starts)
    depth = path_sums(parent, np.arange(len(parent)) != ROOT)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    number = np.zeros(len(parent), np.int32)
    firsts = [np.zeros(1, np.int64)]
    size = 1
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[begin:end]
        callers = number[parent[rows]].astype(np.uint64) << np.uint64(32)
        keys = callers | (image[rows].astype(np.int64) + 1).astype(np.uint64)
        by_key = np.lexsort((offset[rows], keys))
        ordered = rows[by_key]
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = np.diff(keys[by_key]).astype(np.bool_)
        is_new[1:] |= offset[ordered][1:] != offset[ordered][:-1]
        number[ordered] = size - 1 + np.cumsum(is_new, dtype=np.int32)
        firsts.append(ordered[is_new])
        size += len(firsts[-1])
    row = np.concatenate(firsts)
    tree = StackTree(parent=number[parent[row]], image=image[row], offset=offset[row])
    root = np.zeros(1, np.int32)
    nodes = tuple(
        np.concatenate((root, number[start : start + count]))
        for start, count in zip(starts.tolist(), sizes, strict=False)
    )
    return Union(tree, nodes)


def _joined(
    trees: Sequence[StackTree], starts: npt.NDArray[np.int64]
) -> tuple[Nodes, npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """Return the columns of all trees, below one root."""
    parents = [np.zeros(1, np.int32)]
    images = [np.full(1, NO_IMAGE, np.int32)]
    offsets = [np.zeros(1, np.uint64)]
    for tree, start in zip(trees, starts.tolist(), strict=False):
        callers = tree.parent[1:]
        parents.append(np.where(callers == ROOT, ROOT, callers + (start - 1)).astype(np.int32))
        images.append(tree.image[1:])
        offsets.append(tree.offset[1:])
    return np.concatenate(parents), np.concatenate(images), np.concatenate(offsets)
