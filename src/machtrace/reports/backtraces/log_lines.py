"""The lines of a log, without what a terminal, a log or who quotes it puts before each of them.

A line and a column behind a file: ``file.c:5:6``.
"""

from __future__ import annotations

import re

from machtrace.model.symbol import SourceLocation

_CONTROL = re.compile(r"\x1b\[[0-9;?]*+[@-~]")
_DATE, _TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_PREFIXES = (
    re.compile(r"(?:>[ ]?)++"),  # a quotation
    re.compile(rf"{_DATE}T{_TIME}(?:\.[0-9]{{1,9}})?+(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})[ ]?"),
    # Xcode's console
    re.compile(rf"{_DATE} {_TIME}\.[0-9]{{1,9}}[+-][0-9]{{4}} [^\[]{{1,80}}\[[0-9]+:[0-9]+\][ ]?"),
    # logcat, in two of its formats
    re.compile(
        rf"[0-9]{{2}}-[0-9]{{2}} {_TIME}\.[0-9]{{3}} [VDIWEF]/[^(]{{0,80}}\( *[0-9]+\):[ ]?"
    ),
    re.compile(
        rf"[0-9]{{2}}-[0-9]{{2}} {_TIME}\.[0-9]{{3}} +[0-9]+ +[0-9]+ [VDIWEF] [^:]{{0,80}}:[ ]?"
    ),
)


def log_lines(text: str, mark: re.Pattern[str]) -> list[str]:
    """The lines, without colours and space at their ends.

    What is before the first line with a mark is taken off every line that has it too: a time, the
    sign of a quotation, and then the indentation.

    Args:
        text: its lines are parted by line feeds.
        mark: what the line that tells begins with; its first group is the indentation.
    """
    lines = [
        (_CONTROL.sub("", line) if "\x1b" in line else line).rstrip() for line in text.split("\n")
    ]
    for line in lines:
        prefix = next((one for one in _PREFIXES if one.match(line)), None)
        found = mark.match(_without(line, prefix))
        if found is not None:
            return [_without(one, prefix).removeprefix(found[1]) for one in lines]
    return lines


def _without(line: str, prefix: re.Pattern[str] | None) -> str:
    found = None if prefix is None else prefix.match(line)
    return line if found is None else line[found.end() :]


_NUMBERS = re.compile(r"(?<=\S):([0-9]{1,9})(?::([0-9]{1,9}))?\Z")
_DIGITS = 20
"""Characters of both at most."""


def line_and_column(text: str) -> re.Match[str] | None:
    """Where a line, and a column if there is one, end a text; None where they do not."""
    return _NUMBERS.search(text, max(0, len(text) - _DIGITS))


def located(file: str, numbers: re.Match[str]) -> SourceLocation:
    """A place in ``file``; a line or a column of 0 is none."""
    return SourceLocation(file, int(numbers[1]) or None, int(numbers[2] or 0) or None)
