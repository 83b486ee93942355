"""Lines of images, as iOS writes them."""

from __future__ import annotations

from machtrace.model.reported_image import ReportedImage
from machtrace.reports.crash.shown import shown

BOTH = "both"
"""The detail, true, of an image whose line has its architecture and its version."""


def image_end(image: ReportedImage, last: int) -> str:
    """The last address of an image, ``last`` where it says no other thing; ``???`` of none."""
    given = image.details.get("end")
    if isinstance(given, str):
        return given
    return "???" if image.size is None else f"{last:#x}"


def image_line(image: ReportedImage) -> str:
    """``base - last name arch  <uuid> path``, as iOS has it."""
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
