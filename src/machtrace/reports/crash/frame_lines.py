"""Parsing the lines of frames.

Every pattern takes linear time, whatever the line: parts are found from fixed points, a tab or the
brackets at the end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NO_DETAILS,
    Adjustment,
    Details,
    JsonValue,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
)
from machtrace.model.symbol import SourceLocation
from machtrace.model.text import INLINED
from machtrace.reports.crash.frames import IMAGE, NUMBER, PLACE, UNUSUAL, place_text
from machtrace.reports.crash.lines import MAX_LINE_LENGTH
from machtrace.reports.log_lines import line_and_column, located

_OVERLAPPING = 8
"""Images that may begin below an address without holding it, before the one that does."""


class _Ordered(NamedTuple):
    """Images by start address; of equal starts the first listed comes last."""

    starts: list[int]
    indices: list[int]


class ImagePlaces:
    """A report's images by address, and by the names that frames use."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        self._images = images
        self._all = self._ordered(range(len(images)))
        self._names: dict[str, list[int]] = {}
        self._by_name: dict[str, _Ordered] = {}
        for index, image in enumerate(images):
            identifier = image.details.get("CFBundleIdentifier")
            uuid = None if image.name or image.uuid is None else str(image.uuid)
            for name in {image.name, image.path.rpartition("/")[2], identifier, uuid}:
                if isinstance(name, str):
                    self._names.setdefault(name, []).append(index)
        self._only = {
            name: (start, start + (images[indices[0]].size or 0), indices[0])
            for name, indices in self._names.items()
            if len(indices) == 1 and (start := images[indices[0]].load_address) is not None
        }

    def named(self, name: str) -> int | None:
        """Return the first image of this name."""
        indices = self._names.get(name)
        return None if indices is None else indices[0]

    def find(self, name: str, address: int) -> int | None:
        """Return the image that holds ``address`` (Avma): by that name, if several do."""
        only = self._only.get(name)
        if only is not None and only[0] <= address < only[1]:
            return only[2]
        named = self._by_name.get(name)
        if named is None:
            named = self._by_name[name] = self._ordered(self._names.get(name, ()))
        # Images may overlap: one that begins closer below the address need not hold it.
        for ordered in (named, self._all):
            place = bisect_right(ordered.starts, address)
            for candidate in reversed(ordered.indices[max(0, place - _OVERLAPPING) : place]):
                if self._images[candidate].holds(address):
                    return candidate
        # An image with a missing or wrong end: its name and start must do.
        place = bisect_right(named.starts, address)
        if place and self._images[named.indices[place - 1]].size is None:
            return named.indices[place - 1]
        return None

    def _ordered(self, indices: Iterable[int]) -> _Ordered:
        placed = [
            (start, -index)
            for index in indices
            if (start := self._images[index].load_address) is not None
        ]
        placed.sort()
        return _Ordered([start for start, _ in placed], [-index for _, index in placed])


_TABBED = re.compile(
    r"([0-9]{1,9})[ ]++([^\t ][^\t]*+)\t[ \t]*+(0x[0-9a-fA-F]{1,16}|\?\?\?)(?:[ \t]++(.*))?"
)
_NUMBERED = re.compile(r"([0-9]{1,9})[ \t]+(?=\S)")
_ADDRESS = re.compile(r"[ \t](?:0x([0-9a-fA-F]{1,16}))(?![^ \t])")
_LIKELY_DIGITS = 6
_BASE = re.compile(r"0x[0-9a-fA-F]{1,16}")
_BOTH = re.compile(r"0x[0-9a-fA-F]{1,16} \+ [0-9]{1,19} \((.*)\)")
"""KSCrash's form: the offset from the image, and the function in brackets."""
_OFFSET_DIGITS = 19
MISSING = re.compile(r"\(Missing(?: UUID)?(?: [0-9A-Fa-f-]{1,64})?\)")
"""Placeholder of Crashlytics for a name, with the UUID of the file that would have it."""
UNLISTED = "unlisted"
"""The detail, true, of an image that has no line of its own and is only named by frames."""
_CUT = "..."
"""Prefix of an image name whose beginning was truncated."""
_WORD = 1 << 64
_NO_PLACE: Details = {PLACE: ":-1"}


