"""Which body an .ips file has, and what it says."""

from __future__ import annotations

from dataclasses import replace

from machtrace.errors import FormatError
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_process import Incident
from machtrace.report.ips.crash_body import read_crash
from machtrace.report.source import ReportSource
from machtrace.report.spindump.reader import is_spindump, read_text
from machtrace.report.taking import Taking

_HEADER = frozenset({"bug_type", "incident_id", "os_version"})
_BODY = frozenset({"usedImages", "threads", "procName"})


def recognises(source: ReportSource) -> bool:
    """Whether a header of .ips comes first; or a body whose header was cut off."""
    documents = source.documents
    if not documents or not isinstance(documents[0].value, dict):
        return False
    first = documents[0].value
    return len(_HEADER & first.keys()) > 1 or len(_BODY & first.keys()) > 1


def read(source: ReportSource) -> tuple[Report, ...]:
    """The one report in it."""
    warnings = [text for document in source.documents for text in document.warnings]
    first = Taking.of(source.documents[0].value, "the header", warnings)
    if len(_BODY & first.left.keys()) > 1:
        first.where = ""
        incident = Incident(id=first.text("incident"), kind=first.text("bug_type"))
        return (read_crash(incident, first),)
    incident = Incident(
        id=first.text("incident_id"), kind=first.text("bug_type"), details=first.details()
    )
    if len(source.documents) > 1:
        return (read_crash(incident, Taking.of(source.documents[1].value, "", warnings)),)
    return (_without_body(source, incident, warnings),)


def _without_body(source: ReportSource, incident: Incident, warnings: list[str]) -> Report:
    rest = source.rest.strip()
    if rest.startswith("{"):
        raise FormatError("the body is no JSON", source=source.name, offset=source.documents[0].end)
    if not rest:
        warnings.append("there is a header and no body")
        return Report(kind=ReportKind.APPLE_IPS, incident=incident, warnings=tuple(warnings))
    if is_spindump(rest):
        found = read_text(rest)
        said = replace(
            incident, time=found.incident.time, kind=found.incident.kind or incident.kind
        )
        said = replace(said, report_version=found.incident.report_version)
        details = {**incident.details, "bug_type": incident.kind}
        return replace(found, incident=replace(said, details=details), warnings=tuple(warnings))
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=incident,
        details={"text": rest},
        warnings=(*warnings, "the body is text"),
    )
