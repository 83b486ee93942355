"""Whether each access that the system recorded has a recorded call: the recall of an observation.

A call that has no access is usual, since an app that requests data need not get it. An access
without a call is an alarm: something that gives the data was not watched.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from machtrace.audit.observed.os_report import Access, Host, OsReport, accesses_of
from machtrace.audit.observed.recording import Recording
from machtrace.audit.rules import RuleSet
from machtrace.audit.trail.calls import NO_TIME, SECOND, Times
from machtrace.errors import ArgumentError
from machtrace.frozen import dataclass
from machtrace.model.text import counted

BEFORE = 5 * SECOND
"""How long before an access its call may be: the system records when it delivers."""
AFTER = 60 * SECOND
"""How long after the last recorded call a process without a stated end is taken to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The system's report, compared with a recording."""

    app: str
    seen: tuple[Access, ...]
    """Accesses with a call."""
    missed: tuple[Access, ...]
    """Accesses without one."""
    outside: int
    """Accesses before and after the recording."""
    unwatched: tuple[str, ...]
    """Categories of accesses for which no rule was watched."""
    hosts: tuple[Host, ...]
    skipped: tuple[str, ...]
    """Lines of the report that were left out, with the reason."""

    def alarms(self) -> Iterator[str]:
        """Yield what the recording did not observe, one line each."""
        counts: dict[str, int] = {}
        for access in self.missed:
            counts[access.category] = counts.get(access.category, 0) + 1
        for category, number in counts.items():
            times = "once" if number == 1 else f"{number:,} times"
            reason = (
                "no rule of this kind was watched"
                if category in self.unwatched
                else "no watched call was recorded then"
            )
            yield f"the system recorded {category} {times} where {reason}"
        yield from (f"App Privacy Report: {line}" for line in self.skipped)


def recall(recording: Recording, rules: RuleSet, report: OsReport, app: str = "") -> Recall:
    """Compare the accesses of an app with recorded calls.

    Args:
        recording: the calls.
        rules: their rules, which state the report's categories.
        report: the system's report.
        app: the bundle identifier; empty if the report has one app alone.

    Raises:
        ArgumentError: the report has several apps, or not this one.
    """
    app = _chosen(report, app)
    by_watch = {rule.watch: rule.report for rule in rules.rules}
    categories = [by_watch.get(watch, "") for watch in recording.trail.rules]
    calls = recording.trail.calls
    offsets = np.array([each.wall_offset for each in recording.trail.processes] or [0], np.int64)
    times: dict[str, Times] = {}
    timed = calls.time != NO_TIME
    wall = calls.time + offsets[calls.process] if len(calls) else calls.time
    for category in set(categories) - {""}:
        numbers = [at for at, each in enumerate(categories) if each == category]
        times[category] = np.sort(wall[timed & np.isin(calls.rule, numbers)])
    begin, end = _span(recording, wall[timed])
    seen: list[Access] = []
    missed: list[Access] = []
    outside = 0
    for access in accesses_of(report, app):
        first = begin if access.begin is None else access.begin
        last = end if access.end is None else access.end
        if last < begin or first > end:
            outside += 1
            continue
        known = times.get(access.category)
        if known is None:
            missed.append(access)
            continue
        # Continuous data, such as location, may have begun long before.
        at = int(np.searchsorted(known, last, side="right"))
        is_seen = at > 0 and known[at - 1] >= first - BEFORE
        (seen if is_seen else missed).append(access)
    return Recall(
        app=app,
        seen=tuple(seen),
        missed=tuple(missed),
        outside=outside,
        unwatched=tuple(sorted({each.category for each in missed} - times.keys())),
        hosts=tuple(host for host in report.hosts if host.app == app),
        skipped=tuple(
            f"{number:,} lines were left out: {reason}" for reason, number in report.skipped.items()
        ),
    )


def recall_lines(result: Recall) -> Iterator[str]:
    """Yield what the system recorded, one line each, for people."""
    compared = len(result.seen) + len(result.missed)
    yield (
        f"App Privacy Report of {result.app}: {len(result.seen):,} of "
        f"{compared:,} accesses have a recorded call; "
        f"{result.outside:,} before or after the recording"
    )
    trackers = [host for host in result.hosts if host.is_tracker]
    if result.hosts:
        yield f"{counted(len(result.hosts), 'host')} contacted, {len(trackers):,} may track"
    yield from (
        f"  {host.domain}{f' ({host.owner})' if host.owner else ''}: {counted(host.hits, 'time')}"
        for host in trackers
    )


def _chosen(report: OsReport, app: str) -> str:
    apps = report.apps
    if app in apps:
        return app
    if not app and len(apps) == 1:
        return apps[0]
    shown = ", ".join(apps[:10])
    fact = f"does not have {app!r}" if app else "has several apps"
    raise ArgumentError(
        f"the App Privacy Report {fact}",
        remedy=f"name one of them with --os-app: {shown}",
    )


def _span(
    recording: Recording, wall: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[int, int]:
    """Return the first and the last observed time, in ns since 1970."""
    starts = [
        each.started + each.wall_offset
        for each in recording.trail.processes
        if each.started != NO_TIME
    ]
    ends = [
        each.ended + each.wall_offset for each in recording.trail.processes if each.ended != NO_TIME
    ]
    if len(wall):
        starts.append(int(wall.min()))
        ends.append(int(wall.max()) + AFTER)
    return min(starts, default=0), max(ends, default=0)
