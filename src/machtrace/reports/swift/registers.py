"""Registers of a backtrace: a line each, and one line of flags and one of segments."""

from __future__ import annotations

import re

from machtrace.model.reported_thread import ReportedRegister

_LONGEST = 1024
_REGISTER = re.compile(
    r"[ \t]*+(?P<name>[a-z][a-z0-9]{0,7})[ \t]++(?P<value>0x[0-9a-fA-F]{1,16})"
    r"(?:[ \t]++(?P<rest>\S.*))?"
)
_SEGMENTS = re.compile(r"(?:[ \t]*+[a-z]{2}:? 0x[0-9a-fA-F]{1,4}\)?){2,8}[ \t]*")
_SEGMENT = re.compile(r"([a-z]{2}):? (0x[0-9a-fA-F]{1,4})")


def parse_register_line(line: str) -> tuple[ReportedRegister, ...]:
    """The registers of a line; none where it is no such line.

    What is written behind a value (the bytes that it points at, the number, names of flags) is its
    description.
    """
    if len(line) > _LONGEST:
        return ()
    if _SEGMENTS.fullmatch(line):
        return tuple(
            ReportedRegister(name, int(value, 16)) for name, value in _SEGMENT.findall(line)
        )
    match = _REGISTER.fullmatch(line)
    if match is None:
        return ()
    return (ReportedRegister(match["name"], int(match["value"], 16), match["rest"]),)
