"""Time zones by the abbreviations that iOS has for them: ``NSTimeZone.abbreviationDictionary``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_HOURS = {
    "ADT": -3,
    "AKDT": -8,
    "AKST": -9,
    "ART": -3,
    "AST": -4,
    "BDT": 6,
    "BRST": -2,
    "BRT": -3,
    "BST": 1,
    "CAT": 2,
    "CDT": -5,
    "CEST": 2,
    "CET": 1,
    "CLST": -3,
    "CLT": -4,
    "COT": -5,
    "CST": -6,
    "EAT": 3,
    "EDT": -4,
    "EEST": 3,
    "EET": 2,
    "EST": -5,
    "GMT": 0,
    "GST": 4,
    "HKT": 8,
    "HST": -10,
    "ICT": 7,
    "IST": 5.5,
    "JST": 9,
    "KST": 9,
    "MDT": -6,
    "MSD": 4,
    "MSK": 3,
    "MST": -7,
    "NDT": -2.5,
    "NST": -3.5,
    "NZDT": 13,
    "NZST": 12,
    "PDT": -7,
    "PET": -5,
    "PHT": 8,
    "PKT": 5,
    "PST": -8,
    "SGT": 8,
    "TRT": 3,
    "UTC": 0,
    "WAT": 1,
    "WEST": 1,
    "WET": 0,
    "WIT": 7,
}


def local_time(text: str, zone: str | None) -> str:
    """A moment in UTC as it was called there, in milliseconds; as it is, where that is unknown.

    Args:
        text: as :func:`~machtrace.reports.kscrash.times.read_time` has it.
        zone: an abbreviation, or ``GMT+2``.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    there = moment.astimezone(timezone(_offset(zone)))
    milliseconds = there.microsecond // 1000
    return f"{there:%Y-%m-%d %H:%M:%S}.{milliseconds:03d} {there:%z}"


def _offset(zone: str | None) -> timedelta:
    if zone is None:
        return timedelta()
    name, sign, hours = zone.partition("+")
    if not sign:
        name, sign, hours = zone.partition("-")
    if name == "GMT" and hours:
        whole, _, minutes = hours.partition(":")
        if whole.isdecimal() and (not minutes or minutes.isdecimal()) and len(hours) < 6:  # noqa: PLR2004 - 12:45
            offset = timedelta(hours=int(whole) % 24, minutes=int(minutes or 0) % 60)
            return -offset if sign == "-" else offset
    return timedelta(hours=_HOURS.get(zone, 0))
