"""Trees of functions as columns: for a page's script, and for tables of other programs.

Rows are in pre-order: the callees of a row are behind it, with larger depths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from machtrace.warehouse.difference import Difference
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.stack_tree import StackTree

KINDS = {"app": 0, "system": 1}
"""By owner: the kind of a function, as graphs colour it; 2: another one."""
_OTHER = 2
_MAX_LENGTH = 300
"""Characters of a name in a graph."""


def graph_columns(tree: FunctionTree, owner: Mapping[str, str]) -> dict[str, Any]:
    """Return a tree as a graph's script reads it.

    Args:
        tree: the stacks.
        owner: by image: app, system or unknown.

    Returns:
        ``names``: a row ``[name, image, kind]`` for each function; and columns: ``depths`` from 0,
        ``keys``, which are rows of names, and ``own``, the weight that ends there.
    """
    names, keys = _named(tree.tree, tree.functions, owner)
    depths = (tree.tree.depth[1:].astype(np.int64) - 1).tolist()
    return {"names": names, "depths": depths, "keys": keys, "own": tree.own[1:].tolist()}


def difference_columns(both: Difference, owner: Mapping[str, str]) -> dict[str, Any]:
    """Return two sides as a graph's script reads them.

    As :func:`graph_columns`; ``own`` is the later side's, ``was`` the earlier one's, ``least`` and
    ``most`` the interval of the change of a node's share, in hundredths of a per cent.
    """
    names, keys = _named(both.tree, both.functions, owner)
    depths = (both.tree.depth[1:].astype(np.int64) - 1).tolist()
    sides = (_own(both.tree, side)[1:].tolist() for side in (both.after, both.before))
    own, was = sides
    ends = ((1e4 * side[1:]).round().astype(int).tolist() for side in (both.least, both.most))
    least, most = ends
    return {
        "names": names,
        "depths": depths,
        "keys": keys,
        "own": own,
        "was": was,
        "least": least,
        "most": most,
    }


def flame_table(tree: FunctionTree) -> pa.Table:
    """Return a tree as a table: node, caller, depth, function, image, own and total weight."""
    return pa.table(_columns(tree.tree, tree.functions) | {"own": tree.own, "total": tree.totals})


def difference_table(both: Difference) -> pa.Table:
    """Return two sides as a table: the weights at and below each node, and the interval."""
    sides = {"before": both.before, "after": both.after, "least": both.least, "most": both.most}
    return pa.table(_columns(both.tree, both.functions) | sides)


def folded_difference(both: Difference) -> bytes:
    """Return two sides as lines of stacks, each with its two weights.

    The format is that of Brendan Gregg's difffolded.pl.
    """
    own = [_own(both.tree, side) for side in (both.before, both.after)]
    names = [function.name.replace(";", ":").replace("\n", " ") for function in both.functions]
    lines, path = [], list[str]()
    depths, frames = both.tree.depth.tolist(), both.tree.frame.tolist()
    for node, (before, after) in enumerate(zip(own[0].tolist(), own[1].tolist(), strict=True)):
        if node:
            path[depths[node] - 1 :] = [names[frames[node]]]
        if node and (before or after):
            lines.append(f"{';'.join(path)} {before} {after}\n")
    return "".join(lines).encode("utf-8", "backslashreplace")


def _own(tree: StackTree, totals: Any) -> Any:  # noqa: ANN401 - an array
    own = totals.copy()
    np.subtract.at(own, tree.parent[1:], totals[1:])
    return own


def _columns(tree: StackTree, functions: tuple[Function, ...]) -> dict[str, Any]:
    used, frames = np.unique(tree.frame[1:], return_inverse=True)
    every = [functions[at] for at in used.tolist()]
    # The root has no function.
    places = pa.array(np.concatenate(([-1], frames)), mask=np.arange(len(tree)) == 0)
    return {
        "node": np.arange(len(tree)),
        "caller": pa.array(tree.parent.astype(np.int64), mask=np.arange(len(tree)) == 0),
        "depth": tree.depth,
        "function": pa.array([each.name for each in every], pa.string()).take(places),
        "image": pa.array([each.image for each in every], pa.string()).take(places),
    }


def _named(
    tree: StackTree, functions: tuple[Function, ...], owner: Mapping[str, str]
) -> tuple[list[list[str | int]], list[int]]:
    """Return the names that nodes have, and by node its row of these."""
    used, keys = np.unique(tree.frame[1:], return_inverse=True)
    names: list[list[str | int]] = []
    for at in used.tolist():
        name, image = functions[at]
        kind = KINDS.get(owner.get(image, ""), _OTHER)
        names.append([_short(name), _short(image), kind])
    return names, keys.tolist()


def _short(name: str) -> str:
    return name if len(name) <= _MAX_LENGTH else f"{name[:_MAX_LENGTH]}…"