class FrameLines:
    """Parses frame lines of one report."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        self._images = [*images]
        self._places = ImagePlaces(images)
        self._unlisted: dict[tuple[str, int | None], int] = {}
        self._listed = len(self._images)

    @property
    def unlisted(self) -> tuple[ReportedImage, ...]:
        """Images known from frame lines only: they follow the listed ones."""
        return tuple(self._images[self._listed :])

    def read(self, line: str, adjustment: Adjustment, expected: int) -> ReportedFrame | None:
        """Parse a frame's line; None if it is not one.

        Args:
            line: without its end.
            adjustment: the kind of the frame's address.
            expected: the number that follows the frame before.
        """
        if len(line) > MAX_LINE_LENGTH:
            return None
        columns = _tabbed(line) if "\t" in line else None
        columns = columns or spaced_columns(line)
        if columns is None:
            return None
        number, name, address, label = columns
        details: dict[str, JsonValue] = {}
        if number != expected:
            details[NUMBER] = number
        offset = None
        # A call can be the last instruction of its image.
        is_after = adjustment is Adjustment.RETURN
        index = self._find(name, None if address is None else address - is_after)
        if index is None and name != "???":
            index = self._add(name, address, label)
        image = None if index is None else self._images[index]
        if image is not None and name != "???" and not _is_called(image, name):
            details[IMAGE] = name
        base = None if image is None else image.load_address
        if base is not None and address is not None and base <= address:
            offset = ImageOffset(address - base)
        symbol, location, is_inline, place = parse_label(label, image)
        if image is not None and address is None and symbol is None:
            offset = _offset_in_label(label)
        if place is not None:
            details[PLACE] = place
        elif symbol is None and location is None:
            details |= unusual_label(label, is_placed=offset is not None)
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            offset,
            adjustment,
            symbol,
            location,
            is_inline,
            _NO_PLACE if details == _NO_PLACE else details or NO_DETAILS,
        )

    def _find(self, name: str, address: int | None) -> int | None:
        return self._places.named(name) if address is None else self._places.find(name, address)

    def _add(self, name: str, address: int | None, label: str) -> int:
        """Return an image known from frames alone: its name, and its start if the line has it."""
        base, offset = _into(label)
        start = None
        if address is not None and offset is not None and _BASE.fullmatch(base) is not None:
            stated = int(base, 16)
            start = Avma(stated) if 0 < stated == address - offset else None
        index = self._unlisted.get((name, start))
        if index is None:
            index = self._unlisted.get((name, None))
            if index is not None and self._images[index].load_address is None:
                self._images[index] = replace(self._images[index], load_address=start)
            else:
                index = len(self._images)
                details: dict[str, JsonValue] = {UNLISTED: True}
                self._images.append(ReportedImage(name=name, load_address=start, details=details))
            self._unlisted[name, start] = index
            self._unlisted.setdefault((name, None), index)
        return index

    def at(self, address: int) -> ReportedFrame:
        """Return the frame of a bare return address."""
        index = self._places.find("", address - 1)
        base = None if index is None else self._images[index].load_address
        offset = None if base is None else ImageOffset(address - base)
        return ReportedFrame(Avma(address), index, offset, Adjustment.RETURN)


def unusual_label(label: str, *, is_placed: bool) -> dict[str, JsonValue]:
    """Return the details of a frame without a name that keep what follows its address.

    Nothing if that states no more than the image and the offset do.
    """
    label = f" {label}".removesuffix(INLINED).strip()
    is_usual = label in ("", "???") or (is_placed and _into(label)[1] is not None)
    return {} if is_usual else {UNUSUAL: label}


def _is_called(image: ReportedImage, name: str) -> bool:
    """Return whether the image may have this name, which may be truncated."""
    return (
        image.name.startswith(name)
        or (name.startswith(_CUT) and image.name.endswith(name[len(_CUT) :]))
        or image.details.get("CFBundleIdentifier") == name
        or image.path.rpartition("/")[2] == name
        or (not image.name and str(image.uuid) == name)
    )


def _offset_in_label(label: str) -> ImageOffset | None:
    """Return the offset in the line itself, if relative to the image."""
    base, offset = _into(label)
    is_offset = offset is not None and offset < _WORD and _BASE.fullmatch(base) is not None
    return ImageOffset(offset) if is_offset and offset is not None else None


def _tabbed(line: str) -> tuple[int, str, int | None, str] | None:
    match = _TABBED.fullmatch(line)
    if match is None:
        return None
    number, name, address, label = match.groups()
    place = None if address == "???" else int(address, 16)
    return int(number), name.rstrip(" "), place, (label or "").rstrip()


def spaced_columns(line: str) -> tuple[int, str, int, str] | None:
    """Parse a line whose columns are separated by spaces.

    Names of images may have spaces, and even look like addresses: an address of many digits is
    preferred.
    """
    head = _NUMBERED.match(line)
    if head is None:
        return None
    start = head.end()
    first = chosen = None
    for match in _ADDRESS.finditer(line, start):
        first = first or match
        if len(match[1]) >= _LIKELY_DIGITS:
            chosen = match
            break
    chosen = chosen or first
    if chosen is None or not (name := line[start : chosen.start()].strip()):
        return None
    return int(head[1]), name, int(chosen[1], 16), line[chosen.end() :].strip()


class Label(NamedTuple):
    """The text after a frame's address, parsed."""

    symbol: ReportedSymbol | None
    location: SourceLocation | None
    is_inline: bool
    place: str | None
    """The location as it is written, if :attr:`location` does not give it."""


