"""Sizes and durations with units, as options have them: ``512K``, ``1GiB``, ``500ms``, ``2m``."""

from __future__ import annotations

import re

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_TIME = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|[smhdwy]?)", re.IGNORECASE)
_MAX_VALUE = 1 << 62


def parse_bytes(text: str) -> float | None:
    """Parse a number of bytes; units are powers of 1024. None if it is malformed or too large."""
    match = _SIZE.fullmatch(text.strip())
    value = -1.0 if match is None else float(match[1]) * _SIZES[match[2].lower()]
    return value if 0 <= value <= _MAX_VALUE else None


def parse_seconds(text: str, unit: str = "s") -> float | None:
    """Parse a number of seconds; None if it is malformed or too large.

    Args:
        text: a number and a unit.
        unit: that of a bare number.
    """
    match = _TIME.fullmatch(text.strip())
    value = -1.0 if match is None else float(match[1]) * _SECONDS[match[2].lower() or unit]
    return value if 0 <= value <= _MAX_VALUE else None
