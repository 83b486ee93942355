"""From a file's bytes to the reports in it, of whatever kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol

from machtrace.errors import FormatError
from machtrace.model.report import Report
from machtrace.reports.several import Part, following, listed
from machtrace.reports.source import ReportSource


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
    "machtrace.reports.plcrash.reader",
    "machtrace.reports.machtrace_json",
    "machtrace.reports.swift.json_reader",
    "machtrace.reports.ips.reader",
    "machtrace.reports.kscrash.reader",
    "machtrace.reports.metrickit.reader",
    "machtrace.reports.sample",
    "machtrace.reports.spindump",
    "machtrace.reports.swift.text_reader",
    "machtrace.reports.crash.reader",
    "machtrace.reports.backtraces.lldb",
    "machtrace.reports.backtraces.sanitizer",
    "machtrace.reports.backtraces.gdb",
    "machtrace.reports.backtraces.nsthread",
)
"""The modules, in the order in which they are asked: the surest marks first."""
_OF_ONE_DOCUMENT = frozenset(
    {
        "machtrace.reports.machtrace_json",
        "machtrace.reports.swift.json_reader",
        "machtrace.reports.kscrash.reader",
        "machtrace.reports.metrickit.reader",
    }
)
"""Those that read the first document of a file, and nothing that follows."""
_OF_DOCUMENTS = tuple(
    name for name in READERS if name in {*_OF_ONE_DOCUMENT, "machtrace.reports.ips.reader"}
)
AFTER = "after"
"""The detail of what follows a report in its file and is none: its text."""


@dataclass(frozen=True, slots=True)
class ReportContents:
    """The reports of a file."""

    reports: tuple[Report, ...]
    reader: str
    """The module that read them."""


def read_source(source: ReportSource) -> ReportContents:
    """The reports in ``source``.

    There are several in lists of them, where one follows another, and in payloads of MetricKit.

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
                if name in _OF_ONE_DOCUMENT:
                    return _together(following(source), source.name, found)
                return found
        except FormatError as error:
            first = first or error
    if first is not None:
        raise first
    several = _together(listed(source), source.name, ReportContents((), ""))
    if several.reports:
        return several
    raise FormatError(
        "no report of a kind that is known",
        source=source.name,
        offset=0,
        remedy="give an .ips, .crash, MetricKit, KSCrash, .plcrash, sample or spindump report, what"
        " a sanitizer or Swift's runtime wrote, or lines of callStackSymbols, lldb's or gdb's bt",
    )


def _together(parts: Iterable[Part], name: str, found: ReportContents) -> ReportContents:
    """The reports, and those of the parts; what is none is kept with the one before it."""
    reports, reader = [*found.reports], found.reader
    kept: dict[int, list[str]] = {}
    for part in parts:
        contents = _read_one(part.source(name)) if part.may_be_report else None
        if contents is None:
            kept.setdefault(max(len(reports) - 1, 0), []).append(part.text)
        else:
            reports += contents.reports
            reader = reader or contents.reader
    for place, texts in kept.items() if reports else ():
        reports[place] = replace(
            reports[place],
            details={**reports[place].details, AFTER: "\n".join(texts)},
            warnings=(*reports[place].warnings, "there is more in the file, which is no report"),
        )
    return ReportContents(tuple(reports), reader)


def _read_one(source: ReportSource) -> ReportContents | None:
    """The reports of one document of several; None where it is none."""
    for name in _OF_DOCUMENTS:
        reader: ReportReader = import_module(name)
        try:
            if reader.recognises(source):
                return ReportContents(reader.read(source), name)
        except FormatError:
            return None
    return None
