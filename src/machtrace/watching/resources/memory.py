"""The conditions of memory: a level, a share of the limit, a jump, and steady growth to the limit.

A page is counted as a fault of the thread that touches it first, so growth has a thread. Pages that
the allocator reuses cause no fault, and one fault may bring a huge page.
"""

from __future__ import annotations

from collections import deque

from machtrace.model.incident.facts import AppliedRule, IncidentKind, TimeRange, VerdictCertainty
from machtrace.model.polls import MemoryLimit, ProcessPoll
from machtrace.watching.resources.conditions import (
    SECOND_NS,
    ConditionEvent,
    ConditionMet,
    ConditionOver,
    Point,
    QuietTime,
    ThreadHistory,
)
from machtrace.watching.thresholds import (
    MemoryJump,
    MemoryLevel,
    MemoryShare,
    MemorySlope,
    MemoryThreshold,
)

_PAGE = 4096
_CERTAIN_SHARE = 0.9
_SLOPE_NS, _MIN_SLOPE_NS = 60 * SECOND_NS, 30 * SECOND_NS
_MIN_PART = 50
"""Growth below this part of a jump does not continue it."""
_BUSY = 4
"""Threads that are shown if none is known to have caused the growth."""
_MIN_GROWTH = 0.01
"""Growth below this share of the limit has no slope."""