def parse_label(text: str, image: ReportedImage | None) -> Label:
    """Parse what follows the address of a frame in an image; the whole may be a function."""
    is_inline = f" {text}".endswith(INLINED)
    if is_inline:
        text = text[: -len(INLINED)].rstrip()
    location = place = None
    both = _BOTH.fullmatch(text) if text.startswith("0x") else None
    if both is not None and _is_bracketed_function(both[1]):
        text = both[1]
    name, offset = _into(text)
    if offset is None and text.endswith(")"):
        before, bracket, inside = text[:-1].rpartition(" (")
        if bracket and before and "(" not in inside and ")" not in inside:
            location = _location(inside)
            if location is None or place_text(location) != inside:
                place = inside if location is not None or inside == ":-1" else None
            if location is not None or place is not None:
                text = before.rstrip()
                name, offset = _into(text)
    if name.endswith(INLINED):
        is_inline, name = True, name[: -len(INLINED)]
    if not _is_function(name, offset):
        return Label(None, location, is_inline, place)
    if image is not None:
        name = name.removesuffix(f" (in {image.name})")
    return Label(ReportedSymbol(name, offset), location, is_inline, place)


def _is_bracketed_function(inside: str) -> bool:
    """Return whether brackets behind an offset hold a function, not a place or a placeholder."""
    if _into(inside)[1] is not None:
        return True
    is_place = inside == ":-1" or _location(inside) is not None
    return not is_place and MISSING.fullmatch(f"({inside})") is None


def _is_function(name: str, offset: int | None) -> bool:
    """Return whether it is not a placeholder, nor the start of an image."""
    is_start = offset is not None and (_BASE.fullmatch(name) is not None or name == "0")
    return name not in ("", "???") and not is_start and MISSING.fullmatch(name) is None


def _into(text: str) -> tuple[str, int | None]:
    name, plus, digits = text.rpartition(" + ")
    if plus and digits.isdecimal() and digits.isascii() and len(digits) <= _OFFSET_DIGITS:
        return name.rstrip(), int(digits)
    return text, None


def _location(inside: str) -> SourceLocation | None:
    """Return a file with line and column, or a file with a suffix."""
    numbers = line_and_column(inside)
    if numbers is not None and numbers.start():
        return located(inside[: numbers.start()], numbers)
    path, colon, digits = inside.rpartition(":")
    if colon and path and digits.isdecimal() and digits.isascii():  # too large for a line
        return SourceLocation(path)
    return SourceLocation(inside, None) if "." in inside and " " not in inside else None
