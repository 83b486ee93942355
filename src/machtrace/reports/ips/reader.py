"""Reader of .ips files, by the kind of body.

The body of a crash has bug type 309 or 109, or any other and a list of threads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
    ReportKind,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.crash.reader import is_crash_text
from machtrace.reports.crash.reader import read_text as read_crash_text
from machtrace.reports.ips.documents import IpsPart, begins_report, full_report, ips_parts
from machtrace.reports.ips.fields import EXCEPTION, PROCESS, SYSTEM, TERMINATION, take
from machtrace.reports.ips.images import read_images
from machtrace.reports.ips.system_reports import (
    is_jetsam,
    is_panic,
    is_stackshot,
    read_jetsam,
    read_panic,
    read_stackshot,
)
from machtrace.reports.ips.threads import FrameReader, read_threads
from machtrace.reports.log_lines import accessed_address, last_words
from machtrace.reports.source import ReportSource
from machtrace.reports.spindump import is_spindump, read_text

AFTER_BODY = "after body"
"""The detail of a text after the body: a Mac's description of itself."""
TEXT = "text"
"""The detail of a text body of an unknown kind."""
BODY = "body"
"""The detail of a JSON body that is not an object, or empty."""
HEADER = "header"
"""The detail of an incident without a header: null."""


def recognises(source: ReportSource) -> bool:
    """Return whether an .ips header comes first, or a body without its header.

    Also a macOS text with the *Full Report* below it, which has everything in the text.
    """
    if source.documents:
        return begins_report(source)
    return full_report(source.text) is not None


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its reports: one, unless files were concatenated."""
    start = None if source.documents else full_report(source.text)
    return tuple(_report(part) for part in ips_parts(source, start))


def _report(part: IpsPart) -> Report:
    warnings = [*part.warnings]
    incident = _incident(part, warnings)
    if part.body is None:
        return _without_body(part.text, incident, warnings)
    if not isinstance(part.body, dict) or not part.body:
        warnings.append("the body is not an object, or empty")
        details: dict[str, JsonValue] = {BODY: part.body}
        return Report(
            kind=ReportKind.APPLE_IPS,
            incident=incident,
            details=_after(details, part),
            warnings=tuple(warnings),
        )
    body = dict(part.body)
    if is_stackshot(body):
        report = read_stackshot(incident, body, warnings)
    elif is_jetsam(body):
        report = read_jetsam(incident, body, warnings)
    elif is_panic(body):
        report = read_panic(incident, body, warnings)
    else:
        report = read_crash(incident, ObjectReader(body, "", warnings))
    return replace(report, details=_after(dict(report.details), part)) if part.text else report


def _incident(part: IpsPart, warnings: list[str]) -> Incident:
    if part.header is None:
        entry = ObjectReader.of(part.body, "the body", [])
        return Incident(
            id=entry.text("incident"), kind=entry.text("bug_type"), details={HEADER: None}
        )
    entry = ObjectReader.of(part.header, "the header", warnings)
    return Incident(
        id=entry.text("incident_id"), kind=entry.text("bug_type"), details=entry.details()
    )


def _after(details: dict[str, JsonValue], part: IpsPart) -> dict[str, JsonValue]:
    if part.text:
        details[AFTER_BODY] = part.text
    return details


def _without_body(rest: str, incident: Incident, warnings: list[str]) -> Report:
    stamp = incident.details.get("timestamp")
    timed = replace(incident, time=stamp) if isinstance(stamp, str) else incident
    if not rest:
        warnings.append("the header has no body")
        return Report(kind=ReportKind.APPLE_IPS, incident=timed, warnings=tuple(warnings))
    if is_spindump(rest):
        report = read_text(rest)
        incident_of_text = replace(
            incident, time=report.incident.time, kind=report.incident.kind or incident.kind
        )
        incident_of_text = replace(incident_of_text, report_version=report.incident.report_version)
        details = {**incident.details, "bug_type": incident.kind}
        return replace(
            report, incident=replace(incident_of_text, details=details), warnings=tuple(warnings)
        )
    if is_crash_text(rest):
        return _with_header(read_crash_text(rest), incident, warnings)
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=timed,
        details={TEXT: rest},
        warnings=(*warnings, "the body is text"),
    )


def _with_header(report: Report, header: Incident, warnings: list[str]) -> Report:
    """Add the header's facts to a text report, as iOS wrote until 14 and Xcode still exports."""
    details = dict(header.details)
    if header.id is not None and header.id != report.incident.id:
        details["incident_id"] = header.id
    incident = replace(report.incident, kind=header.kind, details=details)
    return replace(report, incident=incident, warnings=(*warnings, *report.warnings))


