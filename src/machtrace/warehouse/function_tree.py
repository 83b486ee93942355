"""Trees of functions: stored stacks with inlined calls as frames, and their weights.

Frames of one function are one node, whatever their call sites, images' builds and segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.frozen import dataclass
from machtrace.model.report import (
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    SampledNode,
    SampledTree,
)
from machtrace.warehouse.stack_tree import StackTree, Weights

if TYPE_CHECKING:
    pass

MAX_NODES = 20_000
"""Nodes of a tree that is shown: the heaviest."""


class Function(NamedTuple):
    """A function, in all builds of its image."""

    name: str
    """As it is shown; an offset in the image if it has no name."""
    image: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionTree:
    """Stacks of functions with weights."""

    tree: StackTree
    """Its frames are rows of ``functions``."""
    functions: tuple[Function, ...]
    own: Weights
    """By node: the weight of its own stack."""
    nodes: tuple[npt.NDArray[np.int64], ...]
    """By segment that it is made of, and node of that: the node here; 0 of those without weight."""

    @property
    def totals(self) -> Weights:
        """By node: the weight at and below it."""
        return self.tree.totals(self.own)


def heaviest(tree: FunctionTree, most: int = MAX_NODES) -> FunctionTree:
    """Return the tree with its heaviest nodes alone; what is below others is added to these.

    Of equal ones the outer ones stay; what equals a node without room is left out as well.
    """
    if len(tree.tree) <= most + 1:
        return tree
    totals, parent = tree.totals, tree.tree.parent
    order = np.lexsort((tree.tree.depth[1:], -totals[1:])) + 1
    # The first one without room.
    weight, depth = totals[order[most]], tree.tree.depth[order[most]]
    keep = (totals > weight) | ((totals == weight) & (tree.tree.depth < depth))
    keep[0] = True
    rows = np.flatnonzero(keep)
    small = StackTree(depth=tree.tree.depth[rows], frame=tree.tree.frame[rows])
    # Pre-order: what is left out is below the last node before it that stays and is its caller.
    links = np.where(keep, np.arange(len(keep)), parent)
    while not np.array_equal(further := links[links], links):
        links = further
    number = np.cumsum(keep) - 1
    moved = number[links]
    own = np.bincount(moved, tree.own, len(rows)).astype(np.int64)
    return FunctionTree(
        tree=small,
        functions=tree.functions,
        own=own,
        nodes=tuple(moved[node] for node in tree.nodes),
    )


def sampled_tree(tree: FunctionTree) -> tuple[SampledTree, tuple[ReportedImage, ...]]:
    """Return the tree as reports have it, with its images."""
    images = {
        name: number
        for number, name in enumerate(dict.fromkeys(function.image for function in tree.functions))
    }
    parents = tree.tree.parent.tolist()
    frames = [
        ReportedFrame(None, images[each.image], None, symbol=ReportedSymbol(each.name, None))
        for each in tree.functions
    ]
    nodes = tuple(
        SampledNode(None if not parents[row] else parents[row] - 1, total, frames[frame])
        for row, (total, frame) in enumerate(
            zip(tree.totals.tolist(), tree.tree.frame.tolist(), strict=True)
        )
        if row
    )
    return SampledTree(nodes=nodes), tuple(ReportedImage(name=name) for name in images)
