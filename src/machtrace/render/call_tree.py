"""Merging stacks into trees, and counting the stacks of profiles.

Nothing here recurses; a stack may be as deep as memory allows. Formats that write each stack in
full need :func:`bounded` profiles: a tree n calls deep, whose stacks end at every call, takes n²
calls there. Recorded or adversarial stacks are 50,000 deep: gigabytes from a file of a megabyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from machtrace.frozen import dataclass
from machtrace.model.profile import OUTERMOST, Profile, StackTable


@dataclass(frozen=True, slots=True, eq=False)
class CallTree:
    """Calls as columns; a node follows its caller.

    A node's key is one of those that the tree was merged by.
    """

    callers: array[int]
    """The caller of each node, or :data:`~machtrace.model.profile.OUTERMOST`."""
    keys: array[int]
    own: array[int]
    """The weight of the stacks that end here."""
    total: array[int]
    """The weight of the stacks through here, including those that end here."""
    node_of_stack: Mapping[int, int]
    """The node where each weighted stack ends, by row of the table of stacks."""

    def __len__(self) -> int:
        return len(self.callers)

    @property
    def weight(self) -> int:
        """The weight of all stacks."""
        return sum(self.own)

    def walk(self) -> Iterator[tuple[int, bool]]:
        """Yield all nodes in display order: callers first, then heaviest first.

        The boolean is whether the node is its caller's last.
        """
        called: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, caller in enumerate(self.callers):
            called[caller].append(node)  # roots are in the last slot
        waiting: list[tuple[int, bool]] = []
        children = called[OUTERMOST]
        while True:
            # The sort is stable: of equally heavy ones, the first seen is first.
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
    """Return the weight of each stack.

    Args:
        stacks: each sample's row; :data:`~machtrace.model.profile.OUTERMOST` has no frames, and is
            omitted.
        weights: of each sample.
    """
    totals: dict[int, int] = {}
    for stack, weight in zip(stacks, weights, strict=True):
        totals[stack] = totals.get(stack, 0) + weight
    totals.pop(OUTERMOST, None)
    return totals


def call_tree(
    stacks: StackTable,
    weights: Mapping[int, int],
    keys: Sequence[Sequence[int]],
    *,
    leaf_keys: Sequence[Sequence[int]] | None = None,
) -> CallTree:
    """Merge stacks: calls with the same key, made from the same node, are one node.

    Args:
        stacks: the table that ``weights`` refers to.
        weights: of the stacks that count; see :func:`stack_weights`.
        keys: of each frame its calls, outermost first: several if some were inlined. Each is a
            number from 0 to 2**31 - 1.
        leaf_keys: the same for frames where a stack ends; default: ``keys``.
    """
    if leaf_keys is None:
        leaf_keys = keys
    rows = _rows_of(stacks, weights)
    through = _weight_through(stacks, rows, weights)
    tree = _TreeBuilder()
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
    """Return the rows of these stacks, callers first: a table may have many threads'."""
    callers = stacks.callers
    rows: set[int] = set()
    for stack in weights:
        row = stack
        while row != OUTERMOST and row not in rows:
            rows.add(row)
            row = callers[row]
    return sorted(rows)


def _weight_through(
    stacks: StackTable, rows: Sequence[int], weights: Mapping[int, int]
) -> dict[int, int] | array[int]:
    """Return the weight of the stacks that continue beyond each row."""
    few = len(rows) * _FEW < len(stacks)
    through = dict.fromkeys(rows, 0) if few else array("q", [0]) * len(stacks)
    # A caller's row is below its callees': in reverse, each row is complete before it is added.
    for row in reversed(rows):
        caller = stacks.callers[row]
        if caller != OUTERMOST:
            through[caller] += through[row] + weights.get(row, 0)
    return through


_KEY_BITS = 31
_FEW = 8
"""The whole table is scanned if at least one row in this many counts."""


class _TreeBuilder:
    """A tree under construction."""

    __slots__ = ("_children", "callers", "keys", "own")

    def __init__(self) -> None:
        self.callers = array("i")
        self.keys = array("i")
        self.own = array("q")
        self._children: dict[int, int] = {}

    def descend(self, node: int, keys: Sequence[int]) -> int:
        """Return the node reached from ``node`` by calls of ``keys``, created if missing."""
        for key in keys:
            # One int for the pair: OUTERMOST is -1, and keys have 31 bits.
            place = (node + 1) << _KEY_BITS | key
            child = self._children.get(place)
            if child is None:
                child = self._children[place] = len(self.callers)
                self.callers.append(node)
                self.keys.append(key)
                self.own.append(0)
            node = child
        return node


def thread_weights(profile: Profile) -> list[dict[int, int]]:
    """Count each thread's stacks, by row."""
    counts: list[dict[int, int]] = [{} for _ in profile.threads]
    samples = profile.samples
    for thread, stack, weight in zip(samples.threads, samples.stacks, samples.weights, strict=True):
        weights = counts[thread]
        weights[stack] = weights.get(stack, 0) + weight
    for weights in counts:
        weights.pop(OUTERMOST, None)  # only the thread's registers could be captured
    return counts


def all_weights(profile: Profile) -> dict[int, int]:
    """Count all threads' stacks, by row."""
    return stack_weights(profile.samples.stacks, profile.samples.weights)


MAX_DEPTH = 1024
"""Outermost frames retained of each stack, if deep ones are too many."""
ROOM = 1 << 23
"""Maximum frames of all deeper stacks together."""


def bounded(profile: Profile, room: int = ROOM) -> Profile:
    """Return the profile; deep stacks are truncated if they exceed ``room`` frames together.

    They then end at frame :data:`MAX_DEPTH` from the outermost one. The formats firefox and html,
    which share common prefixes, have all frames.
    """
    depths, truncated = array("i"), array("i")
    for row, caller in enumerate(profile.stacks.callers):
        depth = 1 if caller == OUTERMOST else depths[caller] + 1
        depths.append(depth)
        truncated.append(row if depth <= MAX_DEPTH else truncated[caller])
    samples = profile.samples
    deep = sum(
        depths[row] for row in samples.stacks if row != OUTERMOST and depths[row] > MAX_DEPTH
    )
    if deep <= room:
        return profile
    stacks = array("i", (row if row == OUTERMOST else truncated[row] for row in samples.stacks))
    return replace(profile, samples=replace(samples, stacks=stacks))