Information = tuple[tuple[str, tuple[str, ...]], ...]


def read_crash(incident: Incident, body: ObjectReader) -> Report:
    """Return the report; ``incident`` is from the header.

    Redundant keys, such as ``faultingThread``, stay in the details.
    """
    images = read_images(body.left, body.warnings)
    frames = FrameReader(images, body.warnings)
    threads = read_threads(body.left, frames, body.warnings)
    if not any(thread.crashed for thread in threads):
        faulting = body.left.get("faultingThread")
        if type(faulting) is int and 0 <= faulting < len(threads):
            body.warnings.append(
                f"no thread is marked as crashed; thread {faulting} is taken from faultingThread"
            )
    information = _application_information(body)
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=_with_time(incident, body),
        process=ReportedProcess(**take(body, PROCESS)),
        system=ReportedSystem(**take(body, SYSTEM)),
        exception=_exception(body),
        termination=_termination(body),
        language_exception=_language_exception(body, frames, information),
        application_information=information,
        threads=threads,
        images=images,
        details=body.details(),
        warnings=tuple(body.warnings),
    )


def _with_time(incident: Incident, body: ObjectReader) -> Incident:
    """Return the incident with the body's time, else the header's."""
    stamp = incident.details.get("timestamp")
    time = body.left.get("captureTime")
    if isinstance(time, str) and time != stamp:
        del body.left["captureTime"]
        return replace(incident, time=time)
    return replace(incident, time=stamp) if isinstance(stamp, str) else incident


def _exception(body: ObjectReader) -> ReportedException | None:
    entry = body.left.get("exception")
    if not isinstance(entry, dict) or not entry:
        return None
    inner = body.inner("exception")
    codes = inner.left.get("rawCodes")
    raw_codes: tuple[int, ...] = ()
    if isinstance(codes, list) and codes:
        numbers = tuple(code for code in codes if type(code) is int)
        if len(numbers) == len(codes):
            raw_codes = numbers
            del inner.left["rawCodes"]
    fields = take(body, EXCEPTION)
    address = accessed_address(fields.get("subtype") or fields.get("codes"))
    return ReportedException(**fields, raw_codes=raw_codes, address=address)


def _termination(body: ObjectReader) -> ReportedTermination | None:
    entry = body.left.get("termination")
    if not isinstance(entry, dict) or not entry:
        return None
    inner = body.inner("termination")
    reasons: tuple[str, ...] = ()
    listed = inner.left.get("reasons")
    if isinstance(listed, list) and listed:
        texts = tuple(one for one in listed if isinstance(one, str))
        if len(texts) == len(listed):
            reasons = texts
            del inner.left["reasons"]
    return ReportedTermination(**take(body, TERMINATION), reasons=reasons)


def _language_exception(
    body: ObjectReader, frames: FrameReader, information: Information
) -> LanguageException | None:
    """Return where it was thrown; name and reason stay in the details."""
    entries = body.left.get("lastExceptionBacktrace")
    stack: tuple[ReportedFrame, ...] = ()
    if isinstance(entries, list) and entries:
        del body.left["lastExceptionBacktrace"]
        stack = frames.read(entries, innermost=Adjustment.RETURN, where="lastExceptionBacktrace")
    name, reason = _name_and_reason(body.left.get("exceptionReason"))
    if name is None:
        words = last_words(text for _, texts in information for text in texts)
        name, reason = words or (None, None)
    if not stack and name is None:
        return None
    return LanguageException(name=name, reason=reason, frames=stack)


def _name_and_reason(reason: Any) -> tuple[str | None, str | None]:  # noqa: ANN401 - of JSON, any value
    if not isinstance(reason, dict):
        return None, None
    name, message = reason.get("name"), reason.get("composed_message")
    return (
        name if isinstance(name, str) else None,
        message if isinstance(message, str) else None,
    )


def _application_information(body: ObjectReader) -> Information:
    entries = body.left.get("asi")
    if not isinstance(entries, dict) or not entries:
        return ()
    information: list[tuple[str, tuple[str, ...]]] = []
    for image, image_texts in entries.items():
        if not isinstance(image_texts, list):
            return ()
        texts = tuple(text for text in image_texts if isinstance(text, str))
        if len(texts) != len(image_texts):
            return ()
        information.append((image, texts))
    del body.left["asi"]
    return tuple(information)
