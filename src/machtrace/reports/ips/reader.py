"""Reader of .ips files, by the kind of body."""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Incident, Report, ReportKind
from machtrace.reports.consume import ObjectReader
from machtrace.reports.crash.reader import is_crash_text
from machtrace.reports.crash.reader import read_text as read_crash_text
from machtrace.reports.ips.crash_body import read_crash
from machtrace.reports.ips.documents import IpsPart, begins_report, full_report, ips_parts
from machtrace.reports.ips.system_reports import (
    is_jetsam,
    is_panic,
    is_stackshot,
    read_jetsam,
    read_panic,
    read_stackshot,
)
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
        taking = ObjectReader.of(part.body, "the body", [])
        return Incident(
            id=taking.text("incident"), kind=taking.text("bug_type"), details={HEADER: None}
        )
    taking = ObjectReader.of(part.header, "the header", warnings)
    return Incident(
        id=taking.text("incident_id"), kind=taking.text("bug_type"), details=taking.details()
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
