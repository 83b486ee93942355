"""The lines of Apple's crash texts, one pattern each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.symbol import SourceLocation

LONGEST_LINE = 16384
"""Characters; a longer line is kept as it is, and not taken apart."""

_FRAME = re.compile(
    r"(?P<number>[0-9]{1,6})[ \t]+(?P<image>\S(?:.{0,1000}?\S)?)[ \t]+"
    r"(?P<address>0x[0-9a-fA-F]{1,16})(?:[ \t]+(?P<what>\S.*))?"
)
_PLACE = re.compile(r"(?P<before>.*\S) \((?P<file>[^()]+?)(?::(?P<line>[0-9]{1,9}))?\)")
_INTO = re.compile(r"(?P<name>.*\S)[ \t]+\+[ \t]+(?P<offset>[0-9]{1,19})")
_BASE = re.compile(r"0x[0-9a-fA-F]{1,16}")
_IMAGE = re.compile(
    r"[ \t]*(?P<start>0x[0-9a-fA-F]{1,16})[ \t]+-[ \t]+(?P<end>0x[0-9a-fA-F]{1,16}|\?\?\?)[ \t]+"
    r"(?P<main>\+?)(?P<label>[^<]*?)[ \t]*(?:<(?P<uuid>[0-9a-fA-F-]{32,36}|\?\?\?)>)?"
    r"(?:[ \t]+(?P<path>[/?].*))?"
)
_VERSION = re.compile(r"(?P<name>.*?)[ \t]*\((?P<version>[^()]*(?:\([^()]*\))?[^()]*)\)")
_ARCH = re.compile(r"(?:arm|x86|i386|ppc|\?\?\?)[0-9a-z_-]*")
_REGISTER = re.compile(r"(?P<name>[a-z][a-z0-9]{0,7}):[ \t]*(?P<value>0x[0-9a-fA-F]{1,16})")
_NAMES = {"rfl": "rflags"}


def read_image(line: str) -> ReportedImage | None:
    """A line of *Binary Images*; None where it is none."""
    match = _IMAGE.fullmatch(line.rstrip()) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    start = int(match["start"], 16)
    size = None if match["end"] == "???" else int(match["end"], 16) + 1 - start
    label, version, arch = match["label"].strip(), None, None
    if (versioned := _VERSION.fullmatch(label)) is not None:
        label, version = versioned["name"], versioned["version"]
    name, _, last = label.rpartition(" ")
    if name and _ARCH.fullmatch(last):
        label, arch = name.strip(), None if last == "???" else last
    return ReportedImage(
        uuid=_uuid(match["uuid"]),
        name="" if label == "???" else label,
        path="" if match["path"] in (None, "???") else match["path"],
        arch=arch,
        load_address=Avma(start),
        size=size if size is not None and size > 0 else None,
        version=version,
        details={"main": True} if match["main"] else {},
    )


def _uuid(text: str | None) -> UUID | None:
    digits = (text or "").replace("-", "")
    if len(digits) != 32:  # noqa: PLR2004 - the digits of a UUID
        return None
    uuid = UUID(hex=digits)
    return uuid if uuid.int else None


class FrameLines:
    """Reads lines of frames of one report."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        self._images = images
        self._by_name: dict[str, list[int]] = {}
        for index, image in enumerate(images):
            for name in {image.name, image.path.rpartition("/")[2]}:
                self._by_name.setdefault(name, []).append(index)
        self._known: dict[tuple[str, int], int | None] = {}

    def read(self, line: str, adjustment: Adjustment) -> ReportedFrame | None:
        """The frame of a line; None where it is none."""
        match = _FRAME.fullmatch(line.rstrip()) if len(line) <= LONGEST_LINE else None
        if match is None:
            return None
        address = int(match["address"], 16)
        index = self._image(match["image"], address)
        image = None if index is None else self._images[index]
        offset = None
        if image is not None and image.load_address is not None:
            offset = ImageOffset(address - image.load_address)
        symbol, location, is_inline = _what(match["what"] or "", image)
        details = {}
        if index is None and match["image"] != "???":
            details = {"image": match["image"]}
        return ReportedFrame(
            Avma(address), index, offset, adjustment, symbol, location, is_inline, details
        )

    def at(self, address: int) -> ReportedFrame:
        """The frame of a bare return address."""
        index = self._image("", address)
        base = None if index is None else self._images[index].load_address
        offset = None if base is None else ImageOffset(address - base)
        return ReportedFrame(Avma(address), index, offset, Adjustment.RETURN)

    def _image(self, name: str, address: int) -> int | None:
        """The image that holds the address; of that name, where several do."""
        key = (name, address >> 12)
        if key not in self._known:
            self._known[key] = self._find(name, address)
        found = self._known[key]
        if found is not None and not self._images[found].holds(address):
            return self._find(name, address)
        return found

    def _find(self, name: str, address: int) -> int | None:
        named = self._by_name.get(name, [])
        candidates: list[int] = [*named, *range(len(self._images))]
        for candidate in candidates:
            if self._images[candidate].holds(address):
                return candidate
        # An image without an end, or with a wrong one: its name and start must do.
        starts: list[tuple[int, int]] = [
            (start, index)
            for index in named
            if (start := self._images[index].load_address) is not None
            and start <= address
            and self._images[index].size is None
        ]
        return max(starts)[1] if starts else None


def _what(
    text: str, image: ReportedImage | None
) -> tuple[ReportedSymbol | None, SourceLocation | None, bool]:
    location = None
    into = _INTO.fullmatch(text)
    if into is None and (place := _PLACE.fullmatch(text)) is not None:
        line = None if place["line"] is None else int(place["line"])
        if line is not None or "." in place["file"]:
            location = SourceLocation(place["file"], line or None)
            text = place["before"]
            into = _INTO.fullmatch(text)
    name = text if into is None else into["name"]
    if into is not None and _BASE.fullmatch(name):
        return None, location, False
    if name in ("", "???", "0"):
        return None, location, False
    is_inline = name.endswith(" [inlined]")
    name = name.removesuffix(" [inlined]")
    if image is not None:
        name = name.removesuffix(f" (in {image.name})")
    symbol = ReportedSymbol(name, None if into is None else int(into["offset"]))
    return symbol, location, is_inline


def read_registers(line: str) -> list[tuple[str, int]]:
    """The registers of a row; none where it is none."""
    if len(line) > LONGEST_LINE:
        return []
    return [(_NAMES.get(name, name), int(value, 16)) for name, value in _REGISTER.findall(line)]
