"""Trees of functions: each stack's functions once, with inlined calls, and weights that add up."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from machtrace.warehouse import forest as forests
from machtrace.warehouse.forest import ALL, forest_of, functions
from machtrace.warehouse.function_tree import (
    Function,
    FunctionTree,
    heaviest,
    sampled_tree,
)
from machtrace.warehouse.segment import Segment, numbers
from tests.warehouse.test_segment import THREADS, report, segment

IMAGES = {"kit": "Kit", "system": "libsystem_kernel.dylib"}


def weights(made: Segment) -> np.ndarray:
    node, weight = (numbers(made.occurrences, name) for name in ("node", "weight"))
    return np.bincount(node, weight, len(made.tree)).astype(np.int64)


def function_tree(parts: list[tuple[Segment, np.ndarray]], most: int = ALL) -> FunctionTree:
    forest = forest_of([segment for segment, _ in parts])
    own = np.zeros(len(forest.frame), np.int64)
    for number, (each, weights) in enumerate(parts):
        np.add.at(own, forest.nodes_of(number, np.arange(len(each.tree))), weights)
    return functions(forest, own, most)[0]


def paths(tree: FunctionTree) -> Counter[tuple[str, ...]]:
    """Return the weight of each stack, the outermost function first."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for node, own in enumerate(tree.own.tolist()):
        names = [tree.functions[frame].name for frame in tree.tree.stack(node)]
        if own:
            stacks[tuple(reversed(names))] += own
    return stacks


def expected(stacks: list[list[list[str]]]) -> Counter[tuple[str, ...]]:
    counted: Counter[tuple[str, ...]] = Counter()
    for threads in stacks:
        for number, names in enumerate(threads):
            # The first thread is the report's subject, too.
            plain = tuple(name.partition(":")[2] or name for name in reversed(names))
            counted[plain] += 2 if number == 0 else 1
    return counted


@given(st.lists(THREADS, min_size=1, max_size=5))
def test_stacks_of_several_segments_are_one_tree(stacks):
    parts = [segment(report(number, each)) for number, each in enumerate(stacks)]
    tree = function_tree([(part, weights(part)) for part in parts])
    assert paths(tree) == expected(stacks)
    whole = segment(*(report(number, each) for number, each in enumerate(stacks)))
    assert paths(function_tree([(whole, weights(whole))])) == expected(stacks)


@given(st.lists(THREADS, min_size=1, max_size=5), st.integers(1, 12))
def test_the_heaviest_nodes_have_the_whole_weight(stacks, most):
    parts = [segment(report(number, each)) for number, each in enumerate(stacks)]
    tree = function_tree([(part, weights(part)) for part in parts])
    small = heaviest(tree, most)
    small.tree.check(len(small.functions))
    assert len(small.tree) <= max(most, 1) + 1
    assert small.totals[0] == tree.totals[0]
    everywhere = {tuple(tree.tree.stack(node)): total for node, total in enumerate(tree.totals)}
    for node, total in enumerate(small.totals.tolist()):
        assert everywhere[tuple(small.tree.stack(node))] == total


def test_stacks_without_weight_are_left_out():
    made = segment(report(1, [["run", "main"], ["helper"]]))
    own = weights(made)
    names = {row["frame"]: row["function"] for row in made.names.to_pylist()}
    (helper,) = (
        node
        for node in range(1, len(made.tree))
        if [names[frame] for frame in made.tree.stack(node)] == ["helper"]
    )
    own[helper] = 0
    assert paths(function_tree([(made, own)])) == {("main", "run"): 2}
    assert len(function_tree([(made, own * 0)]).tree) == 1
    assert len(function_tree([]).tree) == 1


def test_reports_of_a_tree_have_its_weights():
    made = segment(report(1, [["kit:draw", "main"], ["helper", "main"]]))
    tree, images = sampled_tree(function_tree([(made, weights(made))]))
    rows = {
        (node.frame.symbol.name, images[node.frame.image].name): node.samples for node in tree.nodes
    }
    image = images[tree.nodes[0].frame.image].name
    assert rows == {("main", image): 3, ("draw", "Kit"): 2, ("helper", image): 1}


def test_functions_without_names_are_offsets():
    made = segment(report(1, [["run", "main"]]))
    unnamed = Segment(
        reports=made.reports,
        images=made.images,
        frames=made.frames,
        tree=made.tree,
        occurrences=made.occurrences,
        names=made.names.slice(0, 0),
    )
    tree = function_tree([(unnamed, weights(unnamed))])
    assert set(tree.functions) == {Function("0x100", "Demo"), Function("0x200", "Demo")}


@given(st.lists(THREADS, min_size=1, max_size=5), st.integers(1, 12))
def test_the_native_tree_is_that_of_numpy(stacks, most):
    made = segment(*(report(number, each) for number, each in enumerate(stacks)))
    other = segment(report(99, stacks[0]))
    forest = forest_of([made, other])
    own = np.concatenate((weights(made), weights(other)[1:] * 3))
    native, nodes = functions(forest, own, most, wants_nodes=True)
    with patch.object(forests, "_heaviest", None):
        plain, others = functions(forest, own, most)
    assert native.functions == plain.functions
    for name in ("depth", "frame"):
        assert getattr(native.tree, name).tolist() == getattr(plain.tree, name).tolist()
    assert native.own.tolist() == plain.own.tolist()
    # Without weight, a node is nowhere.
    assert nodes[own != 0].tolist() == others[own != 0].tolist()
    assert (native.own == np.bincount(nodes, own, len(native.tree))).all()


def test_weights_of_a_forest_are_those_of_its_segments():
    made = segment(report(1, [["run", "main"]]), report(2, [["kit:draw", "main"], ["helper"]]))
    both = function_tree([(made, weights(made)), (made, 2 * weights(made))])
    assert paths(both) == {
        stack: 3 * weight for stack, weight in paths(function_tree([(made, weights(made))])).items()
    }
