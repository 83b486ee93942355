"""Parts of trees: the same as counting stacks one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from machtrace.warehouse.difference import Difference
from machtrace.warehouse.forest import forest_of, functions
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.graphs.audit_matrix import Caller, audit_matrix, cell_nodes
from machtrace.warehouse.graphs.changes import one_sided, telling_changes
from machtrace.warehouse.graphs.columns import (
    difference_columns,
    difference_table,
    flame_table,
    folded_difference,
    graph_columns,
)
from machtrace.warehouse.graphs.rows import rows_of
from machtrace.warehouse.graphs.selection import (
    above,
    below,
    function_costs,
    joined,
    nodes_of,
    through,
)
from machtrace.warehouse.stack_tree import join
from tests.warehouse.test_function_tree import paths
from tests.warehouse.test_segment import THREADS, report, segment

FUNCTIONS = tuple(
    Function(name, image)
    for name, image in (
        ("main", "App"),
        ("draw", "App"),
        ("draw", "Kit"),
        ("stat", "libsystem"),
        ("track", "AdKit"),
        ("open", "libsystem"),
    )
)
STACKS = st.lists(st.lists(st.integers(0, len(FUNCTIONS) - 1), min_size=1, max_size=7), max_size=12)


def tree_of(stacks, weights=None):
    """Return the tree of stacks, each from the outermost function inwards."""
    depths = [at for stack in stacks for at in range(1, len(stack) + 1)]
    frames = [frame for stack in stacks for frame in stack]
    joined = join(depths, frames)
    ends = np.cumsum([len(stack) for stack in stacks], dtype=np.int64) - 1
    counts = np.ones(len(stacks)) if weights is None else weights
    own = np.bincount(joined.node[ends], counts, len(joined.tree)).astype(np.int64)
    return FunctionTree(tree=joined.tree, functions=FUNCTIONS, own=own, nodes=())


def named(stack):
    return tuple(FUNCTIONS[frame].name for frame in stack)


@given(STACKS)
def test_costs_count_each_stack_once(stacks):
    expected = Counter(FUNCTIONS[frame] for stack in stacks for frame in set(stack))
    own = Counter(FUNCTIONS[stack[-1]] for stack in stacks)
    costs = function_costs(tree_of(stacks))
    assert {cost.function: (cost.own, cost.total) for cost in costs} == {
        function: (own[function], total) for function, total in expected.items()
    }
    assert [cost.total for cost in costs] == sorted(expected.values(), reverse=True)


@given(STACKS)
def test_stacks_through_a_function_and_what_is_above_and_below(stacks):
    tree = tree_of(stacks)
    chosen = [stack for stack in stacks if {1, 2} & set(stack)]
    first = [min(stack.index(at) for at in (1, 2) if at in stack) for stack in chosen]
    nodes = nodes_of(tree, "draw")
    assert paths(through(tree, nodes)) == Counter(map(named, chosen))
    assert paths(below(tree, nodes)) == Counter(
        named(stack[at:]) for stack, at in zip(chosen, first, strict=True)
    )
    assert paths(above(tree, nodes)) == Counter(
        named(stack[at::-1]) for stack, at in zip(chosen, first, strict=True)
    )
    in_kit = Counter(named(stack) for stack in stacks if 2 in stack)
    assert paths(through(tree, nodes_of(tree, "draw", "Kit"))) == in_kit


def caller_of(function):
    return None if function.image == "libsystem" else Caller(function.image, "app")


FAMILIES = {"stat": "File timestamps", "open": "Files"}


@given(STACKS)
def test_a_cell_has_the_stacks_of_the_first_caller_outside_of_the_system(stacks):
    expected = Counter()
    members = Counter()
    for stack in stacks:
        for name, family in FAMILIES.items():
            at = next((at for at, one in enumerate(stack) if FUNCTIONS[one].name == name), None)
            if at is None:
                continue
            outer = [FUNCTIONS[one].image for one in stack[:at] if one not in (3, 5)]
            expected[family, outer[-1] if outer else ""] += 1
            if family == "Files" and outer[-1:] == ["App"]:
                members[named(stack)] += 1
    tree = tree_of(stacks)
    cells = audit_matrix(tree, FAMILIES, caller_of)
    assert {(cell.family, cell.caller.name): cell.weight for cell in cells} == expected
    nodes = cell_nodes(tree, FAMILIES, caller_of, "Files", "App")
    assert paths(through(tree, nodes)) == members


@given(STACKS)
def test_columns_are_the_stacks(stacks):
    tree = tree_of(stacks)
    columns = graph_columns(tree, {"App": "app", "libsystem": "system"})
    path, made = [], Counter()
    rows = zip(columns["depths"], columns["keys"], columns["own"], strict=True)
    for depth, key, own in rows:
        path[depth:] = [columns["names"][key][0]]
        made[tuple(path)] += own
    assert +made == paths(tree)
    kinds = {name[1]: name[2] for name in columns["names"]}
    assert kinds.items() <= {"App": 0, "libsystem": 1, "Kit": 2, "AdKit": 2}.items()
    table = flame_table(tree)
    assert table["own"].to_pylist() == tree.own.tolist()
    assert table["total"][0].as_py() == len(stacks)
    assert (table["function"][0].as_py(), table["caller"][0].as_py()) == (None, None)


def difference_of(stacks, sides):
    tree = tree_of(stacks)
    totals = [
        tree_of(stacks, [one == side for one in sides]).totals if stacks else tree.totals
        for side in (0, 1)
    ]
    zero = np.zeros(len(tree.tree))
    return Difference(
        tree=tree.tree,
        functions=FUNCTIONS,
        before=totals[0],
        after=totals[1],
        least=zero,
        most=zero,
    )


@given(STACKS, st.data())
def test_a_difference_has_the_stacks_of_both_sides(stacks, data):
    sides = [data.draw(st.integers(0, 1)) for _ in stacks]
    both = difference_of(stacks, sides)
    counts = [
        Counter(named(stack) for stack, own in zip(stacks, sides, strict=True) if own == side)
        for side in (0, 1)
    ]
    columns = difference_columns(both, {})
    assert [sum(columns["was"]), sum(columns["own"])] == [count.total() for count in counts]
    made = [Counter(), Counter()]
    for line in folded_difference(both).decode().splitlines():
        path, before, after = line.rsplit(" ", 2)
        made[0][tuple(path.split(";"))] += int(before)
        made[1][tuple(path.split(";"))] += int(after)
    assert [+each for each in made] == counts
    assert difference_table(both)["after"][0].as_py() == counts[1].total()
    gone, new = one_sided(both)
    used = [
        {
            FUNCTIONS[at]
            for stack, own in zip(stacks, sides, strict=True)
            if own == side
            for at in stack
        }
        for side in (0, 1)
    ]
    assert {each.function for each in gone} == used[0] - used[1]
    assert {each.function for each in new} == used[1] - used[0]
    every = both.changes()
    told = telling_changes(both)
    assert bool(told) == bool(every)
    assert set(told) <= set(every)


def test_of_a_chain_the_innermost_change_is_told():
    both = difference_of([[0, 1, 3], [0, 4]], [1, 0])
    assert [(change.function.name, change.difference) for change in telling_changes(both)] == [
        ("stat", 1.0),
        ("track", -1.0),
    ]


@given(st.lists(THREADS, min_size=1, max_size=5))
def test_rows_that_are_not_joined_have_the_same_stacks(stacks):
    forest = forest_of([segment(report(number, each)) for number, each in enumerate(stacks)])
    own = np.arange(len(forest.frame)) % 3
    own[0] = 0
    rows = rows_of(forest, own).tree
    whole, _ = functions(forest, own)
    assert paths(rows) == paths(whole)
    tree = joined(rows, rows.tree.depth[1:], rows.tree.frame[1:], rows.own[1:])
    assert paths(tree) == paths(whole)
    assert {cost.function: cost for cost in function_costs(rows)} == {
        cost.function: cost for cost in function_costs(whole)
    }
