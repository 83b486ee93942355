"""The lines of a call graph."""

from __future__ import annotations

import re
from typing import NamedTuple

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import ReportedSymbol
from machtrace.model.symbol import SourceLocation

LONGEST_LINE = 32768

_COUNTED = re.compile(r"(?P<prefix>[ +!:|]{4,20000})(?P<count>[0-9]{1,12}) (?P<rest>\S.*)")
_THREAD = re.compile(r"Thread_(?P<id>0x[0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,16})(?![0-9A-Za-z_])")
_QUEUE = re.compile(r"[ \t]DispatchQueue(?:_(?P<id>[0-9a-zA-Z<>]{1,18}))?: ")
_KINDS = ("(serial)", "(concurrent)")
_INLINED = "[inlined]"
"""What machtrace's own samples say after calls that were inlined."""
_IN = " (in "
_WHERE = re.compile(
    r"(?:[ \t]+load address 0x(?P<base>[0-9a-fA-F]{1,16}))?"
    r"(?:[ \t]+\+[ \t]+(?P<offsets>(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,19}|\.\.\.)"
    r"(?:,(?:0x[0-9a-fA-F]{1,16}|[0-9]{1,19}|\.\.\.))*))?"
    r"(?:[ \t]+\[(?P<addresses>0x[0-9a-fA-F]{1,16}(?:,(?:0x[0-9a-fA-F]{1,16}|\.\.\.))*)\])?"
    r"(?:[ \t]+(?P<file>\S.*))?"
)
"""What follows the image."""
_BARE = re.compile(r"\[(?P<address>0x[0-9a-fA-F]{1,16})[^\[\]]*\]")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")
_NO_IMAGE = "<unknown binary>"
"""What stands for an image where memory is none's: code that was made at run time."""
_MOST_BRACKETS = 8
"""That an image's name may have."""
_STEP = 2
_WORD_DIGITS = 10
_MARGIN = 4


class CountedLine(NamedTuple):
    """A line of a graph, taken apart as far as all lines are alike."""

    depth: int
    """Of a thread's heading 0."""
    samples: int
    text: str


def counted_line(line: str) -> CountedLine | None:
    """A line with its indentation and count; None where it is none."""
    match = _COUNTED.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    depth = (len(match["prefix"]) - _MARGIN) // _STEP
    return CountedLine(depth, int(match["count"]), match["rest"])


class ThreadHeading(NamedTuple):
    """What is said of a thread."""

    id: int | None
    name: str | None
    queue: str | None
    details: dict[str, JsonValue]


def thread_heading(text: str) -> ThreadHeading:
    """A thread's heading, from behind its count."""
    match = _THREAD.match(text)
    if match is None:
        return ThreadHeading(None, text, None, {})
    details: dict[str, JsonValue] = {}
    number, rest = match["id"], text[match.end() :]
    label: str | None = None
    queue = _QUEUE.search(rest)
    if queue is not None:
        label = rest[queue.end() :].strip()
        rest = rest[: queue.start()]
        if queue["id"] is not None:
            details["DispatchQueue"] = queue["id"]
        kind = next((one for one in _KINDS if label.endswith(" " + one)), None)
        if kind is not None:
            details["kind"] = kind.strip("()")
            label = label.removesuffix(kind).rstrip()
    name = rest.strip(" \t").removeprefix(":").strip(" \t")
    found = int(number) if number.isdecimal() else int(number, 16)
    return ThreadHeading(found, name or None, label, details)


class GraphFrame(NamedTuple):
    """What a frame's line says."""

    symbol: ReportedSymbol | None
    image: str | None
    base: int | None
    """Of the image, where that is said."""
    address: int | None
    location: SourceLocation | None
    details: dict[str, JsonValue]
    is_inline: bool = False


def graph_frame(text: str) -> GraphFrame:
    """A frame, from behind its count."""
    is_inline = text.endswith("  " + _INLINED)
    what, mark, rest = text.removesuffix(_INLINED).rpartition(_IN)
    image, match = _image_and_place(rest) if mark else ("", None)
    if match is None:
        return _without_image(text)
    what = what.rstrip()
    offsets = (match["offsets"] or "").split(",")
    addresses = (match["addresses"] or "").split(",")
    details: dict[str, JsonValue] = {}
    if len(offsets) > 1:
        details["offsets"] = match["offsets"]
    if len(addresses) > 1:
        details["addresses"] = match["addresses"]
    symbol = None
    if what != "???":  # behind a load address is what is added to that
        symbol = ReportedSymbol(what, None if match["base"] else _number(offsets[0]))
    location = None
    if match["file"] is not None:
        file, _, line = match["file"].rpartition(":")
        is_line = bool(file) and line.isdecimal() and len(line) < _WORD_DIGITS
        location = (
            SourceLocation(file, int(line) or None) if is_line else SourceLocation(match["file"])
        )
    return GraphFrame(
        symbol,
        None if image == _NO_IMAGE else image,
        None if match["base"] is None else int(match["base"], 16),
        _number(addresses[0]),
        location,
        details,
        is_inline,
    )


def _image_and_place(text: str) -> tuple[str, re.Match[str] | None]:
    """The image's name, which may have brackets of its own, and what follows it."""
    end = -1
    for _ in range(_MOST_BRACKETS):
        end = text.find(")", end + 1)
        if end < 0:
            break
        match = _WHERE.fullmatch(text[end + 1 :].rstrip())
        if match is not None:
            return text[:end], match
    return "", None


def _without_image(text: str) -> GraphFrame:
    """A frame outside of all images: ``???  [0x1234]``."""
    if _ADDRESS.fullmatch(text) is not None:  # all that version 6 has where it has no name
        return GraphFrame(None, None, None, int(text, 16), None, {})
    what, _, rest = text.rpartition(" ")
    bare = _BARE.fullmatch(rest)
    if bare is None:
        return GraphFrame(ReportedSymbol(text, None), None, None, None, None, {})
    name = what.rstrip()
    symbol = None if name.startswith("???") else ReportedSymbol(name, None)
    return GraphFrame(symbol, None, None, int(bare["address"], 16), None, {})


def _number(text: str) -> int | None:
    return int(text, 0) if text and text[0].isdigit() and _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.startswith("0x") or (text.isdecimal() and (text == "0" or text[0] != "0"))
