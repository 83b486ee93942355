"""Selected stacks with every frame's calls as rows, which are not joined.

A row is a function in a stack of a segment; several rows of one caller may have the same function.
That is enough to count by function, and to choose the stacks to be joined: much less than all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.warehouse.forest import Forest
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.stack_tree import StackTree, Weights


class Rows(NamedTuple):
    """Stacks that are not joined."""

    tree: FunctionTree
    last: npt.NDArray[np.int64]
    """By node of the forest: the row of its innermost call; 0 of those without weight."""


def rows_of(forest: Forest, own: Weights) -> Rows:
    """Return the rows of the nodes that have any weight at or below them.

    Args:
        forest: the stacks.
        own: the weight of each of their nodes.
    """
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(own)))
    used = sums[forest.end] != sums[:-1]
    used[0] = False
    nodes = np.flatnonzero(used)
    first = forest.calls.first.astype(np.int64)
    frame = forest.frame[nodes]
    size = first[frame + 1] - first[frame]
    # A node's rows are below those of all nodes that began before it and did not end.
    change = np.zeros(len(forest.end) + 1, np.int64)
    change[nodes] = size
    np.subtract.at(change, forest.end[nodes], size)
    outer = np.cumsum(change)[:-1][nodes] - size
    ends = np.cumsum(size)
    within = np.arange(int(size.sum())) - np.repeat(ends - size, size)
    functions, number = _functions(forest)
    depth = np.concatenate(([0], np.repeat(outer, size) + within + 1))
    called = np.concatenate(([0], number[np.repeat(first[frame], size) + within]))
    last = np.zeros(len(forest.end), np.int64)
    last[nodes] = ends
    weights = np.zeros(len(depth), np.int64)
    weights[last[nodes]] = own[nodes]
    tree = StackTree(depth=depth.astype(np.uint32), frame=called.astype(np.uint32))
    return Rows(FunctionTree(tree=tree, functions=functions, own=weights, nodes=()), last)


def _functions(forest: Forest) -> tuple[tuple[Function, ...], npt.NDArray[np.int64]]:
    """Return the distinct functions, and by call the number of its own."""
    calls = forest.calls
    order = np.lexsort((calls.name, calls.image))
    image, name = calls.image[order], calls.name[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (image[1:] != image[:-1]) | (name[1:] != name[:-1])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return tuple(calls.function(at) for at in order[is_new].tolist()), number