class MemoryCondition:
    """One threshold of memory.

    Args:
        threshold: the threshold.
        history: the counts of threads, which the owner adds polls to.
    """

    def __init__(self, threshold: MemoryThreshold, history: ThreadHistory) -> None:
        self.threshold = threshold
        self.limit: MemoryLimit | None = None
        """Set by the owner; without it shares and slopes are not exceeded."""
        self._history = history
        self._points: deque[Point] = deque()
        self._met: ConditionMet | None = None
        self._last: ProcessPoll | None = None
        self._quiet = QuietTime()
        self._is_waiting = False
        self._grew: TimeRange | None = None
        """When a jump's growth stopped, as far as is known."""

    @property
    def wants_threads(self) -> bool:
        """Whether it is exceeded, and the next poll should have the counts of threads."""
        return self._is_waiting

    @property
    def is_growing(self) -> bool:
        """Whether the memory grew since the poll before by a tenth of a jump, or a MiB."""
        if len(self._points) < 2:  # noqa: PLR2004 - a difference
            return False
        jump = self.threshold.size if isinstance(self.threshold, MemoryJump) else 10 << 20
        return self._points[-1].value - self._points[-2].value >= max(1 << 20, jump // 10)

    def add(self, poll: ProcessPoll) -> list[ConditionEvent]:
        """Take the next poll; return what has changed."""
        used = self._used(poll)
        if used is None:
            return []
        self._last = poll
        self._append(Point(poll.at_ns, poll.boot_ns, used))
        is_exceeded, is_calm = self._state(poll, used)
        self._is_waiting = False
        if self._met is not None:
            if not is_calm:
                return []
            return [self._over(self._met, self._ended(poll))]
        if not self._quiet.permits(poll.at_ns, is_exceeded=is_exceeded):
            return []
        if poll.threads is None:
            self._is_waiting = True
            self._points.pop()
            return []
        self._met = self._condition(poll, used)
        self._quiet.begin(poll.at_ns)
        return [self._met]

    def _append(self, point: Point) -> None:
        points, span = self._points, self._span_ns
        if isinstance(self.threshold, MemoryJump) and points:
            # The growth ends between the last poll that found some and the next.
            if point.value - points[-1].value >= self.threshold.size / _MIN_PART:
                self._grew = TimeRange(point.boot_ns, point.boot_ns)
            elif self._grew == (points[-1].boot_ns, points[-1].boot_ns, None):
                self._grew = TimeRange(points[-1].boot_ns, point.boot_ns)
        is_long = span >= _SLOPE_NS and len(points) > 1
        if is_long and points[-1].at_ns - points[-2].at_ns < SECOND_NS // 2:
            points.pop()  # half a second between points is enough for a minute
        points.append(point)
        while len(points) > 2 and points[1].at_ns < point.at_ns - span:  # noqa: PLR2004
            points.popleft()

    def end(self, poll: ProcessPoll | None = None) -> list[ConditionEvent]:
        """Return the end of what lasts: the process has exited, or watching ends."""
        poll = poll or self._last
        if self._met is None or poll is None:
            return []
        return [self._over(self._met, TimeRange(poll.boot_ns, poll.boot_ns))]

    @property
    def _span_ns(self) -> int:
        if isinstance(self.threshold, MemoryJump):
            return self.threshold.window_ns
        return _SLOPE_NS

    def _used(self, poll: ProcessPoll) -> int | None:
        is_of_limit = isinstance(self.threshold, MemoryShare | MemorySlope)
        if is_of_limit and self.limit is None:
            return None
        is_virtual = is_of_limit and self.limit is not None and self.limit.is_virtual
        return poll.virtual if is_virtual else poll.resident

    def _state(self, poll: ProcessPoll, used: int) -> tuple[bool, bool]:
        """Return whether the threshold is exceeded, and whether an incident has ended."""
        threshold, limit = self.threshold, self.limit
        if isinstance(threshold, MemoryLevel):
            return used >= threshold.size, used < 0.95 * threshold.size
        if isinstance(threshold, MemoryJump):
            growth = used - self._lowest.value
            return growth >= threshold.size, growth < threshold.size / 10
        if limit is None:
            return False, True
        if isinstance(threshold, MemoryShare):
            return used >= threshold.share * limit.size, used < 0.95 * threshold.share * limit.size
        left = self._left_ns(poll, used, limit)
        is_exceeded = left is not None and left <= threshold.left_ns
        return is_exceeded, left is None or left > 2 * threshold.left_ns

    @property
    def _lowest(self) -> Point:
        """The last point of the window with the least memory."""
        last = self._points[-1]
        since_ns = last.at_ns - self._span_ns
        inside = [point for point in self._points if point.at_ns >= since_ns]
        if len(inside) < len(self._points):
            before, after = self._points[-len(inside) - 1], inside[0]
            # The watcher may have been late: growth in between is spread evenly.
            part = (since_ns - before.at_ns) / (after.at_ns - before.at_ns)
            value = before.value + part * (after.value - before.value)
            boot_ns = after.boot_ns - (after.at_ns - since_ns)
            inside.insert(0, Point(since_ns, boot_ns, value))
        return min(reversed(inside), key=lambda point: point.value)

    def _left_ns(self, poll: ProcessPoll, used: int, limit: MemoryLimit) -> int | None:
        """Return the time until the limit is reached; None if the memory does not grow steadily."""
        first = self._points[0]
        passed = poll.at_ns - first.at_ns
        growth = used - first.value
        if passed < _MIN_SLOPE_NS or growth < _MIN_GROWTH * limit.size:
            return None
        middle = next(p for p in self._points if p.at_ns >= first.at_ns + passed // 2)
        late = used - middle.value
        if not 0.25 * growth <= late <= 0.75 * growth:
            return None  # a jump has no slope
        return round(max(0.0, limit.size - used) / growth * passed)

    def _ended(self, poll: ProcessPoll) -> TimeRange:
        """Return when a condition ended: of growth, when it stopped."""
        if isinstance(self.threshold, MemoryJump) and self._grew is not None:
            return self._grew
        before = self._points[-2].boot_ns if len(self._points) > 1 else poll.boot_ns
        return TimeRange(before, poll.boot_ns)

    def _over(self, met: ConditionMet, ended: TimeRange) -> ConditionOver:
        self._met = None
        duration = max(0, ended.best_ns - met.began.best_ns)
        return ConditionOver(IncidentKind.MEMORY, str(self.threshold), ended, duration)

    def _condition(self, poll: ProcessPoll, used: int) -> ConditionMet:
        low = self._lowest
        growth = max(0, round(used - low.value))
        following = next((p for p in self._points if p.at_ns > low.at_ns), low)
        resident = poll.resident or 0
        shares, per_fault = self._history.fault_shares(
            max(0, resident - growth), growth, poll.at_ns - 2 * self._span_ns
        )
        evidence: dict[str, int | float | str | bool | None] = {
            "resident_bytes": resident,
            "growth_bytes": growth,
            "within_ns": poll.at_ns - low.at_ns,
        }
        if self.limit is not None and not isinstance(self.threshold, MemoryJump | MemoryLevel):
            evidence["limit_bytes"] = self.limit.size
            evidence["limit_of"] = self.limit.source
            left = self._left_ns(poll, used, self.limit)
            if left is not None:
                evidence["limit_reached_in_ns"] = left
        missing = ["memory that the allocator reuses causes no faults: its thread is not seen"]
        rules = [*self._quiet.rules]
        has_faults = self._history.has_faults
        if not has_faults:
            busy, _ = self._history.run_shares(poll.at_ns - 2 * self._span_ns)
            shares = busy[:_BUSY]
            missing = ["page faults of threads are not counted here: the busiest threads are shown"]
        elif shares:
            evidence["thread_share_percent"] = round(100 * shares[0].share, 1)
            evidence["bytes_per_fault"] = round(per_fault)
        else:
            missing = [
                "no thread had page faults: another process, or the kernel, added the memory"
            ]
        is_huge = per_fault > 4 * _PAGE
        if is_huge:
            text = f"a fault added {per_fault / 1024:,.0f} KiB on average: shares count faults"
            rules.append(AppliedRule("huge-pages", text))
        is_alone = bool(shares) and shares[0].share >= _CERTAIN_SHARE
        is_certain = has_faults and is_alone and not is_huge
        if is_certain:
            missing = []  # the thread's faults are the growth
        return ConditionMet(
            kind=IncidentKind.MEMORY,
            threshold=str(self.threshold),
            began=TimeRange(low.boot_ns, following.boot_ns),
            seen_ns=poll.boot_ns,
            certainty=VerdictCertainty.CERTAIN if is_certain else VerdictCertainty.LIKELY,
            threads=tuple(shares),
            evidence=evidence,
            rules=tuple(rules),
            missing=tuple(missing),
        )
