"""Trees of segments behind each other, with the functions of their frames, and weights of those.

Only what is shown is made: from the root inwards, what is lighter than the heaviest nodes so far is
not entered. It is made by ``native/stack_tree/heaviest.c`` if the package was built with its
extensions, otherwise of all rows here, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.errors import ArgumentError, FormatError
from machtrace.frozen import dataclass
from machtrace.warehouse.function_tree import Function, FunctionTree, heaviest
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import FrameTables, Segment, numbers
from machtrace.warehouse.segment_files import count_rows, read_frames, read_nodes
from machtrace.warehouse.stack_tree import (
    Frames,
    Nodes,
    StackTree,
    Weights,
    join,
)

if TYPE_CHECKING:
    from machtrace.warehouse.sql import SegmentFiles

try:
    from machtrace._native._stack_tree import heaviest as _heaviest
except ImportError:  # built without a C compiler
    _heaviest = None  # type: ignore[assignment]  # checked before each use

Numbers = npt.NDArray[np.int64]
ALL = 1 << 62
_UNKNOWN = "???"
_CACHED = 1 << 28
"""Bytes of a forest that stays for the next question."""
_cache: dict[tuple[SegmentFiles, ...], Forest] = {}


class Calls(NamedTuple):
    """The calls of frames, the outermost of each frame first."""

    first: npt.NDArray[np.uint32]
    """By frame: its first call; and the end of the last frame's."""
    image: npt.NDArray[np.int32]
    """By call: a row of ``images``; its complement if ``name`` is an offset."""
    name: npt.NDArray[np.uint64]
    """By call: a row of ``names``, or an offset."""
    images: Sequence[str]
    names: pa.Array

    def function(self, call: int) -> Function:
        """Return the function of a call."""
        image, name = int(self.image[call]), int(self.name[call])
        if image < 0:
            return Function(f"{name:#x}", self.images[~image])
        return Function(self.names[name].as_py(), self.images[image])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """The stacks of segments as one tree, in which stacks of several segments are several nodes."""

    frame: Frames
    end: Nodes
    """By node: the one after the last below it."""
    calls: Calls
    starts: dict[int, int]
    """By segment: what is added to its nodes but the root."""

    def nodes_of(self, segment: int, nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the nodes here of a segment's.

        Raises:
            FormatError: one is not listed.
        """
        if len(nodes) and int(nodes.max()) + self.starts[segment] >= len(self.frame):
            raise FormatError("a node that is not listed", source=f"segment {segment}", offset=0)
        return np.where(nodes > 0, nodes.astype(np.int64) + self.starts[segment], 0)

    def depth(self) -> npt.NDArray[np.uint32]:
        """Return the depth of each node."""
        change = np.ones(len(self.end) + 1, np.int64)
        change[0] = 0
        np.subtract.at(change, self.end, 1)
        # A node is below all that began before it and did not end.
        return np.cumsum(change)[:-1].astype(np.uint32)


def read_forest(files: Sequence[SegmentFiles]) -> Forest:
    """Return the stacks of segments; the last ones stay in memory if they are not too large.

    Raises:
        FileAccessError, FormatError: a file cannot be read, or is damaged.
    """
    key = tuple(files)
    known = _cache.get(key)
    if known is not None:
        return known
    sizes = [count_rows(file.folder / "nodes.parquet") for file in files]
    depth = np.zeros(1 + sum(sizes) - len(sizes), np.uint32)
    frame = np.zeros(len(depth), np.uint32)
    tables, starts, at, frames = [], {}, 0, 0
    for each, size in zip(files, sizes, strict=True):
        starts[each.number] = at
        place = slice(at + 1, at + size)
        read_nodes(each.folder / "nodes.parquet", depth[place], frame[place])
        tables.append(read_frames(each.folder, each.names, ["frame", "place", "function"]))
        if frame[place].max(initial=0) >= max(tables[-1].frames.num_rows, 1):
            raise FormatError(
                "stacks: a frame that is not listed", source=str(each.folder), offset=0
            )
        frame[place] += np.uint32(frames)
        at += size - 1
        frames += tables[-1].frames.num_rows
    made = _forest(depth, frame, tables, starts)
    if made.frame.nbytes + made.end.nbytes + made.calls.name.nbytes * 2 <= _CACHED:
        _cache.clear()
        _cache[key] = made
    return made


def forest_of(segments: Sequence[Segment]) -> Forest:
    """Return the stacks of segments, which are numbered from 0."""
    depths, frames, starts = [np.zeros(1, np.uint32)], [np.zeros(1, np.uint32)], {}
    at, base = 0, 0
    for number, segment in enumerate(segments):
        starts[number] = at
        depths.append(segment.tree.depth[1:])
        frames.append(segment.tree.frame[1:] + np.uint32(base))
        at += len(segment.tree) - 1
        base += segment.frames.num_rows
    tables = [FrameTables(each.images, each.frames, each.names) for each in segments]
    return _forest(np.concatenate(depths), np.concatenate(frames), tables, starts)


def functions(
    forest: Forest, own: Weights, most: int = ALL, *, wants_nodes: bool = False
) -> tuple[FunctionTree, Numbers]:
    """Return the heaviest functions of stacks; what is below others is added to these.

    Of equal ones the outer ones stay; what equals a function without room is left out as well.

    Args:
        forest: the stacks.
        own: the weight of each of their nodes.
        most: how many nodes stay, besides the root.
        wants_nodes: whether the second answer has any.

    Returns:
        The tree, and by node of the forest the node of that which it is in, or is below.
    """
    if _heaviest is None:
        return _of_rows(forest, own, most)
    calls = forest.calls
    try:
        answer = _heaviest(
            forest.frame.data,
            forest.end.data,
            np.cumsum(own).data,
            calls.first.data,
            calls.image.data,
            calls.name.data,
            max(most, 1),
            wants_nodes,
        )
    except ValueError as error:
        raise ArgumentError(f"stacks: {error}") from None
    parent, call = (np.frombuffer(each, np.uint32) for each in answer[:2])
    total = np.frombuffer(answer[2], np.int64)
    rest = total.copy()
    np.subtract.at(rest, parent[1:], total[1:])
    listed, function = _listed([calls.function(each) for each in call[1:].tolist()])
    depth, frame, number = _in_pre_order(parent, np.append(np.uint32(0), function))
    weights = np.zeros(len(number), np.int64)
    weights[number] = rest
    tree = StackTree(depth=depth, frame=frame)
    nodes = number[np.frombuffer(answer[3], np.int32)] if wants_nodes else number[:0]
    return FunctionTree(tree=tree, functions=listed, own=weights, nodes=()), nodes


def _forest(
    depth: npt.NDArray[np.uint32],
    frame: Frames,
    tables: Sequence[FrameTables],
    starts: dict[int, int],
) -> Forest:
    end = StackTree(depth=depth, frame=frame).end
    return Forest(frame=frame, end=end, calls=_calls(tables), starts=starts)


def _calls(tables: Sequence[FrameTables]) -> Calls:
    """Return the calls of frames, by images, frames and names of each segment."""
    images: dict[str, int] = {"": 0}
    texts: list[pa.Array] = [pa.array([], pa.string())]
    sizes, image_parts, name_parts, known = [], [], [], 0
    for image_table, frames, named in tables:
        rows = [images.setdefault(name, len(images)) for name in image_table["name"].to_pylist()]
        image_of = np.array([*rows, 0], np.int32)[numbers(frames, "image")]
        encoded = named["function"].combine_chunks()
        order, count = _outermost_first(named, frames.num_rows)
        size = np.maximum(count, 1)
        first = np.cumsum(size) - size
        image = ~np.repeat(image_of, size)
        name = np.repeat(numbers(frames, "offset"), size)
        frame = numbers(named, "frame")[order]
        places = first[frame] + np.arange(len(frame)) - (np.cumsum(count) - count)[frame]
        image[places] = image_of[frame]
        name[places] = encoded.indices.to_numpy()[order].astype(np.uint64) + np.uint64(known)
        known += len(encoded.dictionary)
        bare = np.flatnonzero((count == 0) & (numbers(frames, "kind") == FrameKind.TEXT))
        image[first[bare]] = 0
        name[first[bare]] = np.arange(known, known + len(bare), dtype=np.uint64)
        known += len(bare)
        texts += [encoded.dictionary, frames["text"].take(bare).combine_chunks()]
        sizes.append(size)
        image_parts.append(image)
        name_parts.append(name)
    pool = pa.concat_arrays([text.cast(pa.string()) for text in texts])
    distinct = pc.if_else(pc.equal(pool, ""), _UNKNOWN, pool).dictionary_encode()
    number = distinct.indices.to_numpy().astype(np.uint64)
    image = np.concatenate((np.zeros(0, np.int32), *image_parts))
    name = np.concatenate((np.zeros(0, np.uint64), *name_parts))
    is_text = image >= 0
    name[is_text] = number[name[is_text].astype(np.int64)]
    firsts = np.cumsum(np.concatenate((np.zeros(1, np.int64), *sizes))).astype(np.uint32)
    return Calls(firsts, image, name, list(images), distinct.dictionary)


def _outermost_first(
    named: pa.Table, frames: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the order of names by frame, the outermost call first, and how many a frame has."""
    frame, place = numbers(named, "frame"), numbers(named, "place").astype(np.int64)
    count = np.bincount(frame, minlength=frames).astype(np.int64)
    same = frame[1:] == frame[:-1]
    if np.all((frame[1:] > frame[:-1]) | (same & (place[1:] > place[:-1]))):
        ends = np.cumsum(count)
        return (2 * ends - count)[frame] - 1 - np.arange(len(frame)), count
    return np.lexsort((-place, frame)), count


def _listed(
    functions: Sequence[Function],
) -> tuple[tuple[Function, ...], npt.NDArray[np.uint32]]:
    """Return the distinct functions in order, and the number of each."""
    distinct = sorted(set(functions))
    number = {function: at for at, function in enumerate(distinct)}
    return tuple(distinct), np.array([number[each] for each in functions], np.uint32)


def _in_pre_order(
    parent: npt.NDArray[np.uint32], frame: Frames
) -> tuple[npt.NDArray[np.uint32], Frames, npt.NDArray[np.int64]]:
    """Return depths and frames of a tree, siblings by frame, and the new number of each node.

    Args:
        parent: by node: its caller, which precedes it; the root is the first.
        frame: by node.
    """
    below = np.lexsort((frame[1:], parent[1:])) + 1
    bounds = np.searchsorted(parent[below], np.arange(len(parent) + 1)).tolist()
    callees = below.tolist()
    depth, order = [], []
    waiting = [(0, 0)]
    while waiting:
        node, level = waiting.pop()
        order.append(node)
        depth.append(level)
        inside = callees[bounds[node] : bounds[node + 1]]
        waiting.extend((each, level + 1) for each in reversed(inside))
    number = np.empty(len(parent), np.int64)
    number[order] = np.arange(len(order))
    return np.array(depth, np.uint32), frame[order], number


def _of_rows(forest: Forest, own: Weights, most: int) -> tuple[FunctionTree, Numbers]:
    """Return what :func:`functions` does, in numpy alone: the tree of all, and its heaviest."""
    tree = StackTree(depth=forest.depth(), frame=forest.frame)
    calls = forest.calls
    used = tree.totals(own) != 0
    used[0] = False
    nodes = np.flatnonzero(used)
    first, end = (calls.first[at:][tree.frame[nodes]].astype(np.int64) for at in (0, 1))
    listed, function = _listed([calls.function(at) for at in range(len(calls.name))])
    sizes = end - first
    ends = np.cumsum(sizes)
    within = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    depth = np.zeros(len(tree), np.int64)
    for node in nodes.tolist():
        depth[node] = depth[tree.parent[node]] + np.diff(calls.first[tree.frame[node] :][:2])[0]
    rows = np.repeat(depth[nodes] - sizes, sizes) + within + 1
    joined = join(rows, function[np.repeat(first, sizes) + within])
    last = np.zeros(len(tree), np.int64)
    last[nodes] = joined.node[ends - 1]
    weights = np.zeros(len(joined.tree), np.int64)
    np.add.at(weights, last, own)
    whole = FunctionTree(tree=joined.tree, functions=listed, own=weights, nodes=(last,))
    small = heaviest(whole, most)
    used_functions = np.unique(small.tree.frame[1:])
    number = np.zeros(max(1, len(listed)), np.uint32)  # the root has a row, of no function
    number[used_functions] = np.arange(len(used_functions))
    return FunctionTree(
        tree=StackTree(depth=small.tree.depth, frame=number[small.tree.frame]),
        functions=tuple(listed[at] for at in used_functions.tolist()),
        own=small.own,
        nodes=(),
    ), small.nodes[0]
