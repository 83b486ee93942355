"""Recorded calls of processes, with what is known of each rule, joined into one set."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.process_calls import Moments, ProcessCalls, process_calls
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import Image, Process, Trail, calls_of
from machtrace.audit.trail.stacks import NO_IMAGE, ROOT, Nodes, StackTree, path_sums
from machtrace.frozen import dataclass
from machtrace.reports.spool.spool import Spool

# --- The union of trees of stacks: equal stacks of several processes have one node ---
#
# Nodes are compared by caller, image and offset, level by level from the root, so that equality is
# exact and no hash is compared.

_MIN_PENDING = 1 << 22
"""Nodes that are joined at once; with fewer the union itself would be sorted too often."""


class GrowingUnion:
    """The union of many trees, of which only the last ones are in memory beside it.

    Trees are joined when they have as many nodes as the union, so that the time is proportional to
    the nodes of all trees times the logarithm.
    """

    def __init__(self) -> None:
        self._tree = empty_tree()
        self._columns: list[MutableMapping[str, npt.NDArray[Any]]] = []
        """One for each tree: those that are in the union, and of the pending ones."""
        self._pending: list[StackTree] = []
        self._size = 0

    def add(self, tree: StackTree, columns: MutableMapping[str, npt.NDArray[Any]]) -> None:
        """Add a tree.

        Args:
            tree: its images have the same numbers as those of others.
            columns: ``stack`` has nodes of the tree; it is replaced with nodes of the union.
        """
        self._columns.append(columns)
        self._pending.append(tree)
        self._size += len(tree)
        if self._size > max(_MIN_PENDING, len(self._tree)):
            self._join()

    def tree(self) -> StackTree:
        """Return the union; the columns have its nodes from then on."""
        self._join()
        return self._tree

    def _join(self) -> None:
        joined = len(self._columns) - len(self._pending)
        union = union_of([self._tree, *self._pending])
        self._tree = union.tree
        self._pending.clear()
        self._size = 0
        for columns in self._columns[:joined]:
            columns["stack"] = union.nodes[0][columns["stack"]]
        for columns, nodes in zip(self._columns[joined:], union.nodes[1:], strict=True):
            columns["stack"] = nodes[columns["stack"]]


class Union(NamedTuple):
    """A tree that has the stacks of several trees."""

    tree: StackTree
    nodes: tuple[Nodes, ...]
    """For each of the trees: the node of the union, by its own node."""


def empty_tree() -> StackTree:
    """Return a tree of the root alone."""
    return StackTree(
        parent=np.zeros(1, np.int32),
        image=np.full(1, NO_IMAGE, np.int32),
        offset=np.zeros(1, np.uint64),
    )


def union_of(trees: Sequence[StackTree]) -> Union:
    """Return the union of trees whose images have the same numbers."""
    sizes = [len(tree) - 1 for tree in trees]
    starts = np.cumsum([1, *sizes])
    parent, image, offset = _joined(trees, starts)
    depth = path_sums(parent, np.arange(len(parent)) != ROOT)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    number = np.zeros(len(parent), np.int32)
    firsts = [np.zeros(1, np.int64)]
    size = 1
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[begin:end]
        callers = number[parent[rows]].astype(np.uint64) << np.uint64(32)
        keys = callers | (image[rows].astype(np.int64) + 1).astype(np.uint64)
        by_key = np.lexsort((offset[rows], keys))
        ordered = rows[by_key]
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = np.diff(keys[by_key]).astype(np.bool_)
        is_new[1:] |= offset[ordered][1:] != offset[ordered][:-1]
        number[ordered] = size - 1 + np.cumsum(is_new, dtype=np.int32)
        firsts.append(ordered[is_new])
        size += len(firsts[-1])
    row = np.concatenate(firsts)
    tree = StackTree(parent=number[parent[row]], image=image[row], offset=offset[row])
    root = np.zeros(1, np.int32)
    nodes = tuple(
        np.concatenate((root, number[start : start + count]))
        for start, count in zip(starts.tolist(), sizes, strict=False)
    )
    return Union(tree, nodes)


def _joined(
    trees: Sequence[StackTree], starts: npt.NDArray[np.int64]
) -> tuple[Nodes, npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """Return the columns of all trees, below one root."""
    parents = [np.zeros(1, np.int32)]
    images = [np.full(1, NO_IMAGE, np.int32)]
    offsets = [np.zeros(1, np.uint64)]
    for tree, start in zip(trees, starts.tolist(), strict=False):
        callers = tree.parent[1:]
        parents.append(np.where(callers == ROOT, ROOT, callers + (start - 1)).astype(np.int32))
        images.append(tree.image[1:])
        offsets.append(tree.offset[1:])
    return np.concatenate(parents), np.concatenate(images), np.concatenate(offsets)


# --- Recorded calls of processes, with what is known of each rule, joined into one set ---


class DeadRule(NamedTuple):
    """A rule that a process could not observe, and the reason."""

    watch: str
    process: int
    reason: str
    is_blind: bool
    """Whether calls may have happened unobserved."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recording:
    """The calls of several processes, and what their rules observed."""

    trail: Trail
    sources: tuple[str, ...]
    """By process: the spool, or the target."""
    moments: tuple[Moments, ...]
    """By process."""
    dead: tuple[DeadRule, ...] = ()
    unwatched: int = 0
    """Rules that no process watched."""
    unruled: tuple[str, ...] = ()
    """Watched functions that no rule names."""
    problems: tuple[str, ...] = ()
    """Losses and damage, one line each."""
    costs: tuple[str, ...] = ()
    """The cost of the observation to the processes, one line each."""


