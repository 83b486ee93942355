"""Many stacks put on top of one another: who called whom, and how often that was seen.

Nothing here recurses, and a stack may be as deep as memory allows.

How often which stack was seen in a profile: by each thread, or by all together.

Stacks for formats that write each of them out, however much of it others have too.

A tree that is n calls deep, and whose stacks end at every call, is n times n calls there. What was
recorded, or made to be so, is 50,000 deep: gigabytes of a file of a megabyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from machtrace.model.profile import OUTERMOST, Profile, StackTable


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """Calls as columns; a node comes after the one that it was called from.

    What a node is of its key tells, which is whatever the tree was asked to merge by.
    """

    callers: array[int]
    """Of each node the one that it was called from, or
    :data:`~machtrace.model.profile.OUTERMOST`."""
    keys: array[int]
    own: array[int]
    """The weight of the stacks that end here."""
    total: array[int]
    """The weight of the stacks that go through here, those that end here included."""
    node_of_stack: Mapping[int, int]
    """Where each stack that has a weight ends: a node, by row of the table of stacks."""

    def __len__(self) -> int:
        return len(self.callers)

    @property
    def weight(self) -> int:
        """Of all stacks."""
        return sum(self.own)

    def walk(self) -> Iterator[tuple[int, bool]]:
        """All nodes as they are shown: each before what it called, the heaviest first.

        With each goes whether it is the last that its caller called.
        """
        called: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, caller in enumerate(self.callers):
            called[caller].append(node)  # those that nobody called are in the last place
        waiting: list[tuple[int, bool]] = []
        children = called[OUTERMOST]
        while True:
            # Of equally heavy ones that first which was seen first.
            children.sort(key=self._weight, reverse=True)
            waiting += [(node, not at) for at, node in enumerate(reversed(children))]
            if not waiting:
                return
            shown = waiting.pop()
            yield shown
            children = called[shown[0]]

    def _weight(self, node: int) -> int:
        return self.total[node]


def stack_weights(stacks: Iterable[int], weights: Iterable[int]) -> dict[int, int]:
    """How much there is of each stack.

    Args:
        stacks: of each sample the row of its stack; what is
            :data:`~machtrace.model.profile.OUTERMOST` has no frames, and is left out.
        weights: of each sample.
    """
    found: dict[int, int] = {}
    for stack, weight in zip(stacks, weights, strict=True):
        found[stack] = found.get(stack, 0) + weight
    found.pop(OUTERMOST, None)
    return found


def call_tree(
    stacks: StackTable,
    weights: Mapping[int, int],
    keys: Sequence[Sequence[int]],
    *,
    leaf_keys: Sequence[Sequence[int]] | None = None,
) -> CallTree:
    """Merge stacks: calls with the same key, made from the same node, are one node.

    Args:
        stacks: whose rows ``weights`` names.
        weights: of the stacks that count; see :func:`stack_weights`.
        keys: of each frame its calls, outermost first: several where some were inlined. Each is a
            number from 0 to 2**31 - 1.
        leaf_keys: the same of frames where a stack ends; None are ``keys``.
    """
    if leaf_keys is None:
        leaf_keys = keys
    rows = _rows_of(stacks, weights)
    through = _weight_through(stacks, rows, weights)
    tree = _Growing()
    node_of_row = dict[int, int]() if isinstance(through, dict) else array("q", through)
    node_of_stack: dict[int, int] = {}
    for row in rows:
        own = weights.get(row, 0)
        if not through[row] and not own:
            continue
        frame, caller = stacks.frames[row], stacks.callers[row]
        at = OUTERMOST if caller == OUTERMOST else node_of_row[caller]
        if through[row]:
            node_of_row[row] = tree.descend(at, keys[frame])
        if own:
            leaf = tree.descend(at, leaf_keys[frame])
            node_of_stack[row] = leaf
            if leaf != OUTERMOST:
                tree.own[leaf] += own
    total = array("q", tree.own)
    for node in range(len(total) - 1, -1, -1):
        if tree.callers[node] != OUTERMOST:
            total[tree.callers[node]] += total[node]
    return CallTree(tree.callers, tree.keys, tree.own, total, node_of_stack)


def _rows_of(stacks: StackTable, weights: Iterable[int]) -> list[int]:
    """The rows of these stacks alone, each after its caller: a table may have many threads'."""
    callers = stacks.callers
    found: set[int] = set()
    for stack in weights:
        row = stack
        while row != OUTERMOST and row not in found:
            found.add(row)
            row = callers[row]
    return sorted(found)


def _weight_through(
    stacks: StackTable, rows: Sequence[int], weights: Mapping[int, int]
) -> dict[int, int] | array[int]:
    """Of each row the weight of the stacks that go on beyond it."""
    few = len(rows) * _FEW < len(stacks)
    through = dict.fromkeys(rows, 0) if few else array("q", [0]) * len(stacks)
    for row in reversed(rows):
        caller = stacks.callers[row]
        if caller != OUTERMOST:
            through[caller] += through[row] + weights.get(row, 0)
    return through


_KEY_BITS = 31
_FEW = 8
"""A table of stacks is gone through as a whole where one row of so many counts."""


class _Growing:
    """A tree while it is made."""

    __slots__ = ("_children", "callers", "keys", "own")

    def __init__(self) -> None:
        self.callers = array("i")
        self.keys = array("i")
        self.own = array("q")
        self._children: dict[int, int] = {}

    def descend(self, node: int, keys: Sequence[int]) -> int:
        """The node that is reached from ``node`` by calls of ``keys``; made if there was none."""
        for key in keys:
            place = (node + 1) << _KEY_BITS | key
            found = self._children.get(place)
            if found is None:
                found = self._children[place] = len(self.callers)
                self.callers.append(node)
                self.keys.append(key)
                self.own.append(0)
            node = found
        return node


def thread_weights(profile: Profile) -> list[dict[int, int]]:
    """Of each thread how often it had which stack, by the stack's row."""
    found: list[dict[int, int]] = [{} for _ in profile.threads]
    samples = profile.samples
    for thread, stack, weight in zip(samples.threads, samples.stacks, samples.weights, strict=True):
        weights = found[thread]
        weights[stack] = weights.get(stack, 0) + weight
    for weights in found:
        weights.pop(OUTERMOST, None)  # of a thread whose registers alone could be had
    return found


def all_weights(profile: Profile) -> dict[int, int]:
    """How often any thread had which stack, by the stack's row."""
    return stack_weights(profile.samples.stacks, profile.samples.weights)


DEEPEST = 1024
"""Frames, outermost first, that are kept of a stack where deep ones are too many."""
ROOM = 1 << 23
"""Frames that all stacks deeper than that may have together."""


def bounded(profile: Profile, room: int = ROOM) -> Profile:
    """The profile itself; with its deep stacks cut where they come to more than ``room`` frames.

    They end at frame :data:`DEEPEST` then, counted from the outermost one. The formats firefox and
    html, which say once what stacks share, have all of them.
    """
    depths, kept = array("i"), array("i")
    for row, caller in enumerate(profile.stacks.callers):
        depth = 1 if caller == OUTERMOST else depths[caller] + 1
        depths.append(depth)
        kept.append(row if depth <= DEEPEST else kept[caller])
    samples = profile.samples
    deep = sum(depths[row] for row in samples.stacks if row != OUTERMOST and depths[row] > DEEPEST)
    if deep <= room:
        return profile
    stacks = array("i", (row if row == OUTERMOST else kept[row] for row in samples.stacks))
    return replace(profile, samples=replace(samples, stacks=stacks))
