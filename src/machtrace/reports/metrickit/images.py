"""Images of MetricKit's frames: payloads have no list of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.report import ReportedImage

_WORD = 1 << 64
_LEAST_ADDRESS = 1 << 32
"""Lowest address of Apple's 64-bit programs; images are smaller."""
_PAGE = 0x1000
"""The smallest page size; arm64's is four times as large."""
_UUID_DIGITS = 32
BINARIES = "binaryInfo"
"""The key of image names in iOS 27's trees, whose frames have only UUIDs."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,19}")


@dataclass(slots=True)
class _Seen:
    uuid: UUID | None
    name: str
    bases: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ImageCollector:
    """Finds each frame's image and its offset in it."""

    named: Mapping[str, str] = field(default_factory=dict)
    """Names of images without names in frames, by UUID in capital letters."""
    _seen: list[_Seen] = field(default_factory=list)
    _places: dict[tuple[str, str], int | None] = field(default_factory=dict)
    may_be_adjusted: bool = True
    """Whether an odd offset of the current stack implies that it was adjusted."""
    swapped: int = 0
    """Frames whose offset was the image's load address: payloads of iOS 14, 15 and macOS 12."""

    def place(
        self, entry: dict[str, JsonValue]
    ) -> tuple[Avma | None, int | None, ImageOffset | None]:
        """Consume the frame's address, the index of its image, and the offset."""
        index = self._image(entry)
        address = _take(entry, "address")
        offset = _take(entry, "offsetIntoBinaryTextSegment")
        if offset is not None and (offset >= _LEAST_ADDRESS or _is_base(offset, address)):
            if address is None or not 0 <= address - offset < _LEAST_ADDRESS:
                entry["offsetIntoBinaryTextSegment"] = offset
                offset = None
            else:
                self.swapped += 1
                offset = address - offset
        if index is not None and address is not None and offset is not None:
            self._seen[index].bases.add(address - offset)
        return (
            None if address is None else Avma(address),
            index,
            None if offset is None or index is None else ImageOffset(offset),
        )

    def _image(self, entry: dict[str, JsonValue]) -> int | None:
        digits, name = entry.get("binaryUUID"), entry.get("binaryName")
        if not isinstance(digits, str) and not isinstance(name, str):
            return None
        uuid = digits if isinstance(digits, str) else ""
        key = (uuid, name if isinstance(name, str) else self.named.get(uuid.upper(), ""))
        if key not in self._places:
            self._places[key] = self._add(*key)
        index = self._places[key]
        if index is not None:
            entry.pop("binaryUUID", None)
            if isinstance(name, str):
                entry.pop("binaryName")
        return index

    def _add(self, identifier: str, name: str) -> int | None:
        uuid = None
        digits = identifier.replace("-", "")
        if identifier:
            try:
                uuid = UUID(hex=digits) if len(digits) == _UUID_DIGITS else None
            except ValueError:
                uuid = None
            if uuid is None:
                return None
        self._seen.append(_Seen(uuid if uuid is not None and uuid.int else None, name))
        return len(self._seen) - 1

    def images(self) -> tuple[ReportedImage, ...]:
        """Return the named images in order of appearance."""
        return tuple(
            ReportedImage(
                uuid=image.uuid,
                name=image.name,
                load_address=_base(image.bases),
            )
            for image in self._seen
        )


def binary_names(value: JsonValue) -> dict[str, str]:
    """Return names by UUIDs in capital letters.

    ``binaryInfo`` was seen as a list of objects with ``uuid`` and ``name``. In the API it is a
    dictionary, which Swift may also encode as an object, or as a list of alternating keys and
    values.
    """
    names: dict[str, str] = {}
    pairs: list[tuple[JsonValue, JsonValue]] = []
    if isinstance(value, dict):
        pairs = [*value.items()]
    elif isinstance(value, list):
        pairs = [(label.get("uuid"), label) for label in value if isinstance(label, dict)]
        pairs += zip(value[::2], value[1::2], strict=False)
    for uuid, label in pairs:
        name = label.get("name") if isinstance(label, dict) else label
        if isinstance(uuid, str) and isinstance(name, str):
            names[uuid.upper()] = name
    return names


def _base(bases: Sequence[int] | set[int]) -> Avma | None:
    """Return the load address, if all frames agree on it: they can be of several launches."""
    return Avma(next(iter(bases))) if len(bases) == 1 and min(bases) >= 0 else None


def _is_base(offset: int, address: int | None) -> bool:
    """Return whether a value that could be an offset is a load address.

    Images are loaded at whole pages, and then the remaining offset is page-aligned, too. Programs
    of watchOS are below 4 GiB.
    """
    if address is None or offset == 0 or offset % _PAGE or address < offset:
        return False
    return bool((address - offset) % _PAGE)


def _take(entry: dict[str, JsonValue], key: str) -> int | None:
    value = as_number(entry.get(key))
    if value is not None and 0 <= value < _WORD:
        del entry[key]
        return value
    return None


def as_number(value: JsonValue) -> int | None:
    """Parse a number; App Store Connect has text: ``"0x19f7cda84"``, ``"1466"``."""
    if type(value) is int:
        return value
    if not isinstance(value, str) or _NUMBER.fullmatch(value) is None:
        return None
    return int(value, 16) if value.startswith("0x") else int(value)
