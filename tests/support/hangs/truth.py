"""The truth: the lines of a program, and the acts of the runner."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.support.hangs.scenarios import (
    BY_RUNNER,
    MAX_QUIET_MS,
    MIN_HANG_MS,
    THRESHOLD_MS,
    Scenario,
    Step,
    action_of,
)

MS = 1_000_000
_PREPARATION_MS = 5
"""The time before the action, in the same callback, that a host with a free processor needs."""


def boot_ns() -> int:
    """Return ``CLOCK_BOOTTIME``."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Class(Enum):
    """The class of an event."""

    HANG = "hang"
    QUIET = "quiet"
    UNDECIDABLE = "undecidable"
    """Short tasks in a row that all run the same function: nothing outside shows their ends."""
    UNSCORED = "unscored"
    """Between 0.75 T and 1.25 T, or longer than planned for reasons of the host."""


@dataclass(frozen=True, slots=True)
class Event:
    """A time in which a program, or the runner, did something."""

    step: int
    action: str
    began: int
    """``CLOCK_BOOTTIME``, in nanoseconds."""
    ended: int
    cpu: int = 0
    """Processor time of the thread."""
    switches: int | None = None
    """Voluntary context switches of the thread."""
    kind: Class = Class.UNSCORED
    culprit: str = ""
    inside: tuple[str, ...] = ()
    nested: bool = False
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def duration(self) -> int:
        """In nanoseconds."""
        return self.ended - self.began

    def overlap(self, began: int, ended: int) -> int:
        """Return the shared nanoseconds; negative is the distance."""
        return min(self.ended, ended) - max(self.began, began)


_ROWS = {"short": "short-tasks", "burn": "equal-tasks", "nothing": "nothing"}
"""Rows of callbacks. From outside, equal ones are indistinguishable from one long one."""


def _kind(step: Step, began: int, ended: int, cpu: int, *, waits: bool, disturbed: bool) -> Class:
    duration = ended - began
    if step.is_hang:
        # A hang needs its processor time; the rest of it may be starvation.
        enough = duration if waits else min(duration, cpu)
        is_whole = enough >= MIN_HANG_MS * MS and not disturbed
        return Class.HANG if is_whole else Class.UNSCORED
    if step.is_quiet_by_nature or disturbed or duration <= MAX_QUIET_MS * MS:
        # A child process that takes long to start is a hang, and so is a long collection.
        if step.action in ("spawn", "gc") and duration > MAX_QUIET_MS * MS:
            return Class.UNSCORED
        return Class.QUIET
    is_starved = not waits and cpu <= MAX_QUIET_MS * MS and duration >= THRESHOLD_MS * MS
    return Class.QUIET if is_starved else Class.UNSCORED


def events_of(
    scenario: Scenario, lines: Iterable[Mapping[str, Any]], acts: Iterable[Event]
) -> list[Event]:
    """Return the events in their order.

    A row of short tasks is one event.

    Args:
        scenario: the steps that were executed.
        lines: the program's.
        acts: the runner's.
    """
    steps = {step.id: step for step in scenario.steps}
    disturbances = list(acts)
    events = []
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if "id" in line:
            rows.setdefault(int(line["id"]), []).append(line)
    for number, row in rows.items():
        step = steps.get(number)
        if step is None or step.action == "exit":
            continue
        began, ended = int(row[0]["began"]), int(row[-1]["ended"])
        cpu = sum(int(line["cpu"]) for line in row)
        action = action_of(scenario.program, str(row[0]["action"]))
        disturbed = any(act.overlap(began, ended) > 0 for act in disturbances)
        longest = max(row, key=lambda line: int(line["ended"]) - int(line["began"]))
        waits = action is not None and action.waits
        if step.count > 1 and step.action == "burn":
            kind = Class.UNDECIDABLE
        elif len(row) > 1:
            # Each of many short tasks has to be short.
            kind = _kind(
                step,
                int(longest["began"]),
                int(longest["ended"]),
                int(longest["cpu"]),
                waits=waits,
                disturbed=disturbed,
            )
        else:
            kind = _kind(step, began, ended, cpu, waits=waits, disturbed=disturbed)
            if began - int(row[0].get("entered", began)) > _PREPARATION_MS * MS:
                kind = Class.UNSCORED
        events.append(
            Event(
                number,
                _ROWS[step.action] if step.count > 1 else str(row[0]["action"]),
                began,
                ended,
                cpu,
                int(row[0]["switches"]) if "switches" in row[0] else None,
                kind,
                action.culprit if action else "",
                action.inside if action else (),
                (action.nested if action else False) or step.action.startswith("modal"),
                {"planned": step.ms, "gaps": row[0].get("gaps")},
            )
        )
    return sorted([*events, *disturbances], key=lambda event: event.began)


def is_act(event: Event) -> bool:
    """Return whether the runner did it."""
    return event.action.startswith(BY_RUNNER)
