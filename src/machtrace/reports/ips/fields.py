"""Keys of a crash report's body, and their fields in the model.

One table serves reading and writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from machtrace.model.report import JsonValue
from machtrace.reports.consume import ObjectReader


class FieldKind(Enum):
    """The type that a value must have."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"


class BodyField(NamedTuple):
    """A field, and its key in the body."""

    attribute: str
    path: tuple[str, ...]
    """The key, preceded by the keys of its enclosing objects."""
    kind: FieldKind = FieldKind.TEXT


_TEXT, _INTEGER, _BOOLEAN = FieldKind

PROCESS = (
    BodyField("name", ("procName",)),
    BodyField("pid", ("pid",), _INTEGER),
    BodyField("path", ("procPath",)),
    BodyField("identifier", ("bundleInfo", "CFBundleIdentifier")),
    BodyField("version", ("bundleInfo", "CFBundleShortVersionString")),
    BodyField("build", ("bundleInfo", "CFBundleVersion")),
    BodyField("code_type", ("cpuType",)),
    BodyField("is_translated", ("translated",), _BOOLEAN),
    BodyField("role", ("procRole",)),
    BodyField("parent", ("parentProc",)),
    BodyField("parent_pid", ("parentPid",), _INTEGER),
    BodyField("coalition", ("coalitionName",)),
    BodyField("coalition_id", ("coalitionID",), _INTEGER),
    BodyField("user_id", ("userID",), _INTEGER),
    BodyField("launch_time", ("procLaunch",)),
)
SYSTEM = (
    BodyField("model", ("modelCode",)),
    BodyField("os_name", ("osVersion", "train")),
    BodyField("os_build", ("osVersion", "build")),
    BodyField("release_type", ("osVersion", "releaseType")),
    BodyField("baseband_version", ("basebandVersion",)),
    BodyField("crash_reporter_key", ("crashReporterKey",)),
)
EXCEPTION = (
    BodyField("type", ("exception", "type")),
    BodyField("signal", ("exception", "signal")),
    BodyField("codes", ("exception", "codes")),
    BodyField("subtype", ("exception", "subtype")),
    BodyField("message", ("exception", "message")),
)
TERMINATION = (
    BodyField("namespace", ("termination", "namespace")),
    BodyField("code", ("termination", "code"), _INTEGER),
    BodyField("indicator", ("termination", "indicator")),
    BodyField("by_process", ("termination", "byProc")),
    BodyField("by_pid", ("termination", "byPid"), _INTEGER),
    BodyField("flags", ("termination", "flags"), _INTEGER),
)

ORDER = (
    *("uptime", "procRole", "version", "userID", "deployVersion", "modelCode", "coalitionID"),
    *("osVersion", "captureTime", "codeSigningMonitor", "incident", "pid", "translated", "cpuType"),
    *("roots_installed", "bug_type", "procLaunch", "procStartAbsTime", "procExitAbsTime"),
    *("procName", "procPath", "bundleInfo", "storeInfo", "parentProc", "parentPid"),
    *("coalitionName", "crashReporterKey", "basebandVersion", "exception", "termination"),
    *("ktriageinfo", "asi", "lastExceptionBacktrace", "faultingThread", "threads", "usedImages"),
    *("sharedCache", "vmSummary", "legacyInfo", "trialInfo", "reportNotes"),
)
"""The order of keys in Apple's files; others follow in their own order."""


def take(body: ObjectReader, fields: tuple[BodyField, ...]) -> dict[str, Any]:
    """Consume the values of present fields, by attribute."""
    values: dict[str, Any] = {}
    for field in fields:
        inner, key = body, field.path[-1]
        for name in field.path[:-1]:
            inner = inner.inner(name)
        if field.kind is _TEXT:
            values[field.attribute] = inner.text(key)
        elif field.kind is _INTEGER:
            values[field.attribute] = inner.integer(key)
        else:
            values[field.attribute] = inner.boolean(key)
    return {name: value for name, value in values.items() if value is not None}


def put(body: dict[str, JsonValue], fields: tuple[BodyField, ...], value: object) -> None:
    """Write the present fields of ``value`` into ``body``."""
    for field in fields:
        attribute = getattr(value, field.attribute)
        if attribute is None:
            continue
        inner = body
        for name in field.path[:-1]:
            there = inner.get(name, {})
            if not isinstance(there, dict):  # the source's own value there is preserved
                break
            inner[name] = inner = dict(there)
        else:
            inner[field.path[-1]] = attribute


def in_order(body: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the same entries, Apple's keys first."""
    known = {key: body[key] for key in ORDER if key in body}
    return known | {key: value for key, value in body.items() if key not in known}
