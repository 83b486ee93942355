"""One frame: ``#1 0x1234 in name file:5:6``, or ``(module+0x34) (BuildId: 01ef)`` if unnamed."""

from __future__ import annotations

import re
from typing import NamedTuple

from machtrace.model.symbol import SourceLocation
from machtrace.reports.backtraces.line_and_column import line_and_column, located

LONGEST_LINE = 16384
_FRAME = re.compile(
    r"[ \t]*+(?:\*[ \t]++)?#(?P<number>[0-9]{1,9})[ \t]++"
    r"(?:(?P<address>0x[0-9a-fA-F]{1,16})(?![0-9a-fA-F])[ \t]*+)?(?P<in>in )?(?P<rest>.*+)"
)
_BRACKETS = re.compile(r"[()]")
_BUILD_ID = re.compile(r"[ \t]*\(BuildId: (?P<digits>(?:[0-9a-fA-F]{2}){1,64})\)\Z")
_MODULE = re.compile(
    r"(?P<path>.+?)(?::(?P<arch>[a-z][a-z0-9_]{1,15}))?\+(?P<offset>0x[0-9a-f]{1,16})"
)
_INTO = re.compile(r"(?P<name>.*\S)\+(?P<offset>0x[0-9a-f]{1,16})")
_ADDRESS_IN_PARENTHESES = re.compile(r"(?P<before>.*\S) \((?P<address>0x[0-9a-fA-F]{1,16})\)")
# Clang names what has no name by its place: ``f<(lambda at /a.cc:1:2)>``.
_FILE = re.compile(r"(?<! at) (?=/|[A-Za-z]:[/\\])")
_NOTHING = ("(<unknown module>)", "<null> <null>")
"""What stands for no module, and for no function and no file."""
_NULL = "<null>"
"""What stands for no function, and for no file."""
_BUILD_ID_LENGTH = 160
_PADDED = 18
"""Characters of an address that LLVM prints; sanitizers pad them to twelve digits."""


class SanitizerFrameLine(NamedTuple):
    """What a line says."""

    number: int
    address: int | None
    """An Avma."""
    is_return_address: bool
    """Whether it is as it was on the stack, as in dumps of LLVM's own tools."""
    name: str | None
    into: int | None
    """How far into it: what Apple's symbolizers say in place of a file."""
    location: SourceLocation | None
    path: str | None
    """Of the module."""
    arch: str | None
    """Of the module: only on macOS."""
    offset: int | None
    """In the module, from where it was linked to be loaded at 0."""
    build_id: str | None


def parse_frame_line(line: str) -> SanitizerFrameLine | None:
    """What a line says; None where it is no frame's."""
    match = _FRAME.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    rest = match["rest"].rstrip()
    build_id = _BUILD_ID.search(rest, max(0, len(rest) - _BUILD_ID_LENGTH))
    if build_id is not None:
        rest = rest[: build_id.start()]
    rest, module = _without_module(rest)
    address = match["address"]
    elsewhere = _ADDRESS_IN_PARENTHESES.fullmatch(rest) if address is None else None
    if elsewhere is not None:
        rest, address = elsewhere["before"], elsewhere["address"]
    name, location = (None, None) if rest in _NOTHING else _named(rest)
    into = _INTO.fullmatch(name) if name is not None and location is None else None
    if address is None and module is None and location is None:
        return None
    return SanitizerFrameLine(
        int(match["number"]),
        None if address is None else int(address, 16),
        len(match["address"] or "") == _PADDED and match["in"] is None,
        name if into is None else into["name"],
        None if into is None else int(into["offset"], 16),
        location,
        None if module is None else module["path"],
        None if module is None else module["arch"],
        None if module is None else int(module["offset"], 16),
        None if build_id is None else build_id["digits"],
    )


def _without_module(text: str) -> tuple[str, re.Match[str] | None]:
    """What is before the last brackets, if these hold a module."""
    start = _opened(text) if text.endswith(")") else -1
    if start < 0 or (start > 0 and text[start - 1] != " "):
        return text, None
    module = _MODULE.fullmatch(text, start + 1, len(text) - 1)
    return (text, None) if module is None else (text[:start].rstrip(), module)


def _opened(text: str) -> int:
    """Where the brackets that end a text begin; -1 where they do not."""
    depth = 0
    for bracket in reversed(tuple(_BRACKETS.finditer(text))):
        depth += 1 if bracket[0] == ")" else -1
        if depth == 0:
            return bracket.start()
    return -1


def _named(text: str) -> tuple[str | None, SourceLocation | None]:
    """A function, and the file that follows it; both may have spaces."""
    numbers = line_and_column(text)
    if numbers is None:
        return text.removesuffix(" " + _NULL) or None, None
    found = _FILE.search(text)
    place = text.rfind(" ", 0, numbers.start()) if found is None else found.start()
    name, file = text[: max(place, 0)].rstrip(), text[place + 1 : numbers.start()]
    if file == _NULL:
        return name or None, None
    return name or None, located(file, numbers)
