"""Distinct stacks as a tree in pre-order, so that what is below a node is an interval of rows.

A row is a frame with its depth; the callers of a frame have lower depths before it. Siblings are
ascending by frame, so that equal sets of stacks are equal columns, whatever the order of arrival.
If the package was built with its extensions, trees are joined by ``native/stack_tree/tree.c``;
otherwise level by level here, with the same result.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass

try:
    from machtrace._native import _stack_tree
except ImportError:  # built without a C compiler
    _stack_tree = None  # type: ignore[assignment]  # checked before each use

Nodes: TypeAlias = npt.NDArray[np.int32]
"""Numbers of nodes: rows of a tree."""
Frames: TypeAlias = npt.NDArray[np.uint32]
"""Numbers of frames: rows of a table of frames."""
Weights: TypeAlias = npt.NDArray[np.int64]
FRAME_KEY_SIZE = 32
STACK_KEY_SIZE = 16


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for its cached properties
class StackTree:
    """Distinct stacks. Row 0 is the root, of depth 0, which is the empty stack."""

    depth: npt.NDArray[np.uint32]
    frame: Frames

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def parent(self) -> Nodes:
        """By node: the caller's row; the root's is the root."""
        return self._links[0]

    @property
    def end(self) -> Nodes:
        """By node: the row after the last one below it."""
        return self._links[1]

    @cached_property
    def _links(self) -> tuple[Nodes, Nodes]:
        if _stack_tree is None:
            return links_by_level(self.depth)
        try:
            parent, end = _stack_tree.links(np.ascontiguousarray(self.depth).data)
        except ValueError as error:
            raise ArgumentError(f"stacks: {error}") from None
        return np.frombuffer(parent, np.int32), np.frombuffer(end, np.int32)

    def stack(self, node: int) -> list[int]:
        """Return the frames of a node's stack, the innermost first."""
        frames = []
        while node:
            frames.append(int(self.frame[node]))
            node = int(self.parent[node])
        return frames

    def totals(self, own: Weights) -> Weights:
        """Return the weight at and below each node.

        Args:
            own: the weight of each node's own stack; or rows of several weights.
        """
        zero = np.zeros((1, *own.shape[1:]), own.dtype)
        sums = np.concatenate((zero, np.cumsum(own, axis=0)))
        return np.asarray(sums[self.end] - sums[:-1])

    def check(self, frames: int) -> None:
        """Check columns of a source that is not trusted.

        Raises:
            ArgumentError: the columns are no tree in pre-order, or a frame does not exist.
        """
        size = len(self.depth)
        if size == 0 or len(self.frame) != size or self.depth[0] != 0:
            raise ArgumentError("stacks: columns without a root, or of different lengths")
        depth = self.depth.astype(np.int64)
        if (depth[1:] < 1).any() or (np.diff(depth) > 1).any():
            raise ArgumentError("stacks: a frame's caller is not before it")
        if (self.frame[1:] >= frames).any():
            raise ArgumentError("stacks: a frame that is not listed")


class Joined(NamedTuple):
    """A tree, and the node of each row that it was made of."""

    tree: StackTree
    node: Nodes


EMPTY_TREE = StackTree(depth=np.zeros(1, np.uint32), frame=np.zeros(1, np.uint32))


def join(depth: npt.ArrayLike, frame: npt.ArrayLike) -> Joined:
    """Return the tree of rows, and the node of each.

    A row is called by the last row before it whose depth is less by one. So a list of stacks is
    rows, each stack from the outermost frame, of depth 1, inwards; trees behind each other are,
    without their roots.

    Raises:
        ArgumentError: a row has no caller, or the columns differ in length.
    """
    depths = np.ascontiguousarray(depth, np.uint32)
    frames = np.ascontiguousarray(frame, np.uint32)
    if _stack_tree is None:
        return join_by_level(depths, frames)
    try:
        columns = _stack_tree.join(depths.data, frames.data)
    except ValueError as error:
        raise ArgumentError(f"stacks: {error}") from None
    return _joined(columns)


def _joined(columns: tuple[bytearray, bytearray, bytearray]) -> Joined:
    depth, frame, node = columns
    tree = StackTree(depth=np.frombuffer(depth, np.uint32), frame=np.frombuffer(frame, np.uint32))
    return Joined(tree, np.frombuffer(node, np.int32))


def join_stacks(frame: npt.ArrayLike, starts: npt.NDArray[np.int64]) -> Joined:
    """Return the tree of stacks behind each other, and the node of each of their rows.

    Args:
        frame: the frames, of each stack from the outermost inwards.
        starts: the first row of each stack, and the end of the last.

    Raises:
        ArgumentError: the starts do not ascend from 0 to the number of frames.
    """
    frames = np.ascontiguousarray(frame, np.uint32)
    first = np.ascontiguousarray(starts, np.int64)
    if not len(first) or first[0] != 0 or first[-1] != len(frames) or (np.diff(first) < 0).any():
        raise ArgumentError("stacks: starts that do not ascend from 0 to the number of frames")
    if _stack_tree is None:
        return join_by_level(rows_of(frames, first), frames)
    try:
        columns = _stack_tree.join_stacks(frames.data, first[1:].data)
    except ValueError as error:
        raise ArgumentError(f"stacks: {error}") from None
    return _joined(columns)


