"""Trees of functions: stored stacks with inlined calls as frames, and their weights.

Frames of one function are one node, whatever their call sites, images' builds and segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.stack_tree import EMPTY_TREE, StackTree, Weights, join

if TYPE_CHECKING:
    import pyarrow as pa

MOST_NODES = 20_000
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


def parts_of(rows: pa.Table, read: Callable[[int], Segment]) -> Iterator[tuple[Segment, Weights]]:
    """Yield segments, ascending by number, with the weights of their nodes.

    Args:
        rows: segment, node and weight; several of one node add up.
        read: returns a segment by its number.
    """
    columns = {name: numbers(rows, name) for name in ("segment", "node", "weight")}
    for number in np.unique(columns["segment"]).tolist():
        here = columns["segment"] == number
        segment = read(number)
        own = np.zeros(len(segment.tree), np.int64)
        np.add.at(own, columns["node"][here], columns["weight"][here])
        yield segment, own


def function_tree(parts: Iterable[tuple[Segment, Weights]]) -> FunctionTree:
    """Return the functions of stacks.

    Args:
        parts: segments, with a weight for each of their nodes.
    """
    numbered: dict[Function, int] = {}
    depths, frames, weights, lasts = [], [], [], []
    start = 0
    for segment, own in parts:
        depth, frame, last = _rows(segment, own, numbered)
        depths.append(depth)
        frames.append(frame)
        weights.append(own)
        lasts.append(np.where(last >= 0, last + start, -1))
        start += len(depth)
    if not start:
        return FunctionTree(
            tree=EMPTY_TREE,
            functions=tuple(numbered),
            own=np.zeros(len(EMPTY_TREE), np.int64),
            nodes=tuple(np.zeros(len(each), np.int64) for each in lasts),
        )
    joined = join(np.concatenate(depths), np.concatenate(frames))
    # The last entry is that of -1: the root.
    numbers_of = np.append(joined.node, np.int32(0)).astype(np.int64)
    nodes = tuple(numbers_of[each] for each in lasts)
    own = np.bincount(np.concatenate(nodes), np.concatenate(weights), len(joined.tree))
    return FunctionTree(
        tree=joined.tree, functions=tuple(numbered), own=own.astype(np.int64), nodes=nodes
    )


def heaviest(tree: FunctionTree, most: int = MOST_NODES) -> FunctionTree:
    """Return the tree with its heaviest nodes alone; what is below others is added to these."""
    if len(tree.tree) <= most + 1:
        return tree
    totals = tree.totals
    least = np.partition(totals, len(totals) - most)[len(totals) - most]
    room = most - np.count_nonzero(totals > least)
    is_least = totals == least
    keep = (totals > least) | (is_least & (np.cumsum(is_least) <= room))
    keep[0] = True
    # A caller is as heavy as its callees, but among equals it may have been left out.
    parent = tree.tree.parent
    while not (inside := keep & keep[parent])[keep].all():
        keep = inside
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
        nodes=tuple(moved[each] for each in tree.nodes),
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


def _rows(
    segment: Segment, own: Weights, numbered: dict[Function, int]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return rows of functions in pre-order, and by node its last row; -1 of nodes without weight.

    Only nodes that have a weight, or are below which one has, have rows.
    """
    tree = segment.tree
    used = tree.totals(own) != 0
    used[0] = False
    nodes = np.flatnonzero(used)
    first, count, calls = _calls_of_frames(segment, tree.frame[nodes], numbered)
    sizes = count[tree.frame[nodes]]
    ends = np.cumsum(sizes)
    last = np.full(len(tree), -1, np.int64)
    last[nodes] = ends - 1
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    # The calls of a frame are outermost first.
    function = calls[np.repeat(first[tree.frame[nodes]], sizes) + within]
    depth = np.zeros(len(tree), np.int64)
    levels = tree.depth[nodes]
    order = np.argsort(levels, kind="stable")
    bounds = np.searchsorted(levels[order], np.arange(1, int(levels.max(initial=0)) + 2))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = nodes[order[begin:end]]
        depth[rows] = depth[tree.parent[rows]] + count[tree.frame[rows]]
    outer = np.repeat(depth[nodes] - sizes, sizes)
    last[own == 0] = -1
    return (outer + within + 1).astype(np.uint32), function.astype(np.uint32), last


def _calls_of_frames(
    segment: Segment, frames: npt.NDArray[np.uint32], numbered: dict[Function, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return by frame its first row of calls, their number, and the functions of all rows."""
    images = segment.images["name"].to_pylist()
    image = numbers(segment.frames, "image")
    named = numbers(segment.names, "frame")
    encoded = segment.names["function"].combine_chunks()
    texts = encoded.dictionary.to_pylist()
    pairs = encoded.indices.to_numpy().astype(np.int64) << 32 | (image[named] + 1)
    distinct, inverse = np.unique(pairs, return_inverse=True)
    numbers_of = np.array(
        [
            _number(
                numbered,
                Function(texts[pair >> 32] or "???", _image(images, (pair & 0xFFFF_FFFF) - 1)),
            )
            for pair in distinct.tolist()
        ],
        np.int64,
    )
    # Names are innermost first; rows of a frame are turned around.
    order = np.lexsort((-numbers(segment.names, "place").astype(np.int64), named))
    of_names = numbers_of[inverse.reshape(-1)][order] if len(named) else numbers_of
    count = np.bincount(named, minlength=segment.frames.num_rows).astype(np.int64)
    first = np.cumsum(count) - count
    missing = np.unique(frames[count[frames] == 0])
    first[missing] = len(of_names) + np.arange(len(missing))
    count[missing] = 1
    rows = segment.frames.take(missing).to_pylist()
    unnamed = [_number(numbered, _unnamed(row, images)) for row in rows]
    return first, count, np.concatenate((of_names, np.array(unnamed, np.int64)))


def _number(numbered: dict[Function, int], function: Function) -> int:
    return numbered.setdefault(function, len(numbered))


def _image(images: list[str], number: int) -> str:
    return images[number] if number >= 0 else ""


def _unnamed(row: dict[str, Any], images: list[str]) -> Function:
    if row["kind"] == FrameKind.TEXT:
        return Function(row["text"] or "???", "")
    return Function(f"{row['offset']:#x}", _image(images, row["image"]))
