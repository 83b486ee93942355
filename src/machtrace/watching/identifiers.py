"""Identifiers of incidents, as many as are reported in a day."""

from __future__ import annotations

import time
from collections import deque
from itertools import count

from machtrace.model.incident.facts import AppliedRule

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
