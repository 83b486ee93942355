"""Lists of images in reports of any kind.

A lenient reader of nothing but these lists: the *Binary Images* section of Apple's text formats
(crash reports, samples, spindumps; Apple's *Examining the fields in a crash report*),
``usedImages`` of .ips files (*Interpreting the JSON format of a crash report*), ``binary_images``
of KSCrash's reports, ``binaryUUID`` of MetricKit's call stack trees, and ``images`` of this
program's JSON. ELF images have build-ids of any length instead of UUIDs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.reports.images import listed_identifier, uuid_of

_MAX_LINE_LENGTH = 8192
_IDENTIFIER = re.compile(r"<([0-9a-fA-F-]{32,36}|(?:[0-9a-f]{2}){8,64})>")
_RANGE = re.compile(r"(0x[0-9a-fA-F]{1,16}) +- +(0x[0-9a-fA-F]{1,16}|\?\?\?) +")
"""The part before an image's name; one search for it and the identifier together would take
quadratic time.
"""
_VERSION = re.compile(r"\([^()]*\)$")
_ARCH = re.compile(r"(?:arm|x86|i386|ppc)[0-9a-z_-]*$")
_NO_IMAGES = frozenset({"sharedCache"})
"""Objects with an address and a UUID that are not images: the cache that contains images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedImage:
    """An image as a report lists it."""

    identifier: UUID | BuildId
    name: str
    """Empty if not reported."""
    path: str = ""
    """Its path on the reporting machine; empty if unknown."""
    arch: str | None = None
    """As reported."""
    load_address: Avma | None = None
    size: int | None = None
    """In bytes."""


def listed_images(text: str, source: str) -> tuple[ListedImage, ...]:
    """Return the images listed in ``text``, each identifier once, in the report's order.

    Raises:
        FormatError: it lists no images; ``source`` names it.
    """
    images: dict[UUID | BuildId, ListedImage] = {}
    for image in (*_of_documents(text), *_of_lines(text)):
        known = images.get(image.identifier)
        if known is None or (not known.name and image.name):
            images[image.identifier] = image
    if not images:
        raise FormatError(
            "no list of binary images",
            source=source,
            offset=0,
            remedy="pass a process, a core, or a report with UUIDs or build-ids of its images",
        )
    return tuple(images.values())


def _of_lines(text: str) -> Iterator[ListedImage]:
    for line in text.splitlines():
        match = (
            _range_and_identifier(line) if "<" in line and len(line) < _MAX_LINE_LENGTH else None
        )
        identifier = None if match is None else listed_identifier(match[1][1])
        if match is None or identifier is None:
            continue
        places, bracketed = match
        name, arch = _label(line[places.end() : bracketed.start()])
        path = line[bracketed.end() :].strip()
        start = int(places[1], 16)
        size = None if places[2] == "???" else int(places[2], 16) + 1 - start
        yield ListedImage(
            identifier=identifier,
            name=name or path.rpartition("/")[2],
            path=path,
            arch=arch,
            load_address=Avma(start),
            size=size if size is not None and size > 0 else None,
        )


def _range_and_identifier(line: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """Match the first addresses, and the first identifier with nothing in brackets between."""
    # Between both there is no "<": searching from the last one keeps this linear.
    for identifier in _IDENTIFIER.finditer(line):
        start = line.rfind("<", 0, identifier.start()) + 1
        places = _RANGE.search(line, start, identifier.start())
        if places is not None:
            return places, identifier
    return None


def _label(label: str) -> tuple[str, str | None]:
    """Split name and optional architecture of ``+Name (1.0 - 1)``, ``Name arm64``."""
    label = _VERSION.sub("", label.strip().removeprefix("+")).strip()
    name, _, last = label.rpartition(" ")
    if name and _ARCH.match(last):
        return name.strip(), last
    return label, None


def _of_documents(text: str) -> Iterator[ListedImage]:
    """Yield the images of JSON: one document, or a header line and one."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return
    text = text.lstrip("\ufeff \t\r\n")
    for candidate in (text, text.partition("\n")[2]):
        try:
            document = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        yield from _of_document(document)
        return


def _of_document(document: object) -> Iterator[ListedImage]:
    """Yield an image for every object in ``document`` that identifies one, at any depth."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, dict):
            image = _image(value)
            if image is not None:
                yield image
            waiting += [
                part
                for name, part in reversed(value.items())
                if isinstance(part, dict | list) and name not in _NO_IMAGES
            ]


def _image(entry: dict[str, Any]) -> ListedImage | None:
    address = _number(entry, "base", "image_addr", "load_address")
    identifier: UUID | BuildId | None = uuid_of(entry.get("binaryUUID"))
    if identifier is None and address is not None:
        # Apple's readers require a UUID: .ips files of ELF images have zeros and "buildId".
        identifier = listed_identifier(entry.get("uuid")) or listed_identifier(entry.get("buildId"))
    if identifier is None:
        return None
    path, name = entry.get("path", ""), entry.get("name", entry.get("binaryName", ""))
    path = path if isinstance(path, str) else ""
    name = name if isinstance(name, str) else ""
    if "/" in name:
        path, name = path or name, name.rpartition("/")[2]
    arch = entry.get("arch")
    return ListedImage(
        identifier=identifier,
        name=name or path.rpartition("/")[2],
        path=path,
        arch=arch if isinstance(arch, str) else None,
        load_address=None if address is None else Avma(address),
        size=_number(entry, "size", "image_size"),
    )


def _number(entry: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = entry.get(name)
        if isinstance(value, int) and 0 <= value < 1 << 64:
            return value
    return None
