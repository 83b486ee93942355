"""Trees of stacks: canonical, exact, equal in C and numpy, with keys as hashlib's."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import ArgumentError
from machtrace.warehouse.stack_tree import (
    FRAME_KEY_SIZE,
    Joined,
    StackTree,
    join,
    join_by_level,
    join_stacks,
    links_by_level,
    rows_of,
    stack_keys,
)

STACKS = st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=40)


def joined(stacks: list[list[int]], by=join) -> tuple[Joined, list[int]]:
    """Return the tree of stacks, outermost frames first, and the node of each."""
    starts = np.cumsum([0, *map(len, stacks)])
    flat = np.array([frame for stack in stacks for frame in stack], np.uint32)
    result = by(rows_of(flat, starts), flat)
    ends = [int(result.node[end - 1]) if end > begin else 0 for begin, end in pairwise(starts)]
    return result, ends


@given(STACKS)
def test_every_stack_is_there_and_no_other_prefix(stacks):
    (tree, _), nodes = joined(stacks)
    tree.check(6)
    assert [tree.stack(node)[::-1] for node in nodes] == stacks
    prefixes = {tuple(stack[:size]) for stack in [[], *stacks] for size in range(len(stack) + 1)}
    assert [tuple(tree.stack(node)[::-1]) for node in range(len(tree))] == sorted(prefixes)


@given(STACKS, st.randoms(use_true_random=False))
def test_columns_do_not_depend_on_the_order_of_arrival(stacks, shuffle):
    first, _ = joined(stacks)
    other = list(stacks)
    shuffle.shuffle(other)
    second, _ = joined(other)
    assert first.tree.depth.tobytes() == second.tree.depth.tobytes()
    assert first.tree.frame[1:].tobytes() == second.tree.frame[1:].tobytes()


@given(STACKS)
def test_numpy_makes_the_same(stacks):
    native, nodes = joined(stacks)
    levels, others = joined(stacks, join_by_level)
    assert nodes == others
    assert native.node.tolist() == levels.node.tolist()
    assert native.tree.depth.tolist() == levels.tree.depth.tolist()
    assert native.tree.frame.tolist() == levels.tree.frame.tolist()


@given(STACKS)
def test_stacks_with_their_starts_make_the_same(stacks):
    (tree, nodes), _ = joined(stacks)
    flat = np.array([frame for stack in stacks for frame in stack], np.uint32)
    starts = np.cumsum([0, *map(len, stacks)])
    by_starts = join_stacks(flat, starts)
    assert by_starts.node.tolist() == nodes.tolist()
    assert by_starts.tree.depth.tolist() == tree.depth.tolist()
    assert by_starts.tree.frame.tolist() == tree.frame.tolist()


@pytest.mark.parametrize("starts", [[], [0], [1, 3], [0, 2], [0, 4], [0, 2, 1, 3], [0, -1, 3]])
def test_starts_that_do_not_fit_are_refused(starts):
    with pytest.raises(ArgumentError):
        join_stacks(np.zeros(3, np.uint32), np.array(starts, np.int64))


@given(STACKS)
def test_totals_and_ends_are_those_of_the_stacks(stacks):
    (tree, _), nodes = joined(stacks)
    own = np.bincount(nodes, minlength=len(tree))
    totals = tree.totals(own)
    for node in range(len(tree)):
        path = tree.stack(node)[::-1]
        assert totals[node] == sum(stack[: len(path)] == path for stack in stacks)


@given(STACKS)
def test_links_of_numpy_are_the_same(stacks):
    (tree, _), _ = joined(stacks)
    parent, end = links_by_level(tree.depth)
    assert parent.tolist() == tree.parent.tolist()
    assert end.tolist() == tree.end.tolist()


@given(STACKS, STACKS)
def test_trees_are_joined_as_their_stacks_are(some, others):
    (left, _), (right, _) = joined(some)[0], joined(others)[0]
    both = join(
        np.concatenate((left.depth[1:], right.depth[1:])),
        np.concatenate((left.frame[1:], right.frame[1:])),
    )
    whole, _ = joined(some + others)
    assert both.tree.depth.tolist() == whole.tree.depth.tolist()
    assert both.tree.frame.tolist() == whole.tree.frame.tolist()


@given(STACKS)
def test_keys_are_those_of_hashlib(stacks):
    frame_keys = np.random.default_rng(1).integers(0, 256, (6, FRAME_KEY_SIZE), np.uint8)
    (tree, _), nodes = joined(stacks)
    keys = stack_keys(tree, frame_keys, np.array(nodes, np.int32))
    expected = [blake2b(frame_keys[stack].tobytes(), digest_size=16).digest() for stack in stacks]
    assert [bytes(key) for key in keys] == expected


def test_keys_of_a_deep_stack():
    frames = np.arange(5000, dtype=np.uint32) % 7
    tree, node = join(np.arange(1, 5001), frames)
    frame_keys = np.arange(7 * FRAME_KEY_SIZE, dtype=np.uint8).reshape(7, FRAME_KEY_SIZE)
    for depth in (1, 4, 5, 8, 255, 256, 4096, 5000):
        key = stack_keys(tree, frame_keys, node[depth - 1 : depth])
        expected = blake2b(frame_keys[frames[:depth]].tobytes(), digest_size=16).digest()
        assert bytes(key[0]) == expected


@pytest.mark.parametrize("depths", [[0], [2], [1, 3], [1, 2, 0]])
@pytest.mark.parametrize("by", [join, join_by_level])
def test_rows_without_callers_are_refused(by, depths):
    with pytest.raises(ArgumentError):
        by(np.array(depths, np.uint32), np.zeros(len(depths), np.uint32))


def test_columns_that_are_no_tree_are_refused():
    for depth, frame in (
        ([], []),
        ([1], [0]),
        ([0, 2], [0, 0]),
        ([0, 1], [0, 9]),
        ([0, 0], [0, 0]),
    ):
        tree = StackTree(depth=np.array(depth, np.uint32), frame=np.array(frame, np.uint32))
        with pytest.raises(ArgumentError):
            tree.check(3)


def test_many_siblings_are_in_order():
    frames = np.random.default_rng(3).permutation(100_000)[:5000]
    tree, node = join(np.ones(5000, np.uint32), frames)
    assert tree.frame[1:].tolist() == sorted(frames.tolist())
    assert tree.frame[node].tolist() == frames.tolist()
