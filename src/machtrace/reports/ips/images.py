"""``usedImages``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.reported_image import ReportedImage
from machtrace.reports.ips.values import take_build_id, take_text, take_uuid, take_word

_KEY = "usedImages"
_ODD = "image"
"""The detail that an entry is kept under that is no image."""
_BUILD_ID = "buildId"
"""What identifies an ELF image; no writer of Apple's has it."""
_UNKNOWN: dict[str, JsonValue] = {
    "source": "P",
    "base": 0,
    "size": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
}
"""What readers of these files want of each image, for those of which nobody said it: an image of
the process, without a place."""


def read_images(body: dict[str, Any], warnings: list[str]) -> tuple[ReportedImage, ...]:
    """Every entry, at the place by which frames name it."""
    entries = body.get(_KEY)
    if not isinstance(entries, list) or not entries:
        return ()
    del body[_KEY]
    images = tuple(map(_image, entries))
    odd = sum(_ODD in image.details for image in images)
    if odd:
        warnings.append(f"{_KEY}: {odd} of {len(images)} entries are no images")
    return images


def _image(entry: JsonValue) -> ReportedImage:
    if not isinstance(entry, dict) or _ODD in entry:
        return ReportedImage(details={_ODD: entry})
    rest: dict[str, Any] = dict(entry)
    base = take_word(rest, "base")
    return ReportedImage(
        uuid=take_uuid(rest, "uuid") or take_build_id(rest, _BUILD_ID),
        name=take_text(rest, "name") or "",
        path=take_text(rest, "path") or "",
        arch=take_text(rest, "arch"),
        load_address=None if base is None else Avma(base),
        size=take_word(rest, "size"),
        version=take_text(rest, "CFBundleShortVersionString"),
        details=rest or NO_DETAILS,
    )


def image_object(image: ReportedImage, *, is_of_ips: bool) -> JsonValue:
    """The entry that says the same; ``is_of_ips``: nothing is added that the source had not."""
    if is_of_ips and _ODD in image.details:
        return image.details[_ODD]
    entry: dict[str, JsonValue] = {} if is_of_ips else dict(_UNKNOWN)
    if image.arch is not None:
        entry["arch"] = image.arch
    if image.load_address is not None:
        entry["base"] = image.load_address
    if image.version is not None:
        entry["CFBundleShortVersionString"] = image.version
    if image.size is not None:
        entry["size"] = image.size
    if isinstance(image.uuid, BuildId):  # readers of these files want a UUID in the place of one
        entry[_BUILD_ID] = str(image.uuid)
    elif image.uuid is not None:
        entry["uuid"] = str(image.uuid)
    if image.path:
        entry["path"] = image.path
    if image.name:
        entry["name"] = image.name
    return entry | dict(image.details)


def written_bases(images: Sequence[ReportedImage], *, is_of_ips: bool) -> list[int | None]:
    """Where a file that is written says that images are; 0 for those that nobody knows it of."""
    bases: list[int | None] = [image.load_address for image in images]
    return bases if is_of_ips else [base or 0 for base in bases]
