"""Whether each access that the system recorded has a recorded call: the recall of an observation.

A call that has no access is usual, since an app that requests data need not get it. An access
without a call is an alarm: something that gives the data was not watched.
"""

from __future__ import annotations

from bisect import bisect_left
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
    """Accesses while no process was recorded."""
    calls: int
    """Recorded calls of the report's categories, with a time."""
    unanswered: int
    """Those of them without an access."""
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
        app: the bundle identifier; empty if the report has one app alone, or one of those that
            were recorded.

    Raises:
        ArgumentError: the report has several apps, or not this one.
    """
    app = _chosen(report, app, {process.app for process in recording.trail.processes})
    by_category = _by_category(recording, rules)
    spans = _spans(recording)
    ends = [end for _, end in spans]
    error = max((process.wall_error for process in recording.trail.processes), default=0)
    seen: list[Access] = []
    missed: list[Access] = []
    outside = 0
    for access in accesses_of(report, app):
        first = spans[0][0] if access.begin is None and spans else access.begin or 0
        last = spans[-1][1] if access.end is None and spans else access.end or 0
        at = bisect_left(ends, first)
        if at == len(spans) or spans[at][0] > last:
            outside += 1
            continue
        # Continuous data, such as location, may have begun long before.
        known = by_category.get(access.category)
        is_seen = known is not None and known.answer(first - BEFORE - error, last + error)
        (seen if is_seen else missed).append(access)
    return Recall(
        app=app,
        seen=tuple(seen),
        missed=tuple(missed),
        outside=outside,
        calls=sum(each.total for each in by_category.values()),
        unanswered=sum(each.unanswered() for each in by_category.values()),
        unwatched=tuple(sorted({each.category for each in missed} - by_category.keys())),
        hosts=tuple(host for host in report.hosts if host.app == app),
        skipped=tuple(
            f"{counted(number, 'line')} left out: {reason}"
            for reason, number in report.skipped.items()
        ),
    )


def recall_lines(result: Recall) -> Iterator[str]:
    """Yield what the system recorded, one line each, for people."""
    compared = len(result.seen) + len(result.missed)
    yield (
        f"App Privacy Report of {result.app}: {len(result.seen):,} of "
        f"{compared:,} accesses have a recorded call; "
        f"{result.outside:,} while nothing was recorded; "
        f"{result.unanswered:,} of {counted(result.calls, 'call')} without an access"
    )
    trackers = [host for host in result.hosts if host.is_tracker]
    if result.hosts:
        yield f"{counted(len(result.hosts), 'host')} contacted, {len(trackers):,} may track"
    yield from (
        f"  {host.domain}{f' ({host.owner})' if host.owner else ''}: {counted(host.hits, 'time')}"
        for host in trackers
    )


def _chosen(report: OsReport, app: str, recorded: set[str]) -> str:
    apps = report.apps
    if app in apps:
        return app
    for known in (apps, sorted(recorded.intersection(apps))):
        if not app and len(known) == 1:
            return known[0]
    shown = ", ".join(apps[:10])
    fact = f"does not have {app!r}" if app else "has several apps"
    raise ArgumentError(
        f"the App Privacy Report {fact}",
        remedy=f"name one of them with --os-app: {shown}",
    )


class _Times:
    """The calls of one category, by their times in ns since 1970."""

    def __init__(self, times: Times, calls: Times) -> None:
        order = np.argsort(times)
        self._times, self._calls = times[order], calls[order]
        self._answered = np.zeros(len(times) + 1, np.int64)

    @property
    def total(self) -> int:
        return int(self._calls.sum())

    def answer(self, first: int, last: int) -> bool:
        """Return whether a call is in an interval; those that are have an access."""
        begin = int(np.searchsorted(self._times, first, side="left"))
        end = int(np.searchsorted(self._times, last, side="right"))
        if begin < end:
            self._answered[begin] += 1
            self._answered[end] -= 1
        return begin < end

    def unanswered(self) -> int:
        """Return the number of calls that were in no interval so far."""
        return int(self._calls[np.cumsum(self._answered)[:-1] == 0].sum())


def _by_category(recording: Recording, rules: RuleSet) -> dict[str, _Times]:
    by_watch = {rule.watch: rule.report for rule in rules.rules}
    categories = [by_watch.get(watch, "") for watch in recording.trail.rules]
    calls = recording.trail.calls
    times, _ = recording.trail.wall_times()
    result: dict[str, _Times] = {}
    for category in set(categories) - {""}:
        numbers = [at for at, each in enumerate(categories) if each == category]
        rows = (calls.time != NO_TIME) & np.isin(calls.rule, numbers)
        result[category] = _Times(times[rows], calls.calls[rows])
    return result


def _spans(recording: Recording) -> list[tuple[int, int]]:
    """Return the times in which processes were observed, in ns since 1970, as disjoint spans."""
    trail = recording.trail
    times, _ = trail.wall_times()
    timed = trail.calls.time != NO_TIME
    greatest = np.iinfo(np.int64).max
    first = np.full(len(trail.processes), greatest, np.int64)
    last = np.full(len(trail.processes), NO_TIME, np.int64)
    np.minimum.at(first, trail.calls.process[timed], times[timed])
    np.maximum.at(last, trail.calls.process[timed], times[timed])
    spans: list[tuple[int, int]] = []
    for number, process in enumerate(trail.processes):
        started, ended = (each + process.wall_offset for each in (process.started, process.ended))
        is_stated = process.ended != NO_TIME
        begin = min(int(first[number]), started if process.started != NO_TIME else greatest)
        end = ended if is_stated else max(int(last[number]), begin) + AFTER
        if begin != greatest:
            spans.append((begin, end))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
