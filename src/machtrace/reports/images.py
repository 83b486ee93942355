"""Images of reports: by name and by address, and their identifiers and architectures.

Architecture numbers are those of ``mach/machine.h``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.image import BuildId
from machtrace.model.report import JsonValue, ReportedImage

_ADDRESS_BITS = (47, 39, 36)
"""Widths of user-space addresses: macOS, iOS, and KSCrash's mask."""
_SIGNED = 1 << 47
_KERNEL = 0xFFFF << 48
"""Prefix of kernel addresses, which no signature produces."""


class ImageRanges:
    """A report's images by address."""

    def __init__(self, images: Sequence[ReportedImage]) -> None:
        """Index images in any order; of two with the same start, the later one wins."""
        placed = sorted(
            (image.load_address, index, image.load_address + image.size)
            for index, image in enumerate(images)
            if image.load_address is not None and image.size
        )
        self._starts = [start for start, _, _ in placed]
        self._indices = [index for _, index, _ in placed]
        self._ends = [end for _, _, end in placed]

    def find(self, address: int) -> int | None:
        """Return the index of the image that holds ``address`` (Avma), by start and end."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._ends[place]:
            return None
        return self._indices[place]

    def unsigned(self, address: int) -> int:
        """Strip arm64e's signature from ``address``, if the result is in an image.

        Pointer authentication (ARM, *Armv8.3-A*) uses the unused address bits. Their number depends
        on the system: each width is tried.
        """
        if address < _SIGNED or address & _KERNEL == _KERNEL:
            return address
        for bits in _ADDRESS_BITS:
            plain = address & ((1 << bits) - 1)
            if self.find(plain) is not None:
                return plain
        return address


LABEL = "label"
"""The detail of an image's listed name, if its file has another."""


def named_by_path(image: ReportedImage) -> ReportedImage:
    """Return the image with its file's name, as in frames; lists have bundle identifiers too."""
    name = image.path.rpartition("/")[2]
    if not name or name == image.name:
        return image
    details: dict[str, JsonValue] = {**image.details, LABEL: image.name}
    return replace(image, name=name, details=details)


class ListedImages:
    """Listed images, and those that only frames name."""

    def __init__(self, images: Iterable[ReportedImage]) -> None:
        self._images = list(images)
        self._ranges = ImageRanges(self._images)
        self._by_name: dict[str, int] = {}
        for index, image in enumerate(self._images):
            self._by_name.setdefault(image.name, index)
            label = image.details.get(LABEL)
            if isinstance(label, str):
                self._by_name.setdefault(label, index)

    def find(self, name: str, address: int | None) -> int:
        """Return the image that a frame names; of several with that name, the one that holds it.

        An unlisted one is added.
        """
        index = self._by_name.get(name)
        if index is not None and (address is None or self._images[index].holds(address)):
            return index
        by_address = None if address is None else self._ranges.find(address)
        if by_address is not None and (index is None or self._images[by_address].name == name):
            self._by_name.setdefault(name, by_address)
            return by_address
        if index is None:
            index = self._by_name[name] = len(self._images)
            self._images.append(ReportedImage(name=name))
        return index

    def image(self, index: int) -> ReportedImage:
        """Return an image."""
        return self._images[index]

    def base(self, index: int) -> Avma | None:
        """Return an image's load address (Avma)."""
        return self._images[index].load_address

    def offset(self, index: int | None, address: int | None) -> ImageOffset | None:
        """Return the offset of an address (Avma) in an image; None if it is not known."""
        base = None if index is None else self.base(index)
        if base is None or address is None or address < base:
            return None
        return ImageOffset(address - base)

    def set_base(self, index: int, base: Avma) -> None:
        """Set the load address of an image that is unlisted or listed without one."""
        self._images[index] = replace(self._images[index], load_address=base)

    def all(self) -> tuple[ReportedImage, ...]:
        """Return all images, the listed ones first and in order."""
        return tuple(self._images)


BUILD_ID = re.compile(r"([0-9a-f]{2}){2,64}")
"""A build-id's spelling: lower case, no dashes."""
_UUID_BYTES, _UUID_DIGITS = 16, 32
NO_UUID = "0" * _UUID_DIGITS
"""The digits that stand for no UUID."""


def uuid_of(text: object) -> UUID | None:
    """Parse a UUID, with or without dashes; None for any other value, and for one of zeros."""
    digits = text.replace("-", "") if isinstance(text, str) else ""
    if len(digits) != _UUID_DIGITS:
        return None
    try:
        uuid = UUID(hex=digits)
    except ValueError:
        return None
    return uuid if uuid.int else None


def build_id(text: str) -> BuildId | None:
    """Parse a build-id in its usual spelling; None for any other text."""
    return BuildId(bytes.fromhex(text)) if BUILD_ID.fullmatch(text) else None


def listed_identifier(text: object) -> UUID | BuildId | None:
    """Parse a UUID, or a build-id of another length; None for other values, and for zeros."""
    if not isinstance(text, str) or len(text.replace("-", "")) == _UUID_DIGITS:
        return uuid_of(text)
    identifier = build_id(text)
    return identifier if identifier is not None and any(identifier.value) else None


def identifier(digits: str | None, *, is_macho: bool) -> UUID | BuildId | None:
    """Parse an identifier: a UUID for Mach-O, a build-id, possibly as long, for ELF.

    Args:
        digits: an even number; None, other text and zeros give None.
        is_macho: whether the reporting system is Apple's.
    """
    try:
        data = bytes.fromhex(digits or "")
    except ValueError:
        return None
    if not any(data):
        return None
    return UUID(bytes=data) if is_macho and len(data) == _UUID_BYTES else BuildId(data)


_WIDE = 0x0100_0000
_CAPABILITIES = 0xFF00_0000
"""Subtype bits for capabilities rather than the processor."""
_TYPES = {
    7: "i386",
    7 | _WIDE: "x86_64",
    12: "arm",
    12 | _WIDE: "arm64",
    12 | 0x0200_0000: "arm64_32",
    18: "ppc",
    18 | _WIDE: "ppc64",
}
_SUBTYPES = {
    (12, 6): "armv6",
    (12, 9): "armv7",
    (12, 11): "armv7s",
    (12, 12): "armv7k",
    (12 | _WIDE, 2): "arm64e",
    (7 | _WIDE, 8): "x86_64h",
}


def arch_name(cpu_type: int, cpu_subtype: int) -> str | None:
    """Return ``arm64e`` and similar; None for unknown types. Negative numbers are accepted."""
    cpu_type &= 0xFFFF_FFFF
    subtype = cpu_subtype & 0xFFFF_FFFF & ~_CAPABILITIES
    return _SUBTYPES.get((cpu_type, subtype)) or _TYPES.get(cpu_type)
