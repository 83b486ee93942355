"""The condition of processor time.

It is the sum of what the threads ran, as a share of one processor. A window's share is its mean,
but a second counts at most as the threshold rounded up to whole processors: a burst of many threads
is not a long use.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from machtrace.model.incident.facts import IncidentKind, TimeRange, VerdictCertainty
from machtrace.model.polls import ProcessPoll
from machtrace.model.text import counted
from machtrace.watching.resources.conditions import (
    SECOND_NS,
    ConditionEvent,
    ConditionMet,
    ConditionOver,
    Point,
    QuietTime,
    ThreadHistory,
)
from machtrace.watching.thresholds import CpuThreshold

_TOLERANCE = 0.995
"""Processor time is added up at clock ticks: a thread that always runs has little less than 1."""
_CALM = 0.75
"""A condition has ended when the share is below this part of the threshold."""
_CALM_NS = 5 * SECOND_NS
_MIN_CALM_NS, _MAX_CALM_NS, _CALM_PARTS = 250_000_000, 2 * SECOND_NS, 16
"""The use begins after an interval of little use, of this time or part of the window."""
_POINTS = 64
"""Points of a window."""
HOT_SHARE = 0.05
"""Threads that use less of a processor are not sampled."""


class _Window:
    """The mean share of one processor over a threshold's window."""

    def __init__(self, threshold: CpuThreshold) -> None:
        self.threshold = threshold
        self._most = math.floor(threshold.share) + 1
        if threshold.share == math.floor(threshold.share):
            self._most = math.floor(threshold.share)
        self._points: deque[Point] = deque()
        self._slice = self._last = Point(0, 0, 0.0)
        self._slice_cpu = 0
        self.share = 0.0
        self.recent = 0.0
        self.seen_ns: int | None = None
        """``CLOCK_MONOTONIC`` when it was exceeded last."""

    @property
    def is_exceeded(self) -> bool:
        """Whether the mean exceeds the threshold, and the use has not ended meanwhile."""
        return self.share >= self.threshold.share * _TOLERANCE and not self.is_calm

    @property
    def is_calm(self) -> bool:
        return self.recent < self.threshold.share * _CALM

    def add(self, poll: ProcessPoll) -> None:
        cpu = poll.cpu_ns or 0
        if not self._points or cpu < self._slice_cpu:
            self._points.clear()
            self._slice = self._last = Point(poll.at_ns, poll.boot_ns, 0.0)
            self._slice_cpu = cpu
            self._points.append(self._last)
            return
        passed = poll.at_ns - self._slice.at_ns
        # A running thread's time is added up at clock ticks, so the limit allows for two.
        limit = self._most * passed * 1.001 + 8_000_000
        value = self._slice.value + min(float(cpu - self._slice_cpu), limit)
        self._last = Point(poll.at_ns, poll.boot_ns, value)
        if passed >= SECOND_NS:
            self._slice, self._slice_cpu = self._last, cpu
        window = self.threshold.window_ns
        if poll.at_ns - self._points[-1].at_ns >= window // _POINTS:
            self._points.append(self._last)
        while len(self._points) > 1 and self._points[1].at_ns <= poll.at_ns - window:
            self._points.popleft()
        self.share = (value - self._value_at(poll.at_ns - window)) / window
        recent = min(window, _CALM_NS)
        known = min(recent, max(1, poll.at_ns - self._points[0].at_ns))
        self.recent = (value - self._value_at(poll.at_ns - recent)) / known

    def began(self) -> TimeRange:
        """Return when the use began that exceeds the threshold: after the last calm interval."""
        points, after = self._points, self._last
        step = max(_MIN_CALM_NS, min(_MAX_CALM_NS, self.threshold.window_ns // _CALM_PARTS))
        for before in reversed(points):
            passed = after.at_ns - before.at_ns
            if passed < step and before is not points[0]:
                continue
            if passed and (after.value - before.value) / passed < self.threshold.share / 2:
                # The part of the interval without use comes first; the use is as that after it.
                later = max(1, self._last.at_ns - after.at_ns)
                rate = max((self._last.value - after.value) / later, self.threshold.share)
                used = round((after.value - before.value) / rate)
                estimate = max(before.boot_ns, after.boot_ns - used)
                return TimeRange(before.boot_ns, after.boot_ns, estimate)
            after = before
        return TimeRange(points[0].boot_ns, points[0].boot_ns)

    def _value_at(self, at_ns: int) -> float:
        """Return the time used up to then; before the first point nothing was used."""
        points = self._points
        if at_ns <= points[0].at_ns:
            return points[0].value
        after = self._last
        for point in reversed(points):
            if point.at_ns <= at_ns:
                passed = after.at_ns - point.at_ns
                part = (at_ns - point.at_ns) / passed if passed else 0.0
                return point.value + part * (after.value - point.value)
            after = point
        return points[0].value


class CpuCondition:
    """Processor time over several windows: one incident while any of them is exceeded.

    Args:
        thresholds: the windows.
        history: the counts of threads, which the owner adds polls to.
    """

    def __init__(self, thresholds: Sequence[CpuThreshold], history: ThreadHistory) -> None:
        self._windows = [_Window(threshold) for threshold in thresholds]
        self._history = history
        self._met: ConditionMet | None = None
        self._exceeded: list[_Window] = []
        self._last: ProcessPoll | None = None
        self._calm: ProcessPoll | None = None
        self._quiet = QuietTime()
        self._is_waiting = False

    @property
    def wants_threads(self) -> bool:
        """Whether a threshold is exceeded, and the next poll should have the counts of threads."""
        return self._is_waiting

    def add(self, poll: ProcessPoll) -> list[ConditionEvent]:
        """Take the next poll; return what has changed."""
        if poll.cpu_ns is None:
            return []
        for window in self._windows:
            window.add(poll)
        self._last = poll
        if self._met is not None:
            return self._lasting(self._met, poll)
        exceeded = [window for window in self._windows if window.is_exceeded]
        self._is_waiting = False
        if not self._quiet.permits(poll.at_ns, is_exceeded=bool(exceeded)):
            return []
        if poll.threads is None:
            self._is_waiting = True
            return []
        self._exceeded = exceeded
        self._met = self._condition(poll)
        self._quiet.begin(poll.at_ns)
        return [self._met]

    def end(self, poll: ProcessPoll | None = None) -> list[ConditionEvent]:
        """Return the end of what lasts: the process has exited, or watching ends."""
        poll = poll or self._last
        if self._met is None or poll is None:
            return []
        return [self._over(self._met, TimeRange(poll.boot_ns, poll.boot_ns))]

    def _lasting(self, met: ConditionMet, poll: ProcessPoll) -> list[ConditionEvent]:
        more = [w for w in self._windows if w.is_exceeded and w not in self._exceeded]
        if more:
            self._exceeded += more
        if not all(window.is_calm for window in self._exceeded):
            self._calm = None
            return []
        self._calm = self._calm or poll
        # The mean falls below the limit some time after the use has ended.
        recent = min(window.threshold.window_ns for window in self._exceeded)
        latest = self._calm.boot_ns
        earliest = max(met.seen_ns, latest - min(recent, _CALM_NS))
        return [self._over(met, TimeRange(earliest, latest))]

    def _over(self, met: ConditionMet, ended: TimeRange) -> ConditionOver:
        self._met = self._calm = None
        duration = max(0, ended.best_ns - met.began.best_ns)
        threshold = ",".join(str(window.threshold) for window in self._exceeded)
        return ConditionOver(IncidentKind.CPU, threshold, ended, duration)

    def _condition(self, poll: ProcessPoll) -> ConditionMet:
        window = min(self._exceeded, key=lambda each: each.threshold.window_ns)
        window_ns = window.threshold.window_ns
        began = window.began()
        since_ns = max(poll.at_ns - window_ns, poll.at_ns - (poll.boot_ns - began.best_ns))
        shares, unread = self._history.run_shares(since_ns)
        threads = tuple(share for share in shares if share.of_processor >= HOT_SHARE)
        missing = []
        if unread:
            missing.append(f"{counted(unread, 'thread')} of the process were not read: too many")
        evidence: dict[str, int | float | str | bool | None] = {
            "processor_percent": round(100 * window.share, 1),
            "window_ns": window_ns,
            "hot_threads": len(threads),
        }
        if threads:
            evidence["hot_thread_share_percent"] = round(100 * threads[0].share, 1)
            evidence["hot_thread_processor_percent"] = round(100 * threads[0].of_processor, 1)
        return ConditionMet(
            kind=IncidentKind.CPU,
            threshold=",".join(str(each.threshold) for each in self._exceeded),
            began=began,
            seen_ns=poll.boot_ns,
            certainty=VerdictCertainty.CERTAIN,
            threads=threads,
            evidence=evidence,
            rules=self._quiet.rules,
            missing=tuple(missing),
        )
