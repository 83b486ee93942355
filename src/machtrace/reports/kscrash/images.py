"""``binary_images``."""

from __future__ import annotations

from machtrace.model.address import Avma
from machtrace.model.reported_image import ReportedImage
from machtrace.reports.cpu_types import arch_name
from machtrace.reports.consume import ObjectReader


def read_images(body: ObjectReader) -> tuple[ReportedImage, ...]:
    """Every image, in the report's order."""
    return tuple(
        _image(ObjectReader.of(one, f"binary_images[{number}]", body.warnings))
        for number, one in enumerate(body.objects("binary_images"))
    )


def _image(taking: ObjectReader) -> ReportedImage:
    path = taking.text("name") or ""
    base = taking.integer("image_addr")
    kind, subtype = taking.left.get("cpu_type"), taking.left.get("cpu_subtype")
    arch = None
    if isinstance(kind, int) and isinstance(subtype, int):
        arch = arch_name(kind, subtype)
    return ReportedImage(
        uuid=taking.uuid("uuid"),
        name=path.rpartition("/")[2],
        path=path,
        arch=arch,
        load_address=None if base is None else Avma(base),
        size=taking.integer("image_size"),
        details=taking.details(),
    )
