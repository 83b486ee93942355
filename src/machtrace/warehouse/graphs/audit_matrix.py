"""Which image calls which family of functions, in stored stacks.

The caller of a function is the first one outside of the system: ``-[NSURL getResourceValue:…]`` of
Foundation calls ``getattrlist`` on behalf of the app or of an SDK, whose code called it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.graphs.selection import Mask, nearest, outermost

_T = TypeVar("_T")
NOBODY = ""
"""The column of stacks without any code outside of the system."""


class Caller(NamedTuple):
    """A column: an image, or a library that is linked into one."""

    name: str
    owner: str
    """app, sdk or unknown."""


class Cell(NamedTuple):
    """The stacks of a family with a caller."""

    family: str
    caller: Caller
    weight: int


class _Calls(NamedTuple):
    families: list[str]
    callers: list[Caller]
    nodes: Mask
    """The outermost nodes of each family."""
    family: npt.NDArray[np.int64]
    """By node: its family; -1: none."""
    caller: npt.NDArray[np.int64]
    """By node."""


def audit_matrix(
    tree: FunctionTree,
    family_of: Mapping[str, str] | Callable[[str], str | None],
    caller_of: Callable[[Function], Caller | None],
) -> list[Cell]:
    """Return the cells that have any stack, the heaviest first.

    Args:
        tree: the stacks.
        family_of: the family of a function's name; None: it is not watched.
        caller_of: whose a function is; None: the system's.
    """
    calls = _calls(tree, family_of, caller_of)
    totals = tree.totals
    weights: dict[tuple[int, int], int] = {}
    for node in np.flatnonzero(calls.nodes).tolist():
        key = int(calls.family[node]), int(calls.caller[node])
        weights[key] = weights.get(key, 0) + int(totals[node])
    cells = [
        Cell(calls.families[family], calls.callers[caller], weight)
        for (family, caller), weight in weights.items()
        if weight
    ]
    return sorted(cells, key=lambda each: (-each.weight, each.family, each.caller))


def cell_nodes(
    tree: FunctionTree,
    family_of: Mapping[str, str] | Callable[[str], str | None],
    caller_of: Callable[[Function], Caller | None],
    family: str,
    caller: str | None,
) -> Mask:
    """Return the nodes of a cell.

    Args:
        tree: the stacks.
        family_of: see :func:`audit_matrix`.
        caller_of: the same.
        family: the cell's.
        caller: the name of the cell's caller; None: any.
    """
    calls = _calls(tree, family_of, caller_of)
    chosen = [each.name == caller or caller is None for each in calls.callers]
    numbers = [at for at, each in enumerate(calls.families) if each == family]
    is_caller = np.array(chosen, np.bool_)[calls.caller]
    return np.asarray(calls.nodes & np.isin(calls.family, numbers) & is_caller)


def _calls(
    tree: FunctionTree,
    family_of: Mapping[str, str] | Callable[[str], str | None],
    caller_of: Callable[[Function], Caller | None],
) -> _Calls:
    lookup = family_of.get if isinstance(family_of, Mapping) else family_of
    families: dict[str, int] = {}
    callers: dict[Caller, int] = {Caller(NOBODY, "unknown"): 0}
    of_family = _numbers([lookup(function.name) for function in tree.functions], families)
    of_caller = _numbers([caller_of(function) for function in tree.functions], callers)
    frame = tree.tree.frame
    family = of_family[frame] if len(of_family) else np.full(len(frame), -1)
    owner = of_caller[frame] if len(of_caller) else np.full(len(frame), -1)
    family[0] = owner[0] = -1
    # A watched function is not its own caller, wherever its code is.
    outer = nearest(tree.tree, (owner >= 0) & (family < 0))
    caller = np.where(outer > 0, owner[outer], 0)
    nodes = outermost(tree.tree, family)
    return _Calls(list(families), list(callers), nodes, family, caller)


def _numbers(values: Sequence[_T | None], known: dict[_T, int]) -> npt.NDArray[np.int64]:
    return np.array(
        [-1 if value is None else known.setdefault(value, len(known)) for value in values], np.int64
    )
