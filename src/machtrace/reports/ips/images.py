"""``usedImages``, and values consumed from objects that are many: frames, threads and images.

Each function consumes a value of the expected type, and leaves any other in place, so that the
written object equals the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.model.report import NO_DETAILS, JsonValue, ReportedImage
from machtrace.reports.images import build_id, uuid_of

WORD = 1 << 64


def take_text(rest: dict[str, Any], key: str) -> str | None:
    """Consume a string that is not empty."""
    value = rest.get(key)
    if isinstance(value, str) and value:
        del rest[key]
        return value
    return None


def take_word(rest: dict[str, Any], key: str) -> int | None:
    """Consume a number of 64 bits."""
    value = rest.get(key)
    if type(value) is int and 0 <= value < WORD:
        del rest[key]
        return value
    return None


def take_uuid(rest: dict[str, Any], key: str) -> UUID | None:
    """Consume a UUID unless all zeros; one in another spelling than Python's also stays."""
    value = rest.get(key)
    uuid, is_usual = _uuid(value) if isinstance(value, str) else (None, False)
    if is_usual:
        del rest[key]
    return uuid


def take_build_id(rest: dict[str, Any], key: str) -> BuildId | None:
    """Consume a build-id in its usual spelling."""
    value = rest.get(key)
    identifier = build_id(value) if isinstance(value, str) else None
    if identifier is not None:
        del rest[key]
    return identifier


@lru_cache(maxsize=1 << 14)
def _uuid(text: str) -> tuple[UUID | None, bool]:
    uuid = uuid_of(text)
    return uuid, str(uuid) == text


_KEY = "usedImages"
_ODD = "image"
"""The detail that stores an entry that is not an image."""
_BUILD_ID = "buildId"
"""The key of an ELF image's identifier; Apple's writers have none."""
_UNKNOWN: dict[str, JsonValue] = {
    "source": "P",
    "base": 0,
    "size": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
}
"""The fields that readers require, for images without them: of the process, without an address."""


def read_images(body: dict[str, Any], warnings: list[str]) -> tuple[ReportedImage, ...]:
    """Read every entry, at the index by which frames refer to it."""
    entries = body.get(_KEY)
    if not isinstance(entries, list) or not entries:
        return ()
    del body[_KEY]
    images = tuple(map(_image, entries))
    wrong = sum(_ODD in image.details for image in images)
    if wrong:
        warnings.append(f"{_KEY}: {wrong} of {len(images)} entries are not images")
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
    """Return the equivalent entry; ``is_of_ips``: add nothing to the source."""
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
    if isinstance(image.uuid, BuildId):  # readers of these files require a UUID there
        entry[_BUILD_ID] = str(image.uuid)
    elif image.uuid is not None:
        entry["uuid"] = str(image.uuid)
    if image.path:
        entry["path"] = image.path
    if image.name:
        entry["name"] = image.name
    return entry | dict(image.details)


def written_bases(images: Sequence[ReportedImage], *, is_of_ips: bool) -> list[int | None]:
    """Return the written load addresses; 0 for unknown ones."""
    bases: list[int | None] = [image.load_address for image in images]
    return bases if is_of_ips else [base or 0 for base in bases]
