"""The gist of a difference: the changes that no callee explains, and functions of one side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from machtrace.warehouse.difference import Change, Difference
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.graphs.selection import function_costs
from machtrace.warehouse.stack_tree import Weights

_EXPLAINS = 0.9
"""The part of a change that one callee has, so that it is shown instead of its caller."""


class OneSided(NamedTuple):
    """A function that only one side has."""

    function: Function
    share: float
    """A share of that side's weight, from 0 to 1."""


def telling_changes(both: Difference) -> list[Change]:
    """Return the changes of nodes without one callee that has nearly all of it."""
    sides = (both.before, both.after)
    before, after = (side / max(int(side[0]), 1) for side in sides)
    change = after - before
    most = np.zeros(len(change))
    # The largest change of a callee in the same direction.
    parent = both.tree.parent[1:]
    is_same = np.sign(change[1:]) == np.sign(change[parent])
    np.maximum.at(most, parent[is_same], np.abs(change[1:][is_same]))
    is_shown = most < _EXPLAINS * np.abs(change)
    return [each for each in both.changes() if is_shown[each.node]]


def one_sided(both: Difference) -> tuple[list[OneSided], list[OneSided]]:
    """Return the functions that only the earlier side has, and those that only the later has."""
    costs = [
        {cost.function: cost.total for cost in function_costs(_side(both, side))}
        for side in (both.before, both.after)
    ]
    return _only(costs[0], costs[1], both.before), _only(costs[1], costs[0], both.after)


def _only(own: dict[Function, int], other: dict[Function, int], totals: Weights) -> list[OneSided]:
    whole = max(int(totals[0]), 1)
    return [OneSided(each, weight / whole) for each, weight in own.items() if each not in other]


def _side(both: Difference, totals: Weights) -> FunctionTree:
    own = totals.copy()
    np.subtract.at(own, both.tree.parent[1:], totals[1:])
    return FunctionTree(tree=both.tree, functions=both.functions, own=own, nodes=())
