"""Times: whole seconds, microseconds, or text, as the version of KSCrash has it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from machtrace.reports.consume import ObjectReader

_MICROSECONDS = 1 << 40
"""Seconds that far are in the year 36812; microseconds, in 1970."""
_LAST_SECOND = 253_402_300_799
"""Of the year 9999."""


def read_time(taking: ObjectReader, key: str) -> str | None:
    """A moment as text, in UTC: ``2025-12-09T21:29:13.629383Z``.

    A number stays where it is as well, for its text does not tell what it was.
    """
    value = taking.left.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return taking.text(key)
    micro = value if abs(value) > _MICROSECONDS else value * 1_000_000
    if not 0 <= micro // 1_000_000 <= _LAST_SECOND:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micro)
    return moment.isoformat().replace("+00:00", "Z")
