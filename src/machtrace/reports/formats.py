"""The formats that reports are written in.

Also several files in one, as on standard output, and names as views show them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, TypeAlias

from machtrace.errors import ArgumentError
from machtrace.model.report import Report

_Write: TypeAlias = Callable[[Sequence[Report]], str | bytes]


class ReportFormat(NamedTuple):
    """A format to write."""

    name: str
    suffix: str
    """File suffix, with the dot."""
    home: str
    """The module and function that write it."""
    holds_many: bool
    """Whether one file can hold several reports."""
    between: bytes | None = b"\n"
    """The separator of concatenated files; None if they cannot be concatenated."""
    is_text: bool = True
    is_view: bool = False
    """Whether it is for viewing stacks rather than for storing a report: names are demangled."""

    def write(self, reports: Sequence[Report]) -> bytes:
        """Return the file's bytes; undecodable bytes of the source are reproduced."""
        module, _, function = self.home.partition(":")
        writer: _Write = getattr(import_module(module), function)
        written = writer(reports)
        return written if isinstance(written, bytes) else encoded(written)


def encoded(text: str) -> bytes:
    """Encode a text, reproducing bytes that were undecodable in the source."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


_STACKS = "machtrace.reports.stack_formats"

FORMATS: dict[str, ReportFormat] = {
    one.name: one
    for one in (
        ReportFormat("apple", ".crash", "machtrace.reports.crash.writer:write", holds_many=False),
        ReportFormat(
            "ips", ".ips", "machtrace.reports.ips.writer:write", holds_many=False, between=None
        ),
        ReportFormat(
            "json",
            ".json",
            "machtrace.reports.machtrace_json:reports_json",
            holds_many=True,
        ),
        ReportFormat("kscrash", ".crash", "machtrace.reports.kscrash.text:write", holds_many=False),
        ReportFormat("plcrash", ".crash", "machtrace.reports.plcrash.text:write", holds_many=False),
        ReportFormat("nsthread", ".txt", f"{_STACKS}:nsthread_text", holds_many=True),
        ReportFormat("bs", ".txt", f"{_STACKS}:bs_text", holds_many=True),
        ReportFormat(
            "lldb",
            ".txt",
            f"{_STACKS}:lldb_text",
            holds_many=True,
            is_view=True,
        ),
        ReportFormat(
            "sample",
            ".txt",
            f"{_STACKS}:sample_report",
            holds_many=False,
            is_view=True,
        ),
        ReportFormat(
            "folded",
            ".folded",
            f"{_STACKS}:folded_text",
            holds_many=True,
            between=b"",
            is_view=True,
        ),
        ReportFormat(
            "speedscope",
            ".speedscope.json",
            f"{_STACKS}:speedscope_json",
            holds_many=False,
            between=None,
            is_view=True,
        ),
        ReportFormat(
            "firefox",
            ".firefox.json",
            f"{_STACKS}:firefox_json",
            holds_many=False,
            between=None,
            is_view=True,
        ),
        ReportFormat(
            "pprof",
            ".pb.gz",
            f"{_STACKS}:pprof_data",
            holds_many=False,
            between=None,
            is_text=False,
            is_view=True,
        ),
        ReportFormat(
            "html", ".html", "machtrace.reports.html.page:write", holds_many=True, is_view=True
        ),
    )
}
"""Formats by name."""


def report_format(name: str) -> ReportFormat:
    """Return the format of this name.

    Raises:
        ArgumentError: it is unknown.
    """
    try:
        return FORMATS[name]
    except KeyError:
        names = ", ".join(FORMATS)
        raise ArgumentError(f"unknown format {name!r}", remedy=f"choose one of: {names}") from None


def write_reports(reports: Sequence[Report], name: str) -> bytes:
    """Return reports in the named format, as a file's bytes.

    Raises:
        ArgumentError: the format is unknown, or holds one report a file.
    """
    chosen = report_format(name)
    if chosen.holds_many or len(reports) == 1:
        return chosen.write(reports)
    if chosen.between is None:
        raise ArgumentError(
            f"a file of the format {name} holds one report, not {len(reports)}",
            remedy="write them to a folder with -o FOLDER, or choose another format",
        )
    return chosen.between.join(chosen.write([report]) for report in reports)


_JSON_END = b"\n]}\n"


class FileJoiner:
    """Concatenates files of a format whose ``between`` is not None."""

    def __init__(self, chosen: ReportFormat) -> None:
        self._between = chosen.between or b""
        self._is_document = chosen.name == "json"
        self._is_first = True

    def add(self, data: bytes) -> bytes:
        """Return a file's bytes as written after those before it."""
        is_first, self._is_first = self._is_first, False
        if not self._is_document:
            return data if is_first else self._between + data
        # One document for all: a first line, a line for each report, and a last line.
        data = data.removesuffix(_JSON_END)
        return data if is_first else b"," + data[data.index(b"\n") :]

    def end(self) -> bytes:
        """Return the bytes after the last file."""
        return _JSON_END if self._is_document and not self._is_first else b""


def as_shown(reports: Sequence[Report], chosen: ReportFormat) -> Sequence[Report]:
    """Return the reports with demangled names for views, else unchanged."""
    if not chosen.is_view:
        return reports
    from machtrace.symbolizer.demangled_reports import demangled_report

    return [demangled_report(report) for report in reports]
