"""Conditions of a process over its polls: their events, and the counts of its threads over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.incident.facts import (
    AppliedRule,
    IncidentKind,
    SeriesPoint,
    TimeRange,
    VerdictCertainty,
)
from machtrace.model.polls import ProcessPoll, ThreadCount
from machtrace.model.text import counted

SECOND_NS = 1_000_000_000
QUIET_NS = 60 * SECOND_NS
"""Time after an incident in which the same condition is not reported again."""
_SERIES = 60
_RECENT_NS, _OLD_STEP_NS = 10 * SECOND_NS, 6 * SECOND_NS
"""Counts of threads are retained this long, and then one for each step."""


class ThreadShare(NamedTuple):
    """A thread's part in a condition."""

    thread: int
    share: float
    """Its part of the time, or of the faults, of all threads."""
    of_processor: float = 0.0
    """The share of a processor that it used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionMet:
    """A threshold that is exceeded."""

    kind: IncidentKind
    threshold: str
    began: TimeRange
    """``CLOCK_BOOTTIME``, as all times here."""
    seen_ns: int
    certainty: VerdictCertainty
    threads: tuple[ThreadShare, ...] = ()
    """The threads that cause it, the heaviest first."""
    evidence: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)
    rules: tuple[AppliedRule, ...] = ()
    missing: tuple[str, ...] = ()


class ConditionOver(NamedTuple):
    """The end of a condition."""

    kind: IncidentKind
    threshold: str
    ended: TimeRange
    duration_ns: int


ConditionEvent = ConditionMet | ConditionOver


class Point(NamedTuple):
    """A value at one time."""

    at_ns: int
    boot_ns: int
    value: float


class _Counts(NamedTuple):
    at_ns: int
    resident: int
    threads: Mapping[int, ThreadCount]
    unread: int


class ThreadHistory:
    """The counts of threads over time, fewer of older times.

    Args:
        longest_ns: the longest window that is requested.
    """

    def __init__(self, longest_ns: int) -> None:
        self._longest_ns = longest_ns
        self._counts: deque[_Counts] = deque()
        self._old_ns = 0

    def add(self, poll: ProcessPoll) -> None:
        """Take the counts of a poll that has them."""
        if poll.threads is None:
            return
        counts = self._counts
        counts.append(_Counts(poll.at_ns, poll.resident or 0, poll.threads, poll.unread))
        # The oldest one that is retained was before the longest window.
        while len(counts) > 1 and counts[1].at_ns <= poll.at_ns - self._longest_ns:
            counts.popleft()
        if poll.at_ns - self._old_ns < _OLD_STEP_NS:
            return
        self._old_ns = poll.at_ns
        recent = [count for count in counts if count.at_ns > poll.at_ns - _RECENT_NS]
        old: list[_Counts] = []
        for earlier in counts:
            if earlier.at_ns > poll.at_ns - _RECENT_NS:
                break
            if not old or earlier.at_ns - old[-1].at_ns >= _OLD_STEP_NS:
                old.append(earlier)
        self._counts = deque([*old, *recent])

    @property
    def has_faults(self) -> bool:
        """Whether the target counts the page faults of threads."""
        last = self._counts[-1].threads.values() if self._counts else ()
        return all(count.faults is not None for count in last)

    def run_shares(self, since_ns: int) -> tuple[list[ThreadShare], int]:
        """Return the threads by the time that they ran, and the number of unread ones."""
        if len(self._counts) < 2:  # noqa: PLR2004 - a difference
            return [], self._counts[-1].unread if self._counts else 0
        base = next(
            (count for count in reversed(self._counts) if count.at_ns <= since_ns), self._counts[0]
        )
        last = self._counts[-1]
        if base is last:
            base = self._counts[-2]
        used = _differences(base, last, "run_ns")
        wall = last.at_ns - max(base.at_ns, since_ns)
        return _shares(used, max(1, wall)), last.unread

    def fault_shares(
        self, start: int, growth: int, since_ns: int
    ) -> tuple[list[ThreadShare], float]:
        """Return the threads by their faults, and the bytes of growth per fault.

        Args:
            start: resident bytes before the growth.
            growth: bytes.
            since_ns: the time before which counts are not considered.
        """
        if len(self._counts) < 2 or not self.has_faults:  # noqa: PLR2004 - a difference
            return [], 0.0
        last = self._counts[-1]
        earlier = [*self._counts][:-1]
        recent = [one for one in earlier if one.at_ns >= since_ns] or earlier[-1:]
        low = [one for one in recent if one.resident <= start + growth // 4]
        # Counts of the process before its growth began have older faults of other threads.
        base = low[-1] if low else min(recent, key=lambda one: one.resident)
        faults = _differences(base, last, "faults")
        total = sum(faults.values())
        grown = max(0, last.resident - base.resident)
        return _shares(faults, 1), grown / total if total else 0.0


def _differences(base: _Counts, last: _Counts, name: str) -> dict[int, int]:
    """Return what each thread used in between; one that started in between has used it all."""
    used: dict[int, int] = {}
    for thread, count in last.threads.items():
        before = base.threads.get(thread)
        value: int = getattr(count, name)
        if before is not None and value >= (start := getattr(before, name)):
            value -= start
        elif before is None and base.unread:
            continue  # it may have existed
        used[thread] = value
    return used


def _shares(used: Mapping[int, int], wall: int) -> list[ThreadShare]:
    total = sum(used.values())
    return sorted(
        (
            ThreadShare(thread, value / total, min(1.0, value / wall))
            for thread, value in used.items()
            if value
        ),
        key=lambda share: -share.share,
    )


class QuietTime:
    """The minute after an incident, in which its condition is not reported again."""

    def __init__(self) -> None:
        self._until_ns = 0
        self._withheld = 0
        self._is_withholding = False

    def permits(self, at_ns: int, *, is_exceeded: bool) -> bool:
        """Return whether an incident may begin; count it if it is withheld."""
        if not is_exceeded:
            self._is_withholding = False
            return False
        if at_ns >= self._until_ns:
            return True
        self._withheld += not self._is_withholding
        self._is_withholding = True
        return False

    def begin(self, at_ns: int) -> None:
        """Take the time when an incident was seen."""
        self._until_ns = at_ns + QUIET_NS
        self._withheld, self._is_withholding = 0, False

    @property
    def rules(self) -> tuple[AppliedRule, ...]:
        """The rule, if an incident was withheld since the last one."""
        if not self._withheld:
            return ()
        times = counted(self._withheld, "more time")
        text = f"the threshold was exceeded {times} in the 60 s after the incident before"
        return (AppliedRule("quiet", f"{text}, which is not reported"),)


class ProcessSeries:
    """The last minute of a process, a point for each second."""

    def __init__(self) -> None:
        self.points: deque[SeriesPoint] = deque(maxlen=_SERIES)
        self._last: ProcessPoll | None = None

    def add(self, poll: ProcessPoll, state: str | None = None) -> None:
        """Take the next poll, and the main thread's state."""
        last = self._last
        if last is not None and poll.at_ns - last.at_ns < SECOND_NS:
            return
        self._last = poll
        if last is None:
            return
        share = None
        if poll.cpu_ns is not None and last.cpu_ns is not None:
            share = max(0.0, (poll.cpu_ns - last.cpu_ns) / (poll.at_ns - last.at_ns))
        self.points.append(SeriesPoint(poll.boot_ns, share, poll.resident, state))
