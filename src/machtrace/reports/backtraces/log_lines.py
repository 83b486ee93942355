"""The lines of a log, without what a terminal, a log or who quotes it puts before each of them."""

from __future__ import annotations

import re

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