def join_by_level(depth: npt.NDArray[np.uint32], frame: Frames) -> Joined:
    """Return what :func:`join` does, in numpy alone: one level of all rows after the other.

    Raises:
        ArgumentError: a row has no caller, or the columns differ in length.
    """
    if len(depth) != len(frame):
        raise ArgumentError("stacks: as many frames as depths")
    before = np.concatenate((np.zeros(1, np.int64), depth[:-1].astype(np.int64)))
    if len(depth) and ((depth == 0) | (depth > before + 1)).any():
        raise ArgumentError("stacks: a frame's caller is not before it")
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    number = np.zeros(len(depth) + 1, np.int64)  # by row, in order of levels; last: the root
    callers = np.array([len(depth)])
    parents, frames, starts = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [0, 1]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[begin:end]
        outer = callers[np.searchsorted(callers, rows) - 1] if begin else callers[[0] * len(rows)]
        keys = number[outer].astype(np.uint64) << np.uint64(32) | frame[rows].astype(np.uint64)
        distinct, inverse = np.unique(keys, return_inverse=True)
        number[rows] = starts[-1] + inverse.reshape(-1)
        parents.append((distinct >> np.uint64(32)).astype(np.int64))
        frames.append((distinct & np.uint64(0xFFFF_FFFF)).astype(np.int64))
        starts.append(starts[-1] + len(distinct))
        callers = rows
    return _in_pre_order(np.concatenate(parents), np.concatenate(frames), starts, number[:-1])


def links_by_level(depth: npt.NDArray[np.uint32]) -> tuple[Nodes, Nodes]:
    """Return the parents and ends of a tree's nodes, in numpy alone."""
    parent = np.zeros(len(depth), np.int32)
    end = np.full(len(depth), len(depth), np.int32)
    order = np.argsort(depth, kind="stable").astype(np.int32)
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(1, len(bounds) - 1):
        rows = order[bounds[level] : bounds[level + 1]]
        callers = order[bounds[level - 1] : bounds[level]]
        parent[rows] = callers[np.searchsorted(callers, rows) - 1]
        # It ends where its sibling begins, or with its caller.
        end[rows[:-1]] = np.minimum(rows[1:], end[parent[rows[:-1]]])
        end[rows[-1:]] = end[parent[rows[-1:]]]
    return parent, end


def _in_pre_order(
    parent: npt.NDArray[np.int64],
    frame: npt.NDArray[np.int64],
    starts: list[int],
    number: npt.NDArray[np.int64],
) -> Joined:
    """Return the tree of nodes by level, siblings ascending, and the new numbers."""
    size = np.ones(len(parent), np.int64)
    levels = list(pairwise(starts[1:]))
    for begin, end in reversed(levels):
        np.add.at(size, parent[begin:end], size[begin:end])
    place = np.zeros(len(parent), np.int64)
    depth = np.zeros(len(parent), np.uint32)
    for level, (begin, end) in enumerate(levels, 1):
        callers = parent[begin:end]
        before = np.cumsum(size[begin:end]) - size[begin:end]
        is_first = np.concatenate((np.ones(1, np.bool_), callers[1:] != callers[:-1]))
        base = np.maximum.accumulate(np.where(is_first, before, 0))
        place[begin:end] = place[callers] + 1 + before - base
        depth[begin:end] = level
    order = np.argsort(place)
    tree = StackTree(depth=depth[order], frame=frame[order].astype(np.uint32))
    return Joined(tree, place[number].astype(np.int32))


def rows_of(frames: npt.ArrayLike, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the depths of the frames of stacks behind each other, each from the outermost inwards.

    Args:
        frames: the frames.
        starts: the first row of each stack, and the end of the last.
    """
    counts = np.diff(starts)
    rows = np.arange(len(np.asarray(frames)), dtype=np.int64)
    return np.asarray(rows - np.repeat(starts[:-1], counts) + 1, np.uint32)


def stack_keys(
    tree: StackTree, frame_keys: npt.NDArray[np.uint8], nodes: npt.NDArray[Any]
) -> npt.NDArray[np.void]:
    """Return the keys of stacks: equal keys are equal stacks, in every warehouse.

    Args:
        tree: the stacks.
        frame_keys: by frame, :data:`FRAME_KEY_SIZE` bytes that identify it everywhere.
        nodes: whose stacks.

    Returns:
        By node :data:`STACK_KEY_SIZE` bytes: BLAKE2b of the keys of the frames, the outermost
        first.
    """
    distinct, inverse = np.unique(np.asarray(nodes, np.int32), return_inverse=True)
    if _stack_tree is None:
        keys = bytearray().join(_key(tree, frame_keys, node) for node in distinct.tolist())
    else:
        columns = (tree.depth, tree.frame, frame_keys, distinct)
        keys = _stack_tree.stack_keys(*(np.ascontiguousarray(column).data for column in columns))
    return np.frombuffer(keys, f"V{STACK_KEY_SIZE}")[inverse.reshape(-1)]


def _key(tree: StackTree, frame_keys: npt.NDArray[np.uint8], node: int) -> bytes:
    frames = tree.stack(node)[::-1]
    return blake2b(frame_keys[frames].tobytes(), digest_size=STACK_KEY_SIZE).digest()
