"""Report files: read whole, written whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import StringIO, TextIOBase
from os import PathLike, fspath
from typing import BinaryIO, TypeAlias

from machtrace.atomic_write import replace_file
from machtrace.errors import ArgumentError, FormatError, MachtraceError
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.incident.facts import WatchIncident
from machtrace.model.profile import Profile
from machtrace.model.report import Report
from machtrace.model.snapshot import ProcessInfo
from machtrace.model.symbol import CallStack
from machtrace.reports.inputs import report_inputs
from machtrace.reports.readers import read_source
from machtrace.reports.stacks.crash_reports import crash_report_of
from machtrace.reports.stacks.incidents import report_of_incident
from machtrace.reports.stacks.reported import report_of_capture, report_of_profile
from machtrace.reports.writers import (
    FORMATS,
    as_shown,
    encoded,
    format_of_suffix,
    report_format,
    write_reports,
)

_OF_PROFILES = {
    "text": "render.sample_text",
    "sample": "render.sample_text",
    "json": "render.profile_json",
    "profile-json": "render.profile_json",
    "folded": "render.folded",
    "speedscope": "render.speedscope",
    "firefox": "render.firefox",
    "svg": "reports.html.flame_graph",
}
_OF_STACKS = {
    "text": "render.text",
    "json": "render.json_document",
    "stacks-json": "render.json_document",
    "lldb": "render.lldb",
    "nsthread": "render.nsthread",
    "bs": "render.bs",
}
"""Formats of ``sample`` and ``backtrace`` by name, with the modules that write them."""
_OF_CRASHES = frozenset({"apple", "ips", "html", "kscrash", "plcrash"})


def stacks_bytes(stacks: Profile | Capture, form: str) -> bytes:
    """Return a profile or stacks in a format, as a file's bytes.

    ``text`` and ``json`` are those of the command that takes them; other formats are written from
    a report.

    Raises:
        ArgumentError: the format is unknown, or has no place for a profile.
    """
    report_format(form)
    modules = _OF_PROFILES if isinstance(stacks, Profile) else _OF_STACKS
    if form == "pprof" and isinstance(stacks, Profile):
        data: bytes = import_module("machtrace.render.pprof").data(stacks)
        return data
    if form in modules:
        write: Callable[[Profile | Capture, StringIO], None]
        write = import_module(f"machtrace.{modules[form]}").write
        sink = StringIO()
        write(stacks, sink)
        return encoded(sink.getvalue())
    if isinstance(stacks, Profile):
        report = report_of_profile(stacks)
    elif form in _OF_CRASHES:
        report = crash_report_of(stacks)
    else:
        report = report_of_capture(stacks)
    return write_reports(as_shown([report], report_format(form)), form)


def capture_of_stacks(stacks: list[CallStack]) -> Capture:
    """Return stacks without their process as a capture: its images are those of the frames."""
    frames = [frame for stack in stacks for frame in stack.frames]
    images = ImageList(dict.fromkeys(frame.image for frame in frames if frame.image is not None))
    arch = next((image.arch for image in images), None) or _NATIVE
    process = ProcessInfo(pid=None, path="", arch=arch)
    return Capture(process=process, images=images, stacks=tuple(stacks))


_NATIVE = Arch.X86_64
"""The architecture of stacks without images: only the width of addresses depends on it."""


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


Stacks: TypeAlias = Report | Profile | Capture | CallStack | WatchIncident
"""Everything that can be written."""


def write_report(
    report: Stacks | Sequence[Report] | Sequence[CallStack],
    format: str,  # noqa: A002 - as the command line's option is called
    sink: str | PathLike[str] | BinaryIO | TextIOBase | None = None,
) -> None:
    """Write reports, stacks or a profile in a format of :data:`~machtrace.reports.writers.FORMATS`.

    Args:
        report: a report or several, the stacks that :func:`machtrace.backtraces` returns, or a
            profile. Of stacks and profiles, ``text`` and ``json`` are what the commands write.
        format: ``apple``, ``ips``, ``json`` and so on.
        sink: a path, whose file is replaced once all is written; or a binary file, or a text
            file for text formats; default: standard output.

    Raises:
        ArgumentError: the format is unknown, or binary and the sink accepts text only; or it has
            no place for what is to be written.
        FileAccessError: the file cannot be written.
    """
    data = _bytes(report, format)
    if isinstance(sink, str | PathLike):
        replace_file(fspath(sink), [data])
    elif sink is None or isinstance(sink, TextIOBase):
        (sys.stdout if sink is None else sink).write(_text(data, format))
    else:
        sink.write(data)


def save(stacks: Stacks, path: str | PathLike[str]) -> None:
    """Write to a file, in the format of its suffix.

    Raises:
        ArgumentError: no format has the suffix, or it has no place for what is to be written.
        FileAccessError: the file cannot be written.
    """
    name = fspath(path)
    if isinstance(stacks, WatchIncident):
        stacks = report_of_incident(stacks)
    form = format_of_suffix(name)
    if form is None and name.endswith(".txt"):
        trees_alone = isinstance(stacks, Report) and stacks.trees and not stacks.threads
        form = "sample" if isinstance(stacks, Profile) or trees_alone else "text"
    if form is None:
        suffixes = ", ".join(dict.fromkeys(form.suffix for form in FORMATS.values()))
        raise ArgumentError(f"no format has the suffix of {name}", remedy=f"use one of {suffixes}")
    write_report(stacks, form, name)


def _bytes(report: Stacks | Sequence[Report] | Sequence[CallStack], form: str) -> bytes:
    if isinstance(report, WatchIncident):
        report = report_of_incident(report)
    if isinstance(report, Profile | Capture):
        return stacks_bytes(report, form)
    several = [report] if isinstance(report, Report | CallStack) else list(report)
    stacks = [stack for stack in several if isinstance(stack, CallStack)]
    if stacks:
        return stacks_bytes(capture_of_stacks(stacks), form)
    reports = [one for one in several if isinstance(one, Report)]
    return write_reports(as_shown(reports, report_format(form)), form)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8", "strict" if b"\0" in data else "surrogateescape")
    except UnicodeDecodeError:
        raise ArgumentError(
            f"the format {name} is not text", remedy="pass a path or a binary file"
        ) from None
