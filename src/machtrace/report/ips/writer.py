"""A report as an .ips file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment
from machtrace.report.ips.fields import EXCEPTION, PROCESS, SYSTEM, TERMINATION, in_order, put
from machtrace.report.ips.frames import frame_objects
from machtrace.report.ips.images import image_object
from machtrace.report.ips.threads import thread_object

_CRASH = "309"
_NO_IMAGE: dict[str, JsonValue] = {
    "size": 0,
    "source": "A",
    "base": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def write(reports: Sequence[Report]) -> str:
    """The texts of several, one after another."""
    return "\n".join(ips_text(report) for report in reports)


def ips_text(report: Report) -> str:
    """The file's text: the header's line, then the body, a line for each of its keys."""
    body = in_order(_body(report))
    lines = (f"  {_dumps(key)} : {_dumps(value)}" for key, value in body.items())
    return _dumps(_header(report)) + "\n{\n" + ",\n".join(lines) + "\n}\n"


def _dumps(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_text(text) else json.dumps(value)


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: bytes that were none are lone surrogates."""
    return not any("\ud800" <= one <= "\udfff" for one in text)


def _header(report: Report) -> dict[str, JsonValue]:
    incident, process, system = report.incident, report.process, report.system
    made: dict[str, JsonValue] = {}
    if report.kind is not ReportKind.APPLE_IPS:
        made = {
            "app_name": process.name,
            "timestamp": incident.time,
            "app_version": process.version,
            "build_version": process.build,
            "bundleID": process.identifier,
            "os_version": _os_version(system.os_name, system.os_build),
            "name": process.name,
        }
    header = made | dict(incident.details)
    header["bug_type"] = incident.kind if report.kind is ReportKind.APPLE_IPS else _CRASH
    header["incident_id"] = incident.id
    return {key: value for key, value in header.items() if value is not None}


def _os_version(name: str | None, build: str | None) -> str | None:
    return f"{name} ({build})" if name and build else name


def _body(report: Report) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = dict(report.details)
    if report.kind is ReportKind.APPLE_IPS and not report.threads and not report.images:
        return body
    put(body, PROCESS, report.process)
    put(body, SYSTEM, report.system)
    if report.incident.time is not None:
        body["captureTime"] = report.incident.time
    for key, value in (("incident", report.incident.id), ("bug_type", report.incident.kind)):
        if value is not None:
            body.setdefault(key, value)
    _put_exceptions(body, report)
    body["threads"] = [thread_object(thread, len(report.images)) for thread in report.threads]
    if report.crashed_thread is not None:
        body.setdefault("faultingThread", report.crashed_thread.index)
    images: list[JsonValue] = [image_object(image) for image in report.images]
    if _needs_absolute(report):
        images.append(dict(_NO_IMAGE))
    body["usedImages"] = images
    return body


def _put_exceptions(body: dict[str, JsonValue], report: Report) -> None:
    if report.exception is not None:
        put(body, EXCEPTION, report.exception)
        _put_list(body, "exception", "rawCodes", list(report.exception.raw_codes))
    if report.termination is not None:
        put(body, TERMINATION, report.termination)
        _put_list(body, "termination", "reasons", list(report.termination.reasons))
    if report.language_exception is not None and report.language_exception.frames:
        body["lastExceptionBacktrace"] = frame_objects(
            report.language_exception.frames,
            innermost=Adjustment.RETURN,
            absolute=len(report.images),
        )
    if report.application_information:
        body["asi"] = {image: list(said) for image, said in report.application_information}


def _put_list(body: dict[str, JsonValue], key: str, name: str, items: list[JsonValue]) -> None:
    inner = body.get(key, {})
    if items and isinstance(inner, dict):
        body[key] = {**inner, name: items}


def _needs_absolute(report: Report) -> bool:
    stacks = [thread.frames for thread in report.threads]
    if report.language_exception is not None:
        stacks.append(report.language_exception.frames)
    return any(
        frame.address is not None and (frame.image is None or frame.offset is None)
        for frames in stacks
        for frame in frames
    )
