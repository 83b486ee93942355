"""Lines of a log, without prefixes of terminals, loggers or quotations.

Also line and column behind a file: ``file.c:5:6``; runtimes' last words about uncaught exceptions,
and the addresses in exceptions' words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from machtrace.model.symbol import SourceLocation

LINES = "lines"
"""The detail of lines that a reader does not understand; of a crash's text with their positions."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*+[@-~]")
_DATE, _TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_PREFIXES = (
    re.compile(r"(?:>[ ]?)+"),  # a quotation
    re.compile(rf"{_DATE}T{_TIME}(?:\.[0-9]{{1,9}})?(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})[ ]?"),
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
    """Return the lines, without colours and trailing space.

    The prefix of the first line with a mark is removed from every line that has it: a time, a
    quotation mark, and then the indentation.

    Args:
        text: lines separated by line feeds.
        mark: what a line of interest begins with; its first group is the indentation.
    """
    lines = [
        (_CONTROL.sub("", line) if "\x1b" in line else line).rstrip() for line in text.split("\n")
    ]
    for line in lines:
        prefix = next((one for one in _PREFIXES if one.match(line)), None)
        match = mark.match(_without(line, prefix))
        if match is not None:
            return [_without(one, prefix).removeprefix(match[1]) for one in lines]
    return lines


def _without(line: str, prefix: re.Pattern[str] | None) -> str:
    match = None if prefix is None else prefix.match(line)
    return line if match is None else line[match.end() :]


_NUMBERS = re.compile(r"(?<=\S):([0-9]{1,9})(?::([0-9]{1,9}))?\Z")
_DIGITS = 20
"""Maximum characters of both."""


def line_and_column(text: str) -> re.Match[str] | None:
    """Match a line, and an optional column, at the end of a text."""
    return _NUMBERS.search(text, max(0, len(text) - _DIGITS))


def located(file: str, numbers: re.Match[str]) -> SourceLocation:
    """Return a location in ``file``; a line or column of 0 is None."""
    return SourceLocation(file, int(numbers[1]) or None, int(numbers[2] or 0) or None)


_FOLDERS = re.compile(r".*[/\\]")


def file_name(path: str) -> str:
    """Return the last component of a path of any system; all of it if it has no folder."""
    return _FOLDERS.sub("", path)


_LAST_WORDS = re.compile(
    r"\*\*\* Terminating app due to uncaught exception (?:of class )?'(?P<name>[^'\n]{1,200})'"
    r"(?:, reason: '(?P<reason>.*)')?",
    re.DOTALL,
)


def last_words(texts: Iterable[str]) -> tuple[str, str | None] | None:
    """Return the exception's name and reason from the first text that has them."""
    for text in texts:
        match = _LAST_WORDS.search(text) if "uncaught exception" in text else None
        if match is not None:
            return match["name"], match["reason"]
    return None


_ADDRESS = re.compile(r"\bat (0x[0-9a-fA-F]{1,16})\b")


def accessed_address(subtype: str | None) -> int | None:
    """Return the address of ``KERN_INVALID_ADDRESS at 0x0000000000000010``."""
    match = _ADDRESS.search(subtype) if subtype is not None else None
    return None if match is None else int(match[1], 16)