def recording_of(
    spools: Iterable[Spool],
    rules: RuleSet,
    *,
    from_start: bool = False,
    marks: Iterable[tuple[int, str]] = (),
) -> Recording:
    """Return the calls in spools of what the rules watch.

    Args:
        spools: one for each process.
        rules: what is of interest.
        from_start: whether calls are recorded from the first initialiser on.
        marks: times in ns since 1970, and texts, in addition to those in the spools.
    """
    builder = RecordingBuilder(rules, marks)
    for spool in spools:
        builder.add(process_calls(spool, rules, from_start=from_start))
    return builder.recording()


class RecordingBuilder:
    """Joins the calls of processes one by one; equal stacks are stored once."""

    def __init__(self, rules: RuleSet, marks: Iterable[tuple[int, str]] = ()) -> None:
        """Begin without a process; for the arguments see :func:`recording_of`."""
        self._set, self._marks = rules, tuple(marks)
        self._rules: dict[str, int] = {}
        self._images: dict[str, int] = {}
        self._image_rows: list[Image] = []
        self._union = GrowingUnion()
        self._columns: list[dict[str, npt.NDArray[Any]]] = []
        self._processes: list[Process] = []
        self._sources: list[str] = []
        self._moments: list[Moments] = []
        self._dead: list[DeadRule] = []
        self._unruled: set[str] = set()
        self._problems: list[str] = []
        self._costs: list[str] = []

    def add(self, calls: ProcessCalls) -> None:
        """Add the calls of a process."""
        number, process = len(self._processes), calls.process
        self._processes.append(process)
        self._sources.append(calls.source)
        marks = ((time - process.wall_offset, text) for time, text in self._marks)
        self._moments.append(calls.moments._replace(marks=(*calls.moments.marks, *marks)))
        self._dead += [
            DeadRule(each.watch, number, each.reason, each.is_blind) for each in calls.dead
        ]
        self._unruled.update(calls.unruled)
        self._problems += calls.problems
        self._costs += calls.costs
        rules = [self._rules.setdefault(watch, len(self._rules)) for watch in calls.rules]
        images = np.array([NO_IMAGE, *map(self._image, calls.images)], np.int32)
        tree = calls.stacks
        columns = dict(calls.columns)
        columns["rule"] = np.array(rules or [0], np.int32)[columns["rule"]]
        columns["process"] = np.full(len(columns["time"]), number, np.int32)
        self._columns.append(columns)
        self._union.add(
            StackTree(parent=tree.parent, image=images[tree.image + 1], offset=tree.offset),
            columns,
        )

    def add_problem(self, text: str) -> None:
        """Add what could not be read."""
        self._problems.append(text)

    def recording(self) -> Recording:
        """Return all calls; nothing can be added after that."""
        stacks = self._union.tree()
        names = tuple(self._columns[0]) if self._columns else ()
        # Parts are freed column by column, so that no more than one column is there twice.
        calls = calls_of(
            **{
                name: np.concatenate([column.pop(name) for column in self._columns])
                for name in names
            }
        )
        trail = Trail(
            images=tuple(self._image_rows),
            stacks=stacks,
            rules=tuple(self._rules),
            processes=tuple(self._processes),
            calls=calls,
        )
        return Recording(
            trail=trail,
            sources=tuple(self._sources),
            moments=tuple(self._moments),
            dead=tuple(self._dead),
            unwatched=len(self._set) - len(self._rules),
            unruled=tuple(sorted(self._unruled)),
            problems=tuple(self._problems),
            costs=tuple(self._costs),
        )

    def _image(self, image: Image) -> int:
        number = self._images.setdefault(image.key, len(self._images))
        if number == len(self._image_rows):
            self._image_rows.append(image)
        return number
