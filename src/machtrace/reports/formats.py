"""The formats that reports are written in.

Files of reports that follow each other in one, as on standard output.

Reports as the formats that they are written in show names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, TypeAlias

from machtrace.errors import ArgumentError
from machtrace.model.report import Report

_Write: TypeAlias = Callable[[Sequence[Report]], str | bytes]


class ReportFormat(NamedTuple):
    """A format."""

    name: str
    suffix: str
    """Of files, with its dot."""
    home: str
    """The module and the function that write it."""
    holds_many: bool
    """Whether one file can be of several reports."""
    between: bytes | None = b"\n"
    """What parts such files where they follow each other in one; None where they cannot."""
    is_text: bool = True
    is_view: bool = False
    """Whether it is for looking at stacks and not for keeping a report: names are demangled."""

    def write(self, reports: Sequence[Report]) -> bytes:
        """The file's bytes; a text's odd bytes are what they were read from."""
        module, _, function = self.home.partition(":")
        writer: _Write = getattr(import_module(module), function)
        written = writer(reports)
        return written if isinstance(written, bytes) else encoded(written)


def encoded(text: str) -> bytes:
    """A text's bytes, with those that were no text when it was read as they were."""
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
"""By name."""


def report_format(name: str) -> ReportFormat:
    """The format of this name.

    Raises:
        ArgumentError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        names = ", ".join(FORMATS)
        raise ArgumentError(
            f"no format is called {name!r}", remedy=f"choose one of: {names}"
        ) from None


def write_reports(reports: Sequence[Report], name: str) -> bytes:
    """Reports in the format of this name, as a file's bytes.

    Raises:
        ArgumentError: there is no such format, or a file of it is of one report.
    """
    chosen = report_format(name)
    if chosen.holds_many or len(reports) == 1:
        return chosen.write(reports)
    if chosen.between is None:
        raise ArgumentError(
            f"a file of the format {name} is of one report, and there are {len(reports)}",
            remedy="write them to a folder, with -o FOLDER, or choose another format",
        )
    return chosen.between.join(chosen.write([report]) for report in reports)


_JSON_END = b"\n]}\n"


class FileJoiner:
    """What to write, file by file; the format's ``between`` is not None."""

    def __init__(self, chosen: ReportFormat) -> None:
        self._between = chosen.between or b""
        self._is_document = chosen.name == "json"
        self._is_first = True

    def add(self, data: bytes) -> bytes:
        """A file's bytes as they are written after those before it."""
        is_first, self._is_first = self._is_first, False
        if not self._is_document:
            return data if is_first else self._between + data
        # One document of all: each is a first line, a line for each report, and a last line.
        data = data.removesuffix(_JSON_END)
        return data if is_first else b"," + data[data.index(b"\n") :]

    def end(self) -> bytes:
        """What comes after the last."""
        return _JSON_END if self._is_document and not self._is_first else b""


def as_shown(reports: Sequence[Report], chosen: ReportFormat) -> Sequence[Report]:
    """For formats that are views, with names as people write them; else as they are."""
    if not chosen.is_view:
        return reports
    from machtrace.symbolizer.demangled_reports import demangled_report

    return [demangled_report(report) for report in reports]
