"""Labels without a field in the model, and their keys in .ips files.

A value that reads back as written goes under the key, so that both formats can show it; any other
stays under its label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from machtrace.model.report import Details, JsonValue
from machtrace.reports.crash.layouts import BACKTRACE
from machtrace.reports.json_writer import as_text

_SECONDS = re.compile(r"(?P<count>[0-9]{1,15}) seconds")
_BUILD_INFO = re.compile(
    r"(?P<ProjectName>[^~]{1,200})-(?P<SourceVersion>[^-~]{1,80})~(?P<BuildVersion>[^ ~]{1,80})"
    r"(?: \((?P<ProductBuildVersion>[^()]{1,80})\))?"
)
_CALLS = ("task_for_pid", "thread_create", "thread_set_state")
_CALLERS = {
    "targeted": "Calls made by other processes targeting this process",
    "caller": "Calls made by this process",
    "system": "Calls made by all processes on this machine",
}
_CALL_COUNT = re.compile(r"    (?P<call>[a-z_]{1,40}): (?P<count>[0-9]{1,15})")


class LabelDetail(NamedTuple):
    """A label and the key with the same meaning."""

    label: str
    path: tuple[str, ...]
    """The key, preceded by the keys of its enclosing objects."""
    parse: Callable[[str], JsonValue]
    """Convert a label's value to the key's; None if not understood."""
    format: Callable[[JsonValue], str | None]
    """Convert the key's value to the label's; None if unexpected. A section begins with a line end.
    """


def _text(value: str) -> JsonValue:
    return value or None


def _as_text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(pattern: re.Pattern[str]) -> Callable[[str], JsonValue]:
    def parse(value: str) -> JsonValue:
        match = pattern.fullmatch(value)
        return None if match is None else int(match["count"])

    return parse


def _as_seconds(value: JsonValue) -> str | None:
    return f"{value} seconds" if type(value) is int else None


def _flag(word: str) -> tuple[Callable[[str], JsonValue], Callable[[JsonValue], str | None]]:
    return lambda value: 1 if value == word else None, lambda value: word if value else None


def _bridge(value: str) -> JsonValue:
    train, bracket, build = value.partition(" (")
    return {"train": train, "build": build[:-1]} if bracket and build.endswith(")") else None


def _as_bridge(value: JsonValue) -> str | None:
    if not isinstance(value, dict):
        return None
    train, build, status = value.get("train"), value.get("build"), value.get("status")
    if isinstance(train, str) and isinstance(build, str):
        return f"{train} ({build})"
    return status if isinstance(status, str) else None


def _build_info(value: str) -> JsonValue:
    match = _BUILD_INFO.fullmatch(value) if len(value) < 1 << 10 else None
    if match is None:
        return None
    return {key: one for key, one in match.groupdict().items() if one is not None}


def _as_build_info(value: JsonValue) -> str | None:
    if not isinstance(value, dict) or not value:
        return None
    name, source, build, product = (
        as_text(value.get(key, "Unknown"))
        for key in ("ProjectName", "SourceVersion", "BuildVersion", "ProductBuildVersion")
    )
    known = f"{name}-{source}~{build}"
    return f"{known} ({product})" if "ProductBuildVersion" in value else known


def _section(value: str) -> JsonValue:
    return value[1:] if value.startswith("\n") and value[1:] else None


def _as_section(value: JsonValue) -> str | None:
    return f"\n{value.rstrip(chr(10))}" if isinstance(value, str) and value.strip() else None


def _as_region(value: JsonValue) -> str | None:
    return value.rstrip("\n") if isinstance(value, str) and value.strip() else None


def _section_list(value: str) -> JsonValue:
    return [*value[1:].split("\n")] if value.startswith("\n") else None


def _as_section_list(value: JsonValue) -> str | None:
    if not isinstance(value, list) or not value:
        return None
    lines = [one for one in value if isinstance(one, str)]
    return "\n" + "\n".join(lines) if len(lines) == len(value) else None


def _modifications(value: str) -> JsonValue:
    counts: dict[str, JsonValue] = {}
    names = {f"  {text}:": key for key, text in _CALLERS.items()}
    calls: dict[str, JsonValue] = {}
    for line in value[1:].split("\n"):
        if line in names:
            calls = {}
            counts[names[line]] = calls
        elif (match := _CALL_COUNT.fullmatch(line)) is not None:
            calls[match["call"]] = int(match["count"])
    return counts or None


def _as_modifications(value: JsonValue) -> str | None:
    if not isinstance(value, dict):
        return None
    lines: list[str] = []
    for key, text in _CALLERS.items():
        calls = value.get(key)
        if isinstance(calls, dict):
            lines.append(f"  {text}:")
            lines += (f"    {call}: {as_text(calls[call])}" for call in _CALLS if call in calls)
    return "\n" + "\n".join(lines) if lines else None


_BETA = _flag("YES")
DETAILS: tuple[LabelDetail, ...] = (
    LabelDetail("Distributor ID", ("storeInfo", "distributorID"), _text, _as_text),
    LabelDetail("AppStoreTools", ("bundleInfo", "DTAppStoreToolsBuild"), _text, _as_text),
    LabelDetail("AppVariant", ("storeInfo", "applicationVariant"), _text, _as_text),
    LabelDetail("App Item ID", ("storeInfo", "itemID"), _text, _as_text),
    LabelDetail(
        "App External ID", ("storeInfo", "softwareVersionExternalIdentifier"), _text, _as_text
    ),
    LabelDetail("Beta", ("isBeta",), *_BETA),
    LabelDetail("Device Model", ("codeName",), _text, _as_text),
    LabelDetail("UDID", ("systemID",), _text, _as_text),
    LabelDetail("Build Info", ("buildInfo",), _build_info, _as_build_info),
    LabelDetail("PlugIn Path", ("plugin", "ExecutablePath"), _text, _as_text),
    LabelDetail("PlugIn Identifier", ("plugin", "Identifier"), _text, _as_text),
    LabelDetail("Bridge OS Version", ("bridgeVersion",), _bridge, _as_bridge),
    LabelDetail("Sleep/Wake UUID", ("sleepWakeUUID",), _text, _as_text),
    LabelDetail("Time Awake Since Boot", ("uptime",), _number(_SECONDS), _as_seconds),
    LabelDetail("Time Since Wake", ("wakeTime",), _number(_SECONDS), _as_seconds),
    LabelDetail("System Integrity Protection", ("sip",), _text, _as_text),
    LabelDetail("Exception Reason", ("exceptionReason", "composed_message"), _text, _as_text),
    LabelDetail("VM Region Info", ("vmRegionInfo",), _text, _as_region),
    LabelDetail("Kernel Triage", ("ktriageinfo",), _section, _as_section),
    LabelDetail("VM Region Summary", ("vmSummary",), _section, _as_section),
    LabelDetail("Notes", ("reportNotes",), _section_list, _as_section_list),
    LabelDetail(
        "Error Formulating Crash Report", ("reportNotes",), _section_list, _as_section_list
    ),
    LabelDetail(
        "Application Specific Signatures", ("asiSignatures",), _section_list, _as_section_list
    ),
    LabelDetail("External Modification Summary", ("extMods",), _modifications, _as_modifications),
)
BY_LABEL: Mapping[str, LabelDetail] = {detail.label: detail for detail in DETAILS}


def at(details: Details, path: tuple[str, ...]) -> JsonValue:
    """Return the value at the path; None if absent."""
    value: JsonValue = details.get(path[0])
    for key in path[1:]:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def put(details: dict[str, JsonValue], path: tuple[str, ...], value: JsonValue) -> None:
    """Store ``value`` at the path, unless something else is in the way."""
    inner = details
    for key in path[:-1]:
        child = inner.setdefault(key, {})
        if not isinstance(child, dict):
            return
        inner = child
    inner.setdefault(path[-1], value)


def backtraces(details: Details) -> Iterator[tuple[str, str]]:
    """Yield the sections of ``asiBacktraces``: numbered labels and values."""
    sections = details.get("asiBacktraces")
    if isinstance(sections, list):
        for number, text in enumerate(sections):
            if isinstance(text, str):
                yield f"{BACKTRACE} {number}", "\n" + text.rstrip("\n")
