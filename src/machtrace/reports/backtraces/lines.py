"""One line of a stack, in either form."""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from machtrace.model.symbol import SourceLocation

LONGEST_LINE = 16384
LONGEST_TEXT = 1 << 22
"""Of a line that is a whole array."""
_QUOTES = 2
IMAGE_WIDTH = 35
"""Characters of an image's name that Apple's lines have room for."""

_APPLE = re.compile(
    r"(?P<number>[0-9]{1,6})[ \t]++(?P<image>\S(?:.{0,1000}?\S)?)[ \t]++"
    r"(?P<address>0x[0-9a-fA-F]{8,16})[ \t]++(?P<name>\S.{0,12000}+)"
)
"""What is before the offset, which is found from the end: no step may be tried again and again."""
_LOCATION = re.compile(r"(?P<file>[^():\s][^():]{0,1000}):(?P<line>[0-9]{1,9})")
"""In brackets behind the offset: lines of crash reports that were named have it."""
_MISSING = "(Missing)"
"""What Crashlytics has for a name that it does not know."""
_OFFSET = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,19}")
_BLANKS = " \t"
_GLIBC = re.compile(
    r"(?P<image>[^()\[\]\s][^()\[\]]{0,4000})"
    r"(?:\((?P<name>[^()+]*)(?:\+(?P<offset>0x[0-9a-fA-F]{1,16}))?\))?"
    r" ?\[(?P<address>0x[0-9a-fA-F]{1,16})\]"
)
_BARE = re.compile(r"\[(?P<address>0x[0-9a-fA-F]{1,16})\]")
_EXECINFO = re.compile(
    r"(?P<address>0x[0-9a-fA-F]{1,16}) <(?P<name>[^<>]{1,12000}(?:<[^+]{0,12000})?)"
    r"\+(?P<offset>0x[0-9a-fA-F]{1,16}|[0-9]{1,19})> at (?P<image>\S.{0,4000})"
)
"""As libexecinfo has them, which musl's systems take for glibc's: FreeBSD, ``backtrace_fmt``."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class StackLine(NamedTuple):
    """What a line says."""

    number: int | None
    """Of the frame, from 0; None where lines have none."""
    image: str
    """Its name, perhaps cut; empty where it is not known."""
    address: int
    symbol: str | None
    symbol_offset: int | None
    image_offset: int | None
    """From the image's header, where the line says that instead of a symbol."""
    uuid: UUID | None
    """Of the image, which stands where a name was redacted."""
    location: SourceLocation | None = None


def read_line(text: str) -> StackLine | None:
    """A line, or None; quotes, commas and brackets of a printed array may be around it."""
    if len(text) > LONGEST_LINE:
        return None
    text = text.strip()
    if (match := _BARE.fullmatch(text.rstrip(","))) is not None:
        return StackLine(None, "", int(match["address"], 16), None, None, None, None)
    text = text.removeprefix("(").removeprefix("[").strip(" \t\"',)]")
    text = text if not text.count("[") > text.count("]") else text + "]"
    if text[:1].isdecimal():
        found = _apple(text) or _located(text)
        if found is not None:
            return found
    match = _GLIBC.fullmatch(text) or _EXECINFO.fullmatch(text)
    return None if match is None else _glibc(match)


def read_lines(text: str) -> tuple[StackLine, ...]:
    """The lines in a line: several, where an array was printed in one, or a text was quoted.

    Swift prints ``["0   App …", "1   App …"]``; JSON has line ends and tabs in letters.
    """
    if text.count('"') < _QUOTES or len(text) > LONGEST_TEXT:
        found = read_line(text)
        return () if found is None else (found,)
    pieces = text.replace("\\t", " ").replace("\\n", '"').replace('\\"', '"').split('"')
    return tuple(one for piece in pieces if (one := read_line(piece)) is not None)


def _located(text: str) -> StackLine | None:
    """A line as crash reports have it where names are known: with file and line; or not at all.

    The bracket that ends it is taken off with those of arrays.
    """
    before, bracket, last = text.rpartition(" (")
    if not bracket:
        return None
    if f"({last})" == _MISSING:
        found = _apple(f"{before} ??? + 0")
        return None if found is None else found._replace(image_offset=None)
    match = _LOCATION.fullmatch(last)
    found = None if match is None else _apple(before)
    if match is None or found is None:
        return None
    return found._replace(location=SourceLocation(match["file"], int(match["line"]) or None))


def _apple(text: str) -> StackLine | None:
    before, plus, last = text.rpartition("+")
    digits = last.strip(_BLANKS)
    head = before.rstrip(_BLANKS)
    if not plus or len(head) == len(before) or len(digits) == len(last):
        return None
    match = _APPLE.fullmatch(head) if _OFFSET.fullmatch(digits) is not None else None
    if match is None:
        return None
    image, name, offset = match["image"], match["name"], _number(digits)
    uuid = UUID(name) if _UUID.fullmatch(name) else None
    # Without a symbol the image's own name stands there, whole or as cut as in its column.
    is_image = (
        uuid is not None or name == image or (len(image) == IMAGE_WIDTH and name.startswith(image))
    )
    address = int(match["address"], 16)
    if is_image and uuid is None:
        image = name
    elif name.startswith("0x") and _OFFSET.fullmatch(name) is not None:
        # Lines of crash reports: where the image begins, and how far in it the address is.
        is_image = int(name, 16) + offset == address
    is_known = name != "???" and not (image == "???" and name.startswith("0x"))
    return StackLine(
        number=int(match["number"]),
        image="" if image == "???" else image,
        address=address,
        symbol=None if is_image or not is_known else name,
        symbol_offset=offset if is_known and not is_image else None,
        image_offset=offset if is_image and is_known else None,
        uuid=uuid if uuid is not None and uuid.int else None,
    )


def _glibc(match: re.Match[str]) -> StackLine:
    name = match["name"] or None
    offset = None if match["offset"] is None else _number(match["offset"])
    return StackLine(
        number=None,
        image=match["image"],
        address=int(match["address"], 16),
        symbol=name,
        symbol_offset=None if name is None else offset,
        image_offset=offset if name is None else None,
        uuid=None,
    )


def _number(digits: str) -> int:
    """Hexadecimal behind ``0x``, else decimal, with zeros before it or not."""
    return int(digits, 16 if digits.startswith("0x") else 10)
