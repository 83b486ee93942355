"""Lines of images, and a text's names made safe to print."""

from __future__ import annotations

import re
from uuid import UUID

from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.model.report import JsonValue, ReportedImage
from machtrace.reports.images import listed_identifier

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def shown(text: str) -> str:
    r"""Escape ``text`` to one line without control of a terminal: ``\x1b`` for an escape byte.

    Bytes that are not UTF-8 and private-use characters stay, so that a file survives a round trip.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


BOTH = "both"
"""The detail, true, of an image whose line has its architecture and its version."""


def image_end(image: ReportedImage, last: int) -> str:
    """Return the last address of an image: ``last`` by default, ``???`` if unknown."""
    end = image.details.get("end")
    if isinstance(end, str):
        return end
    return "???" if image.size is None else f"{last:#x}"


def image_line(image: ReportedImage) -> str:
    """Format ``base - last name arch  <uuid> path``, as iOS does."""
    base = image.load_address or 0
    uuid = "???" if image.uuid is None else image.uuid.hex
    ends = f"{base:>#18x} - {image_end(image, base + max(1, image.size or 1) - 1):>18s}"
    mark = "+" if image.details.get("main") is True else ""
    name = shown(image.name) or "???"
    version = "" if image.version is None else f" ({shown(image.version)})"
    label = version if image.arch is None and version else f" {image.arch or '???'}"
    if image.details.get(BOTH) is True:
        label += version
    return f"{ends} {mark}{name}{label}  <{uuid}> {shown(image.path)}"


MAX_LINE_LENGTH = 16384
"""Characters; a longer line is stored unparsed."""

_RANGE = re.compile(
    r"[ \t]*(0x[0-9a-fA-F]{1,16})[ \t]+-[ \t]+(0x[0-9a-fA-F]{1,16}|\?\?\?)[ \t]+(?=\S)"
)
_IDENTIFIER = re.compile(r"<([0-9a-fA-F-]{32,36}|(?:[0-9a-f]{2}){8,64}|\?\?\?|\(null\))>")
_ARCH = re.compile(r"(?:arm|x86|i386|ppc|\?\?\?)[0-9a-z_-]*")
_WHOLE = (1 << 64) - 1


def read_image(line: str) -> ReportedImage | None:
    """Parse a line of *Binary Images*; None if it is not one."""
    match = _RANGE.match(line) if len(line) <= MAX_LINE_LENGTH else None
    if match is None:
        return None
    rest = line[match.end() :].rstrip()
    label, uuid, path = _parts(rest)
    if label is None:
        return None
    start = int(match[1], 16)
    size = None if match[2] == "???" else int(match[2], 16) + 1 - start
    details: dict[str, JsonValue] = {"main": True} if label.startswith("+") else {}
    name, version, arch = _named(label.removeprefix("+").strip())
    if version is not None and arch is not None:
        details[BOTH] = True
    if size == _WHOLE + 1 and name == "???":  # the placeholder for no image: it holds nothing
        size, details = 0, {"source": "A", "uuid": str(UUID(int=0))}
    elif size is not None and size <= 0:
        details["end"] = match[2]
        size = None
    return ReportedImage(
        uuid=uuid,
        name="" if name == "???" else name,
        path="" if path == "???" else path,
        arch=arch,
        load_address=Avma(start),
        size=size,
        version=version,
        details=details,
    )


def _parts(rest: str) -> tuple[str | None, UUID | BuildId | None, str]:
    """Split label, identifier and path from what follows the addresses; a label may be None."""
    match = _IDENTIFIER.search(rest)
    if match is not None:
        return (
            rest[: match.start()].strip(),
            listed_identifier(match[1]),
            rest[match.end() :].strip(),
        )
    for mark in (" /", "\t/"):
        label, space, path = rest.partition(mark)
        if space:
            return label.strip(), None, "/" + path
    return (None if "<" in rest else rest), None, ""


def _named(label: str) -> tuple[str, str | None, str | None]:
    """Split name, version and architecture."""
    version = arch = None
    if label.endswith(")"):
        at = label.rfind(" (", 0, _outer(label))
        if at > 0:
            label, version = label[:at].rstrip(), label[at + 2 : -1]
    name, _, last = label.rpartition(" ")
    if name and _ARCH.fullmatch(last):
        label, arch = name.strip(), None if last == "???" else last
    return label, version, arch


def _outer(label: str) -> int:
    """Return where the bracket pair that ends the label opens; one nested pair is allowed."""
    inner = label.rfind(")", 0, len(label) - 1)
    opened = label.rfind("(")
    return opened if inner > opened else opened + 1
