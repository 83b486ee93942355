"""Frames of a backtrace, and the signal that ended the program.

A line: ``1 [ra] [system] 0x1234 name + 5 in image at file:6:7``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from machtrace.model.address import Avma
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    ReportedException,
    ReportedFrame,
    ReportedSymbol,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.crash.frames import NUMBER, OMITTED
from machtrace.reports.images import ImageRanges, ListedImages
from machtrace.reports.log_lines import line_and_column, located

MAX_LINE_LENGTH = 16384
_FRAME = re.compile(
    r"[ \t]*+(?P<number>[0-9]{1,9}|\.\.\.)"
    r"(?=(?P<attributes>(?:[ \t]++\[[a-z]{1,16}\])*))(?P=attributes)"
    r"(?:[ \t]++(?P<address>0x[0-9a-fA-F]{1,16}+)|(?![ \t]++0x[0-9a-fA-F]))"
    r"(?:[ \t]++(?P<rest>\S.*))?[ \t]*+"
)
_ATTRIBUTE = re.compile(r"\[([a-z]+)\]")
_INTO = re.compile(r"(?P<name>.*\S) (?P<sign>[+-]) (?P<offset>[0-9]{1,18})")
_AT, _IN = " at ", " in "
_TRIED = 32
"""Maximum candidate positions of a file or an image: function names contain *at* and *in*, too."""
_OF_FUNCTIONS = {*"()<>:"}
"""Characters of function names that images' names lack."""
_UNKNOWN = "<unknown>"
_NO_ADDRESS = "null"
ELLIPSIS = "..."
"""Stands for omitted frames, in place of a number or an address."""


class SwiftFrameLine(NamedTuple):
    """A parsed line."""

    number: int | None
    """None for omitted frames."""
    attributes: tuple[str, ...]
    """``ra`` (return address), ``async`` (resume address), ``inlined``, ``thunk``, ``system``."""
    address: int | None
    """An Avma."""
    name: str | None
    offset: int | None
    image: str | None
    location: SourceLocation | None


def parse_frame_line(line: str, images: Collection[str]) -> SwiftFrameLine | None:
    """Parse a frame's line; None if it is not one. ``images`` has names that may have spaces."""
    match = _FRAME.fullmatch(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    rest = match["rest"]
    if ELLIPSIS in (match["number"], rest):
        return SwiftFrameLine(None, (), None, None, None, None, None)
    if rest == _NO_ADDRESS:
        return SwiftFrameLine(int(match["number"]), (), 0, None, None, None, None)
    address = match["address"]
    function, image, file = _split_parts(rest or "", images)
    if address is None and image is None:
        return None
    name, offset = _name_and_offset(function)
    return SwiftFrameLine(
        int(match["number"]),
        tuple(_ATTRIBUTE.findall(match["attributes"])),
        None if address is None else int(address, 16),
        name,
        offset,
        image,
        None if file is None else _location(file),
    )


def _split_parts(text: str, images: Collection[str]) -> tuple[str, str | None, str | None]:
    """Split a function, its image and its file.

    A file begins at the first *at* that has an image before it.
    """
    for at in _places(text, _AT):
        parts = _with_image(text[:at], images)
        if parts is not None:
            return *parts, text[at + len(_AT) :]
    parts = _with_image(text, images)
    if parts is not None:
        return *parts, None
    return text, None, None


def _with_image(text: str, images: Collection[str]) -> tuple[str, str] | None:
    """Split a function and its image, which is all that follows an *in*; None without one."""
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


_RETURN, _INLINED = "ra", "inlined"
ATTRIBUTES = "attributes"
"""The detail of a frame's other attributes: ``async``, ``thunk``, ``system``."""


class FrameMaker:
    """Builds the frames of a report.

    Args:
        images: the listed ones; those that only frames name are added.
    """

    def __init__(self, images: ListedImages) -> None:
        self._images = images
        self._names = frozenset(image.name for image in images.all())
        self._ranges = ImageRanges(images.all())

    def frames_of(self, lines: Iterable[str]) -> tuple[ReportedFrame, ...]:
        """Return the frames of a thread's lines."""
        frames: list[ReportedFrame] = []
        expected = 0
        for parsed in (parse_frame_line(line, self._names) for line in lines):
            if parsed is None:
                continue
            frame = self._of_line(parsed)
            if parsed.number is not None and parsed.number != expected:
                frame = frame._replace(details={**frame.details, NUMBER: parsed.number})
            frames.append(frame)
            expected = (expected if parsed.number is None else parsed.number) + 1
        return tuple(frames)

    def _of_line(self, line: SwiftFrameLine) -> ReportedFrame:
        if line.number is None:
            return omitted(None)
        symbol = None if line.name is None else ReportedSymbol(line.name, line.offset)
        return self.frame(line.address, line.attributes, symbol, line.image, line.location)

    def frame(
        self,
        address: int | None,
        attributes: Sequence[str],
        symbol: ReportedSymbol | None,
        image: str | None,
        location: SourceLocation | None,
    ) -> ReportedFrame:
        """Return one frame.

        Args:
            address: an Avma.
            attributes: as in texts.
            symbol: its name.
            image: the name of the image that holds it; if None, found by address.
            location: in the source.
        """
        other: list[JsonValue] = [
            attribute for attribute in attributes if attribute not in (_RETURN, _INLINED)
        ]
        if image is not None:
            index: int | None = self._images.find(image, address)
        else:
            index = None if address is None else self._ranges.find(address)
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            self._images.offset(index, address),
            Adjustment.RETURN if _RETURN in attributes else Adjustment.EXACT,
            symbol,
            location,
            _INLINED in attributes,
            {ATTRIBUTES: other} if other else {},
        )


def omitted(count: int | None) -> ReportedFrame:
    """Return the frame that stands for omitted ones; None if their number is unknown."""
    return ReportedFrame(None, None, None, details={OMITTED: count})


_SIGNALS = {
    "Quit": "SIGQUIT",
    "Illegal instruction": "SIGILL",
    "System trap": "SIGTRAP",
    "Aborted": "SIGABRT",
    "Floating point exception": "SIGFPE",
    "Bad pointer dereference": "SIGSEGV",
}
"""``signalDescription`` of ``swift-backtrace`` → the signal; SIGBUS shares a description."""
_NUMBERED = {
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",  # Linux; 10 is macOS's
    8: "SIGFPE",
    10: "SIGBUS",
    11: "SIGSEGV",
}
_ADDRESS_OF_CRASH = re.compile(r"(?P<what>.*\S) at (?P<address>0x[0-9a-fA-F]{1,16})")


def exception(description: str, signal: int | None = None) -> ReportedException:
    """Parse a description: ``Bad pointer dereference at 0x0000000000000004``.

    Args:
        description: what follows *Program crashed*, or the runtime's own message.
        signal: its number, if stated.
    """
    match = _ADDRESS_OF_CRASH.fullmatch(description)
    reason = description if match is None else match["what"]
    return ReportedException(
        signal=_SIGNALS.get(reason) if signal is None else _NUMBERED.get(signal),
        message=reason,
        address=None if match is None else int(match["address"], 16),
    )
