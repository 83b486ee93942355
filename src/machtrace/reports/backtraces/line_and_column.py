"""A line and a column behind a file: ``file.c:5:6``."""

from __future__ import annotations

import re

from machtrace.model.symbol import SourceLocation

_NUMBERS = re.compile(r"(?<=\S):([0-9]{1,9})(?::([0-9]{1,9}))?\Z")
_DIGITS = 20
"""Characters of both at most."""


def line_and_column(text: str) -> re.Match[str] | None:
    """Where a line, and a column if there is one, end a text; None where they do not."""
    return _NUMBERS.search(text, max(0, len(text) - _DIGITS))


def located(file: str, numbers: re.Match[str]) -> SourceLocation:
    """A place in ``file``; a line or a column of 0 is none."""
    return SourceLocation(file, int(numbers[1]) or None, int(numbers[2] or 0) or None)
