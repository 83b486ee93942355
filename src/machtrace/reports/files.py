"""Report files: read whole, written whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOBase
from os import PathLike, fspath
from typing import BinaryIO

from machtrace.atomic_write import replace_file
from machtrace.errors import ArgumentError, FormatError, MachtraceError
from machtrace.model.report import Report
from machtrace.reports.inputs import report_inputs
from machtrace.reports.readers import read_source
from machtrace.reports.writers import as_shown, report_format, write_reports


def read_reports(path: str | PathLike[str]) -> tuple[Report, ...]:
    """Read all reports at ``path``: a file, or all in a folder or an archive.

    Among several files, those that are not reports are skipped.

    Raises:
        FileAccessError: it cannot be read.
        FormatError: it has no report.
    """
    reports: list[Report] = []
    first: MachtraceError | None = None
    for item in report_inputs(fspath(path)):
        try:
            if isinstance(item.source, MachtraceError):
                raise item.source
            reports += read_source(item.source).reports
        except MachtraceError as error:
            if item.is_named:
                raise
            first = first or error
    if reports:
        return tuple(reports)
    raise first or FormatError("it has no report", source=fspath(path), offset=0)


def read_report(path: str | PathLike[str]) -> Report:
    """Read the one report of a file.

    Raises:
        FileAccessError: it cannot be read.
        FormatError: it has no report.
        ArgumentError: it has several, as many MetricKit payloads do.
    """
    reports = read_reports(path)
    if len(reports) > 1:
        raise ArgumentError(
            f"{fspath(path)} has {len(reports)} reports", remedy="read them with read_reports"
        )
    return reports[0]


def write_report(
    report: Report | Sequence[Report],
    format: str,  # noqa: A002 - as the command line's option is called
    sink: str | PathLike[str] | BinaryIO | TextIOBase | None = None,
) -> None:
    """Write one report, or several, in a format of :data:`~machtrace.reports.writers.FORMATS`.

    Args:
        report: what to write.
        format: ``apple``, ``ips``, ``json`` and so on.
        sink: a path, whose file is replaced once all is written; or a binary file, or a text
            file for text formats; default: standard output.


    Raises:
        ArgumentError: the format is unknown, or binary and the sink accepts text only.
        FileAccessError: the file cannot be written.
    """
    reports = [report] if isinstance(report, Report) else report
    data = write_reports(as_shown(reports, report_format(format)), format)
    if isinstance(sink, str | PathLike):
        replace_file(fspath(sink), [data])
    elif sink is None or isinstance(sink, TextIOBase):
        (sys.stdout if sink is None else sink).write(_text(data, format))
    else:
        sink.write(data)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8", "strict" if b"\0" in data else "surrogateescape")
    except UnicodeDecodeError:
        raise ArgumentError(
            f"the format {name} is not text", remedy="pass a path or a binary file"
        ) from None
