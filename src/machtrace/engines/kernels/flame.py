"""Flame totals: the functions of all stacks as one tree in pre-order, with weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.warehouse.forest import forest_of
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.stack_tree import StackTree, join

_TEXT = pa.dictionary(pa.int32(), pa.string())
TREE = pa.schema([("depth", pa.uint32()), ("function", _TEXT), ("own", pa.int64())])
"""Row 0 is the root. ``function`` is its image and its name, with a zero byte between them."""
FLAME = pa.schema(
    [
        ("depth", pa.uint32()),
        ("function", _TEXT),
        ("image", _TEXT),
        ("own", pa.int64()),
        ("total", pa.int64()),
    ]
)
_BETWEEN = "\0"


def tree_of(segment: Segment) -> pa.Table:
    """Return the functions of a segment's stacks as :data:`TREE`."""
    own = np.zeros(len(segment.tree), np.int64)
    np.add.at(own, numbers(segment.occurrences, "node"), numbers(segment.occurrences, "weight"))
    forest = forest_of([segment])
    used = segment.tree.totals(own) != 0
    used[0] = False
    nodes = np.flatnonzero(used)
    first = forest.calls.first.astype(np.int64)
    frame = segment.tree.frame
    sizes = np.diff(first)[frame]
    sizes[0] = 0
    # Calls of all callers: what began before a node, without what ended before it.
    ended = np.zeros(len(frame) + 1, np.int64)
    np.add.at(ended, segment.tree.end, sizes)
    depth = np.cumsum(sizes) - np.cumsum(ended[:-1])
    counts = sizes[nodes]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    calls = np.repeat(first[frame[nodes]], counts) + within
    weights = np.zeros(len(calls), np.int64)
    # A stack is the innermost call of its node.
    weights[np.cumsum(counts) - 1] = own[nodes]
    present, index = np.unique(calls, return_inverse=True)
    listed = [forest.calls.function(call) for call in present.tolist()]
    names: dict[str, int] = {}
    number = [names.setdefault(f"{each.image}{_BETWEEN}{each.name}", len(names)) for each in listed]
    return _canonical(
        np.append(0, np.repeat(depth[nodes] - counts, counts) + within + 1).astype(np.uint32),
        np.append(0, np.array(number, np.int64)[index.reshape(-1)]),
        np.array(list(names) or [_BETWEEN], object),
        np.append(own[0], weights),
    )


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the union of trees."""
    every = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    functions = _only_chunk(every["function"])
    return _canonical(
        numbers(every, "depth"),
        functions.indices.to_numpy(),
        functions.dictionary.to_numpy(zero_copy_only=False),
        numbers(every, "own"),
    )


def finished(tree: pa.Table) -> pa.Table:
    """Return the tree as :data:`FLAME`, without its root."""
    functions = _only_chunk(tree["function"])
    index = functions.indices.to_numpy()
    depth, own = numbers(tree, "depth"), numbers(tree, "own")
    totals = StackTree(depth=depth, frame=index.astype(np.uint32)).totals(own)
    pairs = [each.split(_BETWEEN, 1) for each in functions.dictionary.to_pylist()]
    columns = [
        pa.array(depth[1:]),
        _encoded([name for _, name in pairs], index[1:]),
        _encoded([image for image, _ in pairs], index[1:]),
        pa.array(own[1:]),
        pa.array(totals[1:]),
    ]
    return pa.table(columns, schema=FLAME)


def _canonical(
    depth: npt.NDArray[np.uint32],
    function: npt.NDArray[np.integer],
    texts: npt.NDArray[np.object_],
    own: npt.NDArray[np.int64],
) -> pa.Table:
    """Return trees behind each other as one, whose functions ascend and are all in use."""
    is_inside = depth > 0
    used = np.zeros(len(texts), np.bool_)
    used[function[is_inside]] = True
    present = np.flatnonzero(used)
    order = pc.array_sort_indices(pa.array(texts[present], pa.string())).to_numpy()
    rank = np.zeros(len(texts), np.uint32)
    rank[present[order]] = np.arange(len(present), dtype=np.uint32)
    joined = join(depth[is_inside], rank[function[is_inside]])
    node = np.zeros(len(depth), np.int64)
    node[is_inside] = joined.node
    weights = np.zeros(len(joined.tree), np.int64)
    np.add.at(weights, node, own)
    # An index for the root, which has no function.
    dictionary = pa.array(texts[present[order]] if len(present) else [_BETWEEN], pa.string())
    indices = pa.array(joined.tree.frame.astype(np.int32))
    functions = pa.DictionaryArray.from_arrays(indices, dictionary)
    return pa.table([pa.array(joined.tree.depth), functions, pa.array(weights)], schema=TREE)


def _encoded(texts: list[str], index: npt.NDArray[np.int32]) -> pa.DictionaryArray:
    """Return texts by index, encoded by distinct texts in ascending order."""
    distinct = {text: number for number, text in enumerate(sorted(set(texts)))}
    moved = np.array([distinct[text] for text in texts], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(moved[index], pa.int32()), pa.array(list(distinct), pa.string())
    )


def _only_chunk(column: pa.ChunkedArray) -> pa.DictionaryArray:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
