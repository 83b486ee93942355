"""The document: reports, and the schema's version."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report
from machtrace.reports.json_writer import dumps
from machtrace.reports.records import form_of
from machtrace.reports.values import UnfitError, shown
from machtrace.reports.source import ReportSource

REPORT_SCHEMA = 1
"""Raised when a reader of the old form would misread the new one."""

_VERSION = "report_schema"


def reports_json(reports: Sequence[Report]) -> str:
    """The document's text, in ASCII, a line for each report.

    A byte of a report that was no text is a lone surrogate in a string, escaped as JSON has it.
    """
    write = form_of(Report).write
    lines = ",\n".join(dumps(write(report)) for report in reports)
    return f'{{"{_VERSION}": {REPORT_SCHEMA}, "reports": [\n{lines}\n]}}\n'


def recognises(source: ReportSource) -> bool:
    """Whether it says which version of the schema it keeps to."""
    documents = source.documents
    return (
        bool(documents)
        and isinstance(documents[0].value, dict)
        and (_VERSION in documents[0].value)
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """The reports, equal to those that were written.

    Raises:
        FormatError: the schema is another, or something is not as it says.
    """
    value = source.documents[0].value
    version = value.get(_VERSION) if isinstance(value, dict) else None
    if version != REPORT_SCHEMA or not isinstance(value, dict):
        raise FormatError(
            f"schema {shown(version)}",
            source=source.name,
            offset=0,
            remedy=f"read it with the machtrace that wrote it; this one reads {REPORT_SCHEMA}",
        )
    return tuple(
        _report(one, f"report {number}", source)
        for number, one in enumerate(_reports(value, source), 1)
    )


def _reports(value: dict[str, JsonValue], source: ReportSource) -> list[JsonValue]:
    reports = value.get("reports")
    if not isinstance(reports, list):
        raise source.error("no list of reports")
    return reports


def _report(value: JsonValue, which: str, source: ReportSource) -> Report:
    try:
        report = form_of(Report).read(value)
    except UnfitError as error:
        raise source.error(f"{which}: {error}") from error
    assert isinstance(report, Report)  # noqa: S101 - for the type checker: it is Report's form
    return report
