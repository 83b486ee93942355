"""Merging stacks: equal calls, and their own and total weights."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from machtrace.model.profile import OUTERMOST, StackTable
from machtrace.render.call_tree import call_tree, stack_weights


def table(stacks):
    """Return a table with these stacks, lists of frames outermost first, and their rows."""
    rows, callers, frames, ends = {}, array("i"), array("i"), []
    for stack in stacks:
        row = OUTERMOST
        for frame in stack:
            if (row, frame) not in rows:
                rows[row, frame] = len(callers)
                callers.append(row)
                frames.append(frame)
            row = rows[row, frame]
        ends.append(row)
    return StackTable(callers, frames), ends


def one_to_one(count):
    """Return keys that make each frame a call."""
    return [(number,) for number in range(count)]


def paths(tree):
    """Return every node's path of keys, with its own and its total weight."""
    weights = {}
    for node in range(len(tree)):
        path, at = [], node
        while at != OUTERMOST:
            path.insert(0, tree.keys[at])
            at = tree.callers[at]
        weights[tuple(path)] = tree.own[node], tree.total[node]
    return weights


def test_own_and_total():
    """A call's own weight is of stacks that end in it, its total also of stacks through it."""
    stacks, (deep, shallow, other) = table([[0, 1, 2], [0, 1], [0, 3]])
    tree = call_tree(stacks, {deep: 5, shallow: 2, other: 1}, one_to_one(4))

    assert paths(tree) == {(0,): (0, 8), (0, 1): (2, 7), (0, 1, 2): (5, 5), (0, 3): (1, 1)}
    assert tree.weight == 8


def test_frames_with_the_same_key_are_one_call():
    """They are two offsets in a function with the same caller."""
    stacks, (first, second) = table([[0, 1], [0, 2]])
    tree = call_tree(stacks, {first: 1, second: 2}, [(7,), (8,), (8,)])

    assert paths(tree) == {(7,): (0, 3), (7, 8): (3, 3)}
    assert tree.node_of_stack[first] == tree.node_of_stack[second]


def test_a_frame_with_inlined_calls_is_several():
    """One row of the table is three calls of the tree; recursion keeps its depth."""
    stacks, (row,) = table([[0, 1]])
    tree = call_tree(stacks, {row: 4}, [(1,), (1, 2, 1)])

    assert paths(tree) == {(1,): (0, 4), (1, 1): (0, 4), (1, 1, 2): (0, 4), (1, 1, 2, 1): (4, 4)}


def test_ends_of_stacks_can_be_merged_otherwise():
    """As in Apple's sample, ends of stacks merge by function, other calls by call site."""
    stacks, (end, through, other) = table([[0, 1], [0, 1, 3], [0, 2]])
    tree = call_tree(
        stacks,
        {end: 1, through: 2, other: 4},
        one_to_one(4),
        leaf_keys=[(10,), (11,), (11,), (13,)],
    )

    assert paths(tree) == {
        (0,): (0, 7),
        (0, 1): (0, 2),
        (0, 11): (5, 5),
        (0, 1, 13): (2, 2),
    }


def test_nodes_without_weight_are_omitted():
    stacks, (mine, _) = table([[0, 1], [0, 2, 3]])
    assert sorted(paths(call_tree(stacks, {mine: 1}, one_to_one(4)))) == [(0,), (0, 1)]
    assert len(call_tree(stacks, {}, one_to_one(4))) == 0


def test_the_heaviest_is_shown_first():
    """Equally heavy ones keep their order; the last callee is marked."""
    stacks, rows = table([[0, 1], [0, 2], [0, 3], [4]])
    tree = call_tree(stacks, dict(zip(rows, (1, 5, 1, 2), strict=True)), one_to_one(5))

    assert [(tree.keys[node], is_last) for node, is_last in tree.walk()] == [
        (0, False),
        (2, False),
        (1, False),
        (3, True),
        (4, True),
    ]


def test_stacks_may_be_tens_of_thousands_deep():
    """No function recurses."""
    depth = 60_000
    stacks, (row, short) = table([[0] * depth, [0] * 10])
    tree = call_tree(stacks, {row: 2, short: 1}, one_to_one(1))

    assert depth == len(tree) == sum(1 for _ in tree.walk())
    assert (tree.total[0], tree.total[depth - 1]) == (3, 2)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 9))))
def test_trees_equal_counting_one_by_one(seen):
    """The oracle counts stack by stack."""
    stacks, rows = table([stack for stack, _ in seen])
    tree = call_tree(stacks, stack_weights(rows, [weight for _, weight in seen]), one_to_one(4))
    own, total = Counter(), Counter()
    for stack, weight in seen:
        own[tuple(stack)] += weight
        for depth in range(len(stack)):
            total[tuple(stack[: depth + 1])] += weight

    assert {path: (own[path], total[path]) for path in total} == paths(tree)


def test_stacks_without_frames_have_no_place():
    """Only the thread's registers were captured."""
    assert stack_weights([3, OUTERMOST, 3], [2, 9, 3]) == {3: 5}
