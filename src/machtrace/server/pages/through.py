"""Other stacks through the frames of one: in each segment, the intervals of its nodes.

A node's callees are the rows behind it, so that whatever goes through a frame is one interval of a
segment's nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from machtrace.server.limits import NOT_FOUND, RefusedError
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.warehouse import Warehouse

MAX_DEPTH = 256
"""Frames of a stack, from the outermost, of which others are counted."""
_STACK = "SELECT segment, node FROM stacks WHERE key = $key ORDER BY segment DESC"


class Interval(NamedTuple):
    """Nodes of a segment."""

    segment: int
    first: int
    end: int
    """The node after the last one."""


class StoredStack(NamedTuple):
    """A stack, and where others share its frames."""

    segment: Segment
    node: int
    intervals: Sequence[Sequence[Interval]]
    """By depth from 1, the outermost frame: the nodes at and below it, in all segments."""

    def condition(self, depth: int) -> str:
        """Return the condition over ``stacks_of_reports`` of what goes through a frame."""
        parts = [
            f"(segment = {each.segment} AND node BETWEEN {each.first} AND {each.end - 1})"
            for each in self.intervals[depth - 1]
        ]
        # The stack that a report is about is there as a thread's, too.
        return f"role != 'subject' AND ({' OR '.join(parts) or 'false'})"


def stored_stack(warehouse: Warehouse, key: str) -> StoredStack:
    """Return a stack by its key, in hexadecimal.

    Raises:
        RefusedError: there is none.
    """
    try:
        rows = warehouse.query(_STACK, {"key": bytes.fromhex(key)}).to_pylist()
    except ValueError:
        rows = []
    if not rows:
        raise RefusedError(NOT_FOUND, f"no stack has the key {key[:100]}")
    number, node = rows[0]["segment"], rows[0]["node"]
    own = warehouse.stacks_of(number)
    path = own.tree.stack(node)[::-1][:MAX_DEPTH]
    keys = own.frame_keys[path]
    offsets = numbers(own.frames, "offset")[path]
    intervals: list[list[Interval]] = [[] for _ in path]
    for row in warehouse.segments:
        segment = own if row.id == number else warehouse.stacks_of(row.id)
        for depth, (first, end) in enumerate(_descent(segment, keys, offsets)):
            intervals[depth].append(Interval(row.id, first, end))
    return StoredStack(own, node, intervals)


def reports_through(warehouse: Warehouse, stack: StoredStack) -> list[int]:
    """Return by depth from 1 how many reports have a stack through that frame."""
    by_segment: dict[int, list[Interval]] = {}
    for intervals in stack.intervals:
        for each in intervals:
            by_segment.setdefault(each.segment, []).append(each)
    counts: Counter[int] = Counter()
    for number, path in by_segment.items():
        # The intervals are nested: a node in one is in all outer ones.
        arms = " ".join(
            f"WHEN node >= {each.first} AND node < {each.end} THEN {depth}"
            for depth, each in reversed(list(enumerate(path, 1)))
        )
        text = (
            f"SELECT depth, count(*) AS reports FROM (SELECT report, max(CASE {arms} END) AS depth "  # noqa: S608 - numbers
            f"FROM occurrences WHERE segment = {number} AND node >= {path[0].first} "
            f"AND node < {path[0].end} GROUP BY report) GROUP BY depth"
        )
        for row in warehouse.query(text).to_pylist():
            counts[row["depth"]] += row["reports"]
    return [
        sum(count for deepest, count in counts.items() if deepest >= depth)
        for depth in range(1, len(stack.intervals) + 1)
    ]


def _descent(segment: Segment, keys: np.ndarray, offsets: np.ndarray) -> list[tuple[int, int]]:
    """Return the intervals of a path of frames, as far as a segment has it."""
    tree = segment.tree
    own_offsets = numbers(segment.frames, "offset")
    first, end = 0, len(tree)
    made: list[tuple[int, int]] = []
    for depth, (key, offset) in enumerate(zip(keys, offsets, strict=True), 1):
        candidates = np.flatnonzero(own_offsets == offset)
        same = candidates[(segment.frame_keys[candidates] == key).all(axis=1)]
        if not len(same):
            break
        inside = slice(first + 1, end)
        at = np.flatnonzero((tree.depth[inside] == depth) & (tree.frame[inside] == same[0]))
        if not len(at):
            break
        first = first + 1 + int(at[0])
        end = int(tree.end[first])
        made.append((first, end))
    return made
