"""From a file's bytes to the reports in it, of whatever kind."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from machtrace.errors import FormatError
from machtrace.model.report import Report
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


@dataclass(frozen=True, slots=True)
class ReportContents:
    """The reports of a file."""

    reports: tuple[Report, ...]
    reader: str
    """The module that read them."""


def read_source(source: ReportSource) -> ReportContents:
    """The reports in ``source``: one, except in a MetricKit payload of several diagnostics.

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
                return ReportContents(reader.read(source), name)
        except FormatError as error:
            first = first or error
    if first is not None:
        raise first
    raise FormatError(
        "no report of a kind that is known",
        source=source.name,
        offset=0,
        remedy="give an .ips, .crash, MetricKit, KSCrash, .plcrash, sample or spindump report, or"
        " lines of callStackSymbols or of lldb's bt",
    )
