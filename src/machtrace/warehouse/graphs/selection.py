"""Parts of a tree of functions: by function, below some nodes, and each node's weight once.

A function that calls itself is in its own subtree. Nodes in pre-order are intervals that are nested
or disjoint, so that the outermost of a set are those that begin after all earlier ones have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.stack_tree import Nodes, StackTree, Weights, join

Mask = npt.NDArray[np.bool_]


class FunctionCost(NamedTuple):
    """The weight of a function in all stacks."""

    function: Function
    own: int
    """The weight of stacks in which it is the innermost."""
    total: int
    """The weight of stacks that it is in, each once."""


def outermost(tree: StackTree, chosen: npt.NDArray[np.int64]) -> Mask:
    """Return which nodes have a group, and no caller of the same group.

    Args:
        tree: the stacks.
        chosen: by node: its group; negative: none.
    """
    nodes = np.flatnonzero(chosen >= 0)
    nodes = nodes[np.argsort(chosen[nodes], kind="stable")]
    mask = np.zeros(len(tree), np.bool_)
    if len(nodes):
        base = chosen[nodes] * (len(tree) + 1)
        ends = np.maximum.accumulate(base + tree.end[nodes])
        mask[nodes] = np.concatenate(([True], base[1:] + nodes[1:] >= ends[:-1]))
    return mask


def function_costs(tree: FunctionTree) -> list[FunctionCost]:
    """Return the weights of all functions that have any, the heaviest first."""
    frame = tree.tree.frame.astype(np.int64)
    frame[0] = -1
    size = len(tree.functions)
    mask = outermost(tree.tree, frame)
    total = np.bincount(frame[mask], tree.totals[mask], size).astype(np.int64)
    own = np.bincount(frame[1:], tree.own[1:], size).astype(np.int64)
    order = np.lexsort((np.arange(size), -own, -total))
    return [
        FunctionCost(tree.functions[at], int(own[at]), int(total[at]))
        for at in order.tolist()
        if total[at]
    ]


def nodes_of(tree: FunctionTree, name: str, image: str | None = None) -> Mask:
    """Return the outermost nodes of the functions with a name.

    Args:
        tree: the stacks.
        name: the function's.
        image: its image; None: any.
    """
    numbers = [
        at
        for at, each in enumerate(tree.functions)
        if each.name == name and image in (None, each.image)
    ]
    groups = np.where(np.isin(tree.tree.frame, np.array(numbers, np.int64)), 0, -1)
    groups[0] = -1
    return outermost(tree.tree, groups.astype(np.int64))


def inside(tree: StackTree, nodes: Mask) -> Mask:
    """Return which nodes are one of some, or below one."""
    places = np.flatnonzero(nodes)
    change = np.bincount(places, minlength=len(tree) + 1)
    change -= np.bincount(tree.end[places], minlength=len(tree) + 1)
    return np.asarray(np.cumsum(change)[:-1] > 0)


def through(tree: FunctionTree, nodes: Mask) -> FunctionTree:
    """Return the stacks that are at or below some nodes, with all of their callers."""
    own = np.where(inside(tree.tree, nodes), tree.own, 0)
    keep = tree.tree.totals(own) != 0
    keep[0] = True
    rows = np.flatnonzero(keep)
    small = StackTree(depth=tree.tree.depth[rows], frame=tree.tree.frame[rows])
    return FunctionTree(tree=small, functions=tree.functions, own=own[rows], nodes=())


def below(tree: FunctionTree, nodes: Mask) -> FunctionTree:
    """Return the subtrees of nodes that are not below each other, as one tree."""
    rows = np.flatnonzero(inside(tree.tree, nodes))
    starts = np.flatnonzero(nodes)
    # Each row is below the last start before it.
    start = starts[np.searchsorted(starts, rows, side="right") - 1] if len(rows) else rows
    depth = tree.tree.depth[rows] - tree.tree.depth[start] + 1
    return joined(tree, depth, tree.tree.frame[rows], tree.own[rows])


def above(tree: FunctionTree, nodes: Mask) -> FunctionTree:
    """Return the callers of nodes that are not below each other, the nodes outermost.

    The weight of each path is that at and below its node.
    """
    at = np.flatnonzero(nodes)
    totals = tree.totals
    parent = tree.tree.parent
    numbers = [np.arange(len(at))]
    frames = [tree.tree.frame[at]]
    up, path = parent[at], np.arange(len(at))
    while (left := up != 0).any():
        up, path = up[left], path[left]
        numbers.append(path)
        frames.append(tree.tree.frame[up])
        up = parent[up]
    level = np.repeat(np.arange(len(frames)), [len(each) for each in frames])
    number, frame = np.concatenate(numbers), np.concatenate(frames)
    order = np.lexsort((level, number))
    number, level = number[order], level[order]
    weights = np.zeros(len(order), np.int64)
    if len(order):
        is_last = np.append(number[1:] != number[:-1], True)
        weights[is_last] = totals[at]
    return joined(tree, level + 1, frame[order], weights)


def joined(
    tree: FunctionTree, depth: npt.ArrayLike, frame: npt.ArrayLike, weights: Weights
) -> FunctionTree:
    """Return rows as one tree of the same functions; the rows are as for ``stack_tree.join``."""
    made = join(depth, frame)
    own = np.bincount(made.node, weights, len(made.tree)).astype(np.int64)
    return FunctionTree(tree=made.tree, functions=tree.functions, own=own, nodes=())


def nearest(tree: StackTree, chosen: Mask) -> Nodes:
    """Return by node the innermost chosen one among itself and its callers; 0: none."""
    links = np.where(chosen, np.arange(len(tree), dtype=np.int32), tree.parent)
    while not np.array_equal(further := links[links], links):
        links = further
    return links


def owners(tree: FunctionTree, by_image: Mapping[str, str]) -> list[str]:
    """Return by function the owner of its image: app, system or unknown."""
    return [by_image.get(function.image, "unknown") for function in tree.functions]
