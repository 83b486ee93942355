"""``usedImages``."""

from __future__ import annotations

from machtrace.model.address import Avma
from machtrace.model.json_value import JsonValue
from machtrace.model.reported_image import ReportedImage
from machtrace.report.taking import Taking


def read_images(taking: Taking) -> tuple[ReportedImage, ...]:
    """Every entry, at the place by which frames name it."""
    return tuple(
        _image(Taking.of(one, f"usedImages[{index}]", taking.warnings))
        for index, one in enumerate(taking.objects("usedImages"))
    )


def _image(taking: Taking) -> ReportedImage:
    base = taking.integer("base")
    return ReportedImage(
        uuid=taking.uuid("uuid"),
        name=taking.text("name") or "",
        path=taking.text("path") or "",
        arch=taking.text("arch"),
        load_address=None if base is None else Avma(base),
        size=taking.integer("size"),
        version=taking.text("CFBundleShortVersionString"),
        details=taking.details(),
    )


def image_object(image: ReportedImage) -> dict[str, JsonValue]:
    """The entry that says the same."""
    entry: dict[str, JsonValue] = {"source": image.details.get("source", "P")}
    if image.arch is not None:
        entry["arch"] = image.arch
    if image.load_address is not None:
        entry["base"] = image.load_address
    if image.version is not None:
        entry["CFBundleShortVersionString"] = image.version
    if image.size is not None:
        entry["size"] = image.size
    if image.uuid is not None:
        entry["uuid"] = str(image.uuid)
    if image.path:
        entry["path"] = image.path
    if image.name:
        entry["name"] = image.name
    return entry | dict(image.details)
