"""The incidents of a watcher, and their identifiers: as many as are reported in a day."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from itertools import count

from machtrace.model.incident.facts import AppliedRule, WatchIncident

_DAY_NS = 86_400_000_000_000
_LIMIT_RULE = AppliedRule("daily-limit", "the last one that is reported today")


class IncidentIds:
    """Identifies the incidents of a process.

    Args:
        pid: the process.
        daily_limit: incidents in a day.
    """

    def __init__(self, pid: int, daily_limit: int) -> None:
        self._pid, self._daily_limit = pid, daily_limit
        self._numbers = count(1)
        self._seen_today: deque[int] = deque()

    def new(self) -> tuple[str, tuple[AppliedRule, ...]]:
        """Return a new identifier, empty if too many were reported today; and the limit's rule."""
        now = time.monotonic_ns()
        while self._seen_today and self._seen_today[0] < now - _DAY_NS:
            self._seen_today.popleft()
        if len(self._seen_today) >= self._daily_limit:
            return "", ()
        self._seen_today.append(now)
        is_last = len(self._seen_today) == self._daily_limit
        return f"{self._pid}-{next(self._numbers)}", (_LIMIT_RULE,) if is_last else ()


_WHOLE = 64
"""Incidents that have ended and are still whole."""


class Incidents:
    """All incidents, as they were reported last; of old ones only the facts, without stacks.

    A watcher runs for days: its memory has a limit.
    """

    def __init__(self) -> None:
        self._incidents: dict[str, WatchIncident] = {}
        self._whole: deque[str] = deque()
        """Those that have ended and have their stacks."""

    @property
    def all(self) -> tuple[WatchIncident, ...]:
        """The incidents, in the order in which they were seen."""
        return tuple(self._incidents.values())

    def get(self, identifier: str) -> WatchIncident | None:
        """Return an incident; None if there is none."""
        return self._incidents.get(identifier)

    def add(self, incident: WatchIncident) -> None:
        """Store an incident, or what is new about it."""
        self._incidents[incident.id] = incident
        if incident.ended is None or incident.id in self._whole:
            return
        self._whole.append(incident.id)
        if len(self._whole) > _WHOLE:
            oldest = self._whole.popleft()
            self._incidents[oldest] = replace(
                self._incidents[oldest], stacks=(), representative=None, capture=None, series=()
            )
