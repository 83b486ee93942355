"""From a file's bytes to the reports in it, of whatever kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol

from machtrace.errors import FormatError
from machtrace.model.report import Report
from machtrace.report.several import following, listed
from machtrace.report.source import ReportSource


class ReportReader(Protocol):
    """A module that reads one kind."""

    def recognises(self, source: ReportSource) -> bool:
        """Whether the bytes are of this kind; never by the file's name. May raise FormatError."""

    def read(self, source: ReportSource) -> tuple[Report, ...]:
        """The reports in it.

        Raises:
            FormatError: nothing could be made of it.
        """


READERS: tuple[str, ...] = (
    "machtrace.report.plcrash.reader",
    "machtrace.report.machtrace_json.document",
    "machtrace.report.ips.reader",
    "machtrace.report.kscrash.reader",
    "machtrace.report.metrickit.reader",
    "machtrace.report.sample.reader",
    "machtrace.report.spindump.reader",
    "machtrace.report.crash.reader",
    "machtrace.report.lldb_backtrace.reader",
    "machtrace.report.call_stack_symbols.reader",
)
"""The modules, in the order in which they are asked: the surest marks first."""
_OF_ONE_DOCUMENT = frozenset(
    {
        "machtrace.report.machtrace_json.document",
        "machtrace.report.kscrash.reader",
        "machtrace.report.metrickit.reader",
    }
)
"""Those that read the first document of a file, and nothing that follows."""
AFTER = "after"
"""The detail of what follows a report in its file and is none: its text."""


@dataclass(frozen=True, slots=True)
class ReportContents:
    """The reports of a file."""

    reports: tuple[Report, ...]
    reader: str
    """The module that read them."""


def read_source(source: ReportSource) -> ReportContents:
    """The reports in ``source``: several in lists of them, where one follows another, and in
    payloads of several diagnostics.

    Raises:
        FormatError: it is empty, of no kind that is known, or nothing could be made of it.
    """
    if not source.data.strip(b"\0 \t\r\n"):
        raise FormatError(
            "there is nothing in it", source=source.name, offset=0, remedy="copy the file again"
        )
    first: FormatError | None = None
    for name in READERS:
        reader: ReportReader = import_module(name)
        try:
            if reader.recognises(source):
                found = ReportContents(reader.read(source), name)
                return _with_following(source, found) if name in _OF_ONE_DOCUMENT else found
        except FormatError as error:
            first = first or error
    if first is not None:
        raise first
    several = [contents for one in listed(source) if (contents := _read_one(one)) is not None]
    if several:
        reports = tuple(report for contents in several for report in contents.reports)
        return ReportContents(reports, several[0].reader)
    raise FormatError(
        "no report of a kind that is known",
        source=source.name,
        offset=0,
        remedy="give an .ips, .crash, MetricKit, KSCrash, .plcrash, sample or spindump report, or"
        " lines of callStackSymbols or of lldb's bt",
    )


def _with_following(source: ReportSource, found: ReportContents) -> ReportContents:
    """The reports, and those that follow; what is none is kept with the one before it."""
    reports = [*found.reports]
    for one in following(source):
        contents = _read_one(one)
        if contents is not None:
            reports += contents.reports
        elif reports:
            before = reports[-1]
            text = before.details.get(AFTER)
            joined = f"{text}\n{one.text}" if isinstance(text, str) else one.text
            warning = "what follows it in the file is no report; it was kept"
            reports[-1] = replace(
                before,
                details={**before.details, AFTER: joined},
                warnings=tuple(dict.fromkeys((*before.warnings, warning))),
            )
    return ReportContents(tuple(reports), found.reader)


def _read_one(source: ReportSource) -> ReportContents | None:
    """The reports of one document of several; None where it is none."""
    for name in READERS:
        reader: ReportReader = import_module(name)
        try:
            if reader.recognises(source):
                return ReportContents(reader.read(source), name)
        except FormatError:
            return None
    return None
