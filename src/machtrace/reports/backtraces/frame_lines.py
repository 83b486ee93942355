"""One frame as gdb prints it: ``#1  0x1234 in name (argument=5) at file.c:6``."""

from __future__ import annotations

import re
from typing import NamedTuple

from machtrace.model.symbol import SourceLocation

LONGEST_LINE = 16384
_FRAME = re.compile(
    r"#(?P<number>[0-9]{1,9})[ \t]++(?:(?P<address>0x[0-9a-fA-F]{1,16}) in )?+(?!0x)(?P<rest>.*+)"
)
# A text or a character among the arguments may have brackets of its own. A text without an end
# takes all that follows: to look for ends from each of its marks would take a square of time.
_BRACKET = re.compile(r"""[()]|\\.|"(?:[^"\\]|\\.)*+\\?+(?:"|\Z)|'(?:\\[^']{1,8}|[^'\\])'""")
_AT = re.compile(r" at (?P<file>\S.*):(?P<line>[0-9]{1,9})")
# Where a distribution changes gdb, the library has *at* before it, and no line behind it.
_FROM = re.compile(r" (?:from|at) (?P<path>\S.*)")
SIGNAL_HANDLER = "<signal handler called>"
"""The name of what stands between a handler and what the signal interrupted."""
_UNKNOWN = "??"


class GdbFrameLine(NamedTuple):
    """What a line says."""

    number: int
    address: int | None
    """An Avma. None of the first frame where its line begins there, and of those that the one
    before is inlined into."""
    name: str | None
    arguments: str
    """With their brackets."""
    image: str | None
    """A path."""
    location: SourceLocation | None


def parse_frame_line(line: str) -> GdbFrameLine | None:
    """What a line says, with those that it was wrapped into; None where it is no frame's."""
    match = _FRAME.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    parts = _parts(match["rest"])
    if parts is None and match["address"] is not None:
        parts = _parts_of_cut(match["rest"])
    if parts is None:
        return None
    name, arguments, after = parts
    place = _AT.fullmatch(after)
    source = _FROM.fullmatch(after) if place is None else None
    address = match["address"]
    return GdbFrameLine(
        int(match["number"]),
        None if address is None else int(address, 16),
        None if name in ("", _UNKNOWN) else name,
        arguments,
        None if source is None else source["path"],
        None if place is None else SourceLocation(place["file"], int(place["line"]) or None),
    )


def _parts(text: str) -> tuple[str, str, str] | None:
    """Name, arguments and what follows: the first brackets that nothing but a place follows."""
    if text == SIGNAL_HANDLER:
        return text, "", ""
    opened: list[int] = []
    for bracket in _BRACKET.finditer(text):
        if bracket[0] == "(":
            opened.append(bracket.start())
        elif bracket[0] == ")" and opened:
            start = opened.pop()
            end = bracket.end()
            is_last = end == len(text) or text.startswith((" at ", " from "), end)
            if is_last and not opened and text[start - 1 : start] == " ":
                return text[: start - 1], text[start:end], text[end:]
    return None


def _parts_of_cut(text: str) -> tuple[str, str, str] | None:
    """The same where printers in Python cut the arguments, whose brackets are then not closed."""
    start, end = text.find(" ("), text.rfind(")") + 1
    after = text[end:]
    if start < 0 or end <= start or (after and not after.startswith((" at ", " from "))):
        return None
    return text[:start], text[start + 1 : end], after
