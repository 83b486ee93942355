"""Values that events and profiles of Sentry share: times, addresses, images, process and system.

Sources: develop.sentry.dev, *Event Payloads*; sentry-cocoa's ``SentryDebugMeta``,
``SentryCrashReportConverter``; sentry-native's ``sentry_modulefinder_linux.c``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from uuid import UUID

from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.model.report import JsonValue, ReportedImage, ReportedProcess, ReportedSystem
from machtrace.reports.consume import ObjectReader
from machtrace.reports.images import listed_identifier, uuid_of

_TOP = 1 << 64
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}")
_NATIVE = ("macho", "apple", "elf", "symbolic", "pe", "pe_dotnet", "wasm")
_MACHO = ("macho", "apple", "symbolic")
_RELEASE = re.compile(r"(?P<name>[^@]+)@(?P<version>[^+]+)(?:\+(?P<build>.+))?")
_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999."""


def number_of(entry: ObjectReader, key: str) -> int | None:
    """Consume an unsigned word, which is a number or text: ``0x1a2b``, ``4711``."""
    value = entry.left.get(key)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        base = 16 if value[:2].lower() == "0x" else 10
        number = int(value, base)
        if number < _TOP:
            del entry.left[key]
            return number
    if value is None or isinstance(value, str):
        return None
    return entry.integer(key)


def time_of(body: ObjectReader, key: str) -> str | None:
    """Consume a time: text, or seconds since 1970, which become text in UTC."""
    value = body.left.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return body.text(key)
    if not 0 <= value <= _LAST_SECOND:
        return None
    del body.left[key]
    return datetime.fromtimestamp(value, UTC).isoformat().replace("+00:00", "Z")


def read_images(body: ObjectReader) -> tuple[tuple[ReportedImage, ...], dict[int, int]]:
    """Return the images of ``debug_meta``, and the place of each by its number in the list.

    Entries of other kinds, such as source maps, stay where they are.
    """
    meta = body.inner("debug_meta")
    images: list[ReportedImage] = []
    places: dict[int, int] = {}
    others: list[JsonValue] = []
    for number, value in enumerate(meta.objects("images")):
        if not isinstance(value, dict) or value.get("type") not in _NATIVE:
            others.append(value)
            continue
        places[number] = len(images)
        images.append(_image(ObjectReader.of(value, f"images[{number}]", body.warnings)))
    if others:
        meta.left["images"] = others
    return tuple(images), places


def _image(entry: ObjectReader) -> ReportedImage:
    is_macho = entry.left.get("type") in _MACHO
    uuid: UUID | BuildId | None
    if is_macho:
        uuid = uuid_of(entry.left.get("debug_id")) or uuid_of(entry.left.get("uuid"))
        for key in ("debug_id", "uuid"):
            if uuid is not None and uuid_of(entry.left.get(key)) == uuid:
                del entry.left[key]
    else:
        # The debug id of ELF is a part of the build id, or a sum of its code.
        uuid = _build_id(entry.left.get("code_id"))
        if uuid is not None:
            del entry.left["code_id"]
    path = entry.text("code_file") or entry.text("name") or ""
    base, size = number_of(entry, "image_addr"), number_of(entry, "image_size")
    return ReportedImage(
        uuid=uuid,
        name=path.replace("\\", "/").rpartition("/")[2],
        path=path,
        arch=entry.text("arch"),
        load_address=None if base is None else Avma(base),
        size=size,
        details=entry.details(),
    )


def _build_id(text: JsonValue) -> UUID | BuildId | None:
    if not isinstance(text, str):
        return None
    identifier = listed_identifier(text.lower())
    return BuildId(identifier.bytes) if isinstance(identifier, UUID) else identifier


def read_process(body: ObjectReader, app: ObjectReader, arch: str | None) -> ReportedProcess:
    """Return the process: its context, else its release, ``org.example.app@1.2+34``."""
    release, dist = body.left.get("release"), body.left.get("dist")
    parts = _RELEASE.fullmatch(release) if isinstance(release, str) else None
    build = parts["build"] if parts is not None else None
    return ReportedProcess(
        name=app.text("app_name"),
        identifier=app.text("app_identifier") or (None if parts is None else parts["name"]),
        version=app.text("app_version") or (None if parts is None else parts["version"]),
        build=app.text("app_build") or build or (dist if isinstance(dist, str) else None),
        code_type=arch,
        launch_time=app.text("app_start_time"),
    )


def read_system(
    body: ObjectReader, app: ObjectReader, device: ObjectReader, system: ObjectReader
) -> ReportedSystem:
    """Return the machine and its system; a user's id becomes a hash."""
    name, version = system.text("name"), system.text("version")
    key = app.text("device_app_hash")
    user = body.inner("user")
    identity = user.left.get("id")
    if key is None and isinstance(identity, str | int) and not isinstance(identity, bool):
        key = user_key(str(identity)) if str(identity) else None
        del user.left["id"]
    return ReportedSystem(
        model=device.text("model"),
        os_name=" ".join(one for one in (name, version) if one) or None,
        os_build=system.text("build") or system.text("build_number"),
        crash_reporter_key=key,
    )


def user_key(text: str) -> str:
    """Return the key of a device for a user's id, which is trimmed."""
    return blake2b(f"user\0{text.strip()}".encode("utf-8", "replace"), digest_size=16).hexdigest()
