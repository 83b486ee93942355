"""The lines of a tree."""

from __future__ import annotations

import re
from typing import NamedTuple

from machtrace.model.json_value import JsonValue

LONGEST_LINE = 16384
_COUNTED = re.compile(r"(?P<prefix>[ *]{0,15000})(?P<count>[0-9]{1,12})[ ]{1,12}(?P<rest>\S.*)")
_ADDRESS = re.compile(r"\[0x(?P<address>[0-9a-fA-F]{1,16})\]")
_INTO = re.compile(r"(?P<name>.*\S) \+ (?P<offset>[0-9]{1,19})")
_SOURCE = re.compile(
    r"(?P<file>[^()]*?)(?::(?P<line>[0-9]{1,9})(?:,(?P<column>[0-9]{1,9}))?)? in (?P<image>.*)"
)
_MARGIN, _STEP = 2, 2


class SpunFrame(NamedTuple):
    """What a line of a tree says."""

    depth: int
    """0 for a root."""
    samples: int
    name: str | None
    offset: int | None
    """From the function's start."""
    image: str | None
    image_offset: int | None
    file: str | None
    line: int | None
    column: int | None
    address: int | None
    details: dict[str, JsonValue]

    @property
    def is_note(self) -> bool:
        """Whether it says in which state the samples were, as ``<Kernel mode>``, and no frame."""
        return self.address is None and self.image is None and (self.name or "").startswith("<")


def spun_frame(line: str) -> SpunFrame | None:
    """A line, or None."""
    match = _COUNTED.fullmatch(line.rstrip()) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    prefix, text = match["prefix"], match["rest"]
    details: dict[str, JsonValue] = {}
    if prefix.endswith("*"):
        details["kernel"] = True
    address = None
    places = list(_ADDRESS.finditer(text))
    if places:
        place = places[-1]
        address = int(place["address"], 16)
        if after := text[place.end() :].strip():
            details["samples"] = after
        text = text[: place.start()].rstrip()
    what, bracket, where = _before_last_bracket(text)
    image = file = image_offset = None
    line_number = column = None
    if bracket and where.endswith(")") and what:
        image, image_offset, file, line_number, column = _where(where[:-1])
        text = what
    name, offset = _into(text.rstrip())
    return SpunFrame(
        depth=max(0, len(prefix) - _MARGIN) // _STEP,
        samples=int(match["count"]),
        name=None if name == "???" else name,
        offset=offset,
        image=image,
        image_offset=image_offset,
        file=file,
        line=line_number,
        column=column,
        address=address,
        details=details,
    )


def _before_last_bracket(text: str) -> tuple[str, str, str]:
    """What is before the bracket that the last one closes, and what is in it and after.

    Images' names can have brackets of their own.
    """
    end = len(text)
    closed = 0
    while (start := text.rfind("(", 0, end)) >= 0:
        closed += text.count(")", start, end) - 1
        if closed <= 0:
            return (
                (text[: start - 1], " (", text[start + 1 :])
                if text[start - 1 : start] == " "
                else text.rpartition(" (")
            )
        end = start
    return text.rpartition(" (")


def _where(text: str) -> tuple[str, int | None, str | None, int | None, int | None]:
    """Image, offset in it, file, line and column of what is in brackets."""
    source = _SOURCE.fullmatch(text)
    image, offset = _into(text if source is None else source["image"])
    if source is None:
        return image, offset, None, None, None
    return image, offset, source["file"], _number(source["line"]), _number(source["column"])


def _into(text: str) -> tuple[str, int | None]:
    match = _INTO.fullmatch(text)
    return (text, None) if match is None else (match["name"], int(match["offset"]))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text) or None
