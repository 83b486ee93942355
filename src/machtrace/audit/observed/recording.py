"""Recorded calls of processes, with what is known of each rule, joined into one set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.process_calls import Moments, ProcessCalls, process_calls
from machtrace.audit.observed.stack_union import GrowingUnion
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import Image, Process, Trail, calls_of
from machtrace.audit.trail.stacks import NO_IMAGE, StackTree
from machtrace.frozen import dataclass
from machtrace.reports.spool.spool import Spool


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
            **{name: np.concatenate([each.pop(name) for each in self._columns]) for name in names}
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
