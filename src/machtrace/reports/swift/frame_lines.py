"""One line of a backtrace: ``1 [ra] [system] 0x1234 name + 5 in image at file:6:7``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from machtrace.model.symbol import SourceLocation
from machtrace.reports.backtraces.line_and_column import line_and_column, located

LONGEST_LINE = 16384
_FRAME = re.compile(
    r"[ \t]*+(?P<number>[0-9]{1,9}|\.\.\.)"
    r"(?P<attributes>(?:[ \t]++\[[a-z]{1,16}\])*+)"
    r"(?:[ \t]++(?P<address>0x[0-9a-fA-F]{1,16}))?+"
    r"(?:[ \t]++(?P<rest>\S.*))?+[ \t]*+"
)
_ATTRIBUTE = re.compile(r"\[([a-z]+)\]")
_INTO = re.compile(r"(?P<name>.*\S) (?P<sign>[+-]) (?P<offset>[0-9]{1,18})")
_AT, _IN = " at ", " in "
_TRIED = 32
"""Places where a file, or an image, may begin: function names have these words, too."""
_OF_FUNCTIONS = {*"()<>:"}
"""What names of functions have, and those of images have not."""
_UNKNOWN = "<unknown>"
_NO_ADDRESS = "null"
ELLIPSIS = "..."
"""What stands for frames that are not shown, in the place of a number or of an address."""


class SwiftFrameLine(NamedTuple):
    """What a line says."""

    number: int | None
    """None where frames were left out."""
    attributes: tuple[str, ...]
    """``ra`` (a return address), ``async`` (where a task will go on), ``inlined``, ``thunk``,
    ``system``."""
    address: int | None
    """An Avma."""
    name: str | None
    offset: int | None
    image: str | None
    location: SourceLocation | None


def parse_frame_line(line: str, images: Collection[str]) -> SwiftFrameLine | None:
    """What a line says; None where it is no frame's.

    Args:
        line: without its end.
        images: names of images, which may have spaces.
    """
    match = _FRAME.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    rest = match["rest"]
    if ELLIPSIS in (match["number"], rest):
        return SwiftFrameLine(None, (), None, None, None, None, None)
    if rest == _NO_ADDRESS:
        return SwiftFrameLine(int(match["number"]), (), 0, None, None, None, None)
    address = match["address"]
    what, image, file = _parted(rest or "", images)
    if address is None and image is None:
        return None
    name, offset = _name_and_offset(what)
    return SwiftFrameLine(
        int(match["number"]),
        tuple(_ATTRIBUTE.findall(match["attributes"])),
        None if address is None else int(address, 16),
        name,
        offset,
        image,
        None if file is None else _location(file),
    )


def _parted(text: str, images: Collection[str]) -> tuple[str, str | None, str | None]:
    """A function, its image and its file.

    A file begins at the first *at* that has an image before it.
    """
    for at in _places(text, _AT):
        found = _with_image(text[:at], images)
        if found is not None:
            return *found, text[at + len(_AT) :]
    found = _with_image(text, images)
    if found is not None:
        return *found, None
    return text, None, None


def _with_image(text: str, images: Collection[str]) -> tuple[str, str] | None:
    """A function and its image, which is all that follows an *in*; None where none does."""
    place = len(text)
    for _ in range(_TRIED):
        place = text.rfind(_IN, 0, place)
        if place < 0:
            break
        if text[place + len(_IN) :] in images:
            return text[:place], text[place + len(_IN) :]
    before, word, image = text.rpartition(_IN)
    is_name = image and not _OF_FUNCTIONS & {*image}
    return (before, image) if word and is_name else None


def _places(text: str, word: str) -> Iterator[int]:
    place = -1
    for _ in range(_TRIED):
        place = text.find(word, place + 1)
        if place < 0:
            return
        yield place


def _name_and_offset(text: str) -> tuple[str | None, int | None]:
    match = _INTO.fullmatch(text)
    if match is None:
        return (None if text in ("", _UNKNOWN) else text), None
    offset = int(match["offset"])
    return match["name"], -offset if match["sign"] == "-" else offset


def _location(text: str) -> SourceLocation:
    numbers = line_and_column(text)
    return SourceLocation(text) if numbers is None else located(text[: numbers.start()], numbers)
