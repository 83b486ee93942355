"""The formats that reports are written in.

Those of captures and profiles are written by their writers in :mod:`machtrace.render`. Also several
files in one, as on standard output, and names as views show them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from importlib import import_module
from io import StringIO
from typing import NamedTuple

from machtrace.errors import ArgumentError
from machtrace.model.report import Report, ReportedFrame, ReportKind


class _Takes(Enum):
    """The argument of a format's writer."""

    REPORT = auto()
    """One report; it returns the file."""
    REPORTS = auto()
    """All reports; it returns the file."""
    STACKS = auto()
    """One report that has threads; it returns the file."""
    CAPTURE = auto()
    """The stacks of one report at one moment, and a file to write to."""
    PROFILE = auto()
    """All stacks of one report, and a file to write to; if not text, it returns bytes."""


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
    takes: _Takes = _Takes.REPORTS
    is_page: bool = False
    """Whether a file of several reports has parts about all of them; see :class:`FileJoiner`."""

    def write(self, reports: Sequence[Report]) -> bytes:
        """Return the file's bytes; undecodable bytes of the source are reproduced.

        Raises:
            ArgumentError: the format shows stacks of one moment, and the reports have none.
        """
        module, _, function = self.home.partition(":")
        writer = getattr(import_module(module), function)
        written: str | bytes
        if self.takes is _Takes.CAPTURE:
            written = _captures(reports, writer)
        elif self.takes is _Takes.PROFILE:
            written = _profiles(reports, writer, is_text=self.is_text)
        elif self.takes in (_Takes.REPORT, _Takes.STACKS):
            if self.takes is _Takes.STACKS:
                reports = _with_threads(reports)
            written = "\n".join(map(writer, reports))
        else:
            written = writer(reports)
        return written if isinstance(written, bytes) else encoded(written)


def _captures(reports: Sequence[Report], write: Callable[..., None]) -> str:
    from machtrace.reports.stacks.captures import capture_of

    shown = _with_threads(reports)
    captures = [capture for capture in map(capture_of, shown) if capture.stacks]
    sink = StringIO()
    for number, capture in enumerate(captures):
        if number:
            sink.write("\n")
        write(capture, sink)
    return sink.getvalue()


def _with_threads(reports: Sequence[Report]) -> list[Report]:
    has_stacks = [one for one in reports if one.threads or one.language_exception is not None]
    if not has_stacks and any(report.trees for report in reports):
        raise ArgumentError(
            "the report has sampled trees but no threads",
            remedy="choose sample, folded, speedscope, firefox or pprof",
        )
    return has_stacks or list(reports)


def _profiles(
    reports: Sequence[Report], write: Callable[..., bytes], *, is_text: bool
) -> str | bytes:
    from machtrace.reports.stacks.profiles import profile_of

    if not is_text:
        return b"".join(write(profile_of(report)) for report in reports)
    sink = StringIO()
    for report in reports:
        write(profile_of(report), sink)
    return sink.getvalue()


def encoded(text: str) -> bytes:
    """Encode a text, reproducing bytes that were undecodable in the source."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


_OURS, _RENDER = "machtrace.reports", "machtrace.render"
_text = partial(ReportFormat, holds_many=False, takes=_Takes.REPORT)
_stacks = partial(ReportFormat, holds_many=True, takes=_Takes.CAPTURE)
_samples = partial(ReportFormat, holds_many=False, is_view=True, takes=_Takes.PROFILE)
_alone = partial(_samples, between=None)

FORMATS: dict[str, ReportFormat] = {
    one.name: one
    for one in (
        _text("apple", ".crash", f"{_OURS}.crash.writer:crash_text"),
        _text("ips", ".ips", f"{_OURS}.ips.writer:ips_text", between=None),
        ReportFormat("json", ".json", f"{_OURS}.machtrace_json:reports_json", holds_many=True),
        _text("kscrash", ".crash", f"{_OURS}.kscrash.text:kscrash_text"),
        _text("plcrash", ".crash", f"{_OURS}.plcrash.text:plcrash_text"),
        _text(
            "text",
            ".txt",
            f"{_OURS}.stacks.own_text:backtrace_text",
            holds_many=True,
            is_view=True,
            takes=_Takes.STACKS,
        ),
        _text(
            "stacks-json",
            ".stacks.json",
            f"{_OURS}.stacks.own_json:stacks_json",
            between=None,
            takes=_Takes.STACKS,
        ),
        _text(
            "profile-json",
            ".profile.json",
            f"{_OURS}.stacks.own_json:profile_document",
            between=None,
        ),
        _stacks("nsthread", ".txt", f"{_RENDER}.nsthread:write"),
        _stacks("bs", ".txt", f"{_RENDER}.bs:write"),
        _stacks("lldb", ".txt", f"{_RENDER}.lldb:write", is_view=True),
        _text("sample", ".txt", f"{_OURS}.sample_writer:sample_text", is_view=True),
        _samples("folded", ".folded", f"{_RENDER}.folded:write", holds_many=True, between=b""),
        _alone("speedscope", ".speedscope.json", f"{_RENDER}.speedscope:write"),
        _alone("firefox", ".firefox.json", f"{_RENDER}.firefox:write"),
        _alone("pprof", ".pb.gz", f"{_RENDER}.pprof:data", is_text=False),
        _alone("svg", ".svg", f"{_OURS}.html.flame_graph:write"),
        ReportFormat(
            "html", ".html", f"{_OURS}.html.page:write", holds_many=True, is_view=True, is_page=True
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


def format_of_suffix(name: str) -> str | None:
    """Return the format whose suffix a file's name has; None for no or several such formats."""
    for form in sorted(FORMATS.values(), key=lambda form: -len(form.suffix)):
        if name.endswith(form.suffix) and form.suffix != _TEXT:
            return form.name
    return None


_TEXT = ".txt"
"""The suffix of several formats."""


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


UNIQUE_FORMATS = {
    "text": f"{_RENDER}.text:write",
    "stacks-json": f"{_RENDER}.json_document:write",
    "lldb": f"{_RENDER}.lldb:write_unique",
}
"""Formats in which several threads have one stack, with their writers."""


def write_unique(reports: Sequence[Report], name: str) -> bytes:
    """Return the stacks of reports with equal ones merged, as :func:`write_reports` does.

    Raises:
        ArgumentError: as there, or the reports have no stacks of one moment.
    """
    if len(reports) > 1 and report_format(name).between is None:
        return write_reports(reports, name)
    module, _, function = UNIQUE_FORMATS[name].partition(":")
    write = getattr(import_module(module), function)
    return encoded(_captures(reports, lambda capture, sink: write(capture.unique, sink)))


def with_chosen_samples(report: Report, *, idle: bool, by_name: bool | None) -> Report:
    """Return a sampled report without idle samples, or with merged threads.

    Args:
        report: the report.
        idle: whether idle samples stay.
        by_name: whether threads of each name are merged, or all; None: none.

    Raises:
        ArgumentError: the report has no samples, or does not state which are idle.
    """
    from machtrace.reports.stacks.profiles import profile_of
    from machtrace.reports.stacks.reported import report_of_profile

    if not any(task.trees for task in report.tasks):
        raise ArgumentError(
            "the report has no samples", remedy="omit --no-idle and --merge-threads"
        )
    profile = profile_of(report)
    if not idle:
        if not profile.samples.has_states:
            raise ArgumentError(
                "the report does not state which samples are idle",
                remedy="pass what machtrace sample --format json or pprof wrote",
            )
        profile = profile.without_idle()
    if by_name is not None:
        profile = profile.with_merged_threads(by_name=by_name)
    # The tables of a text of sample count all samples.
    kind = ReportKind.MACHTRACE if report.kind is ReportKind.SAMPLE else report.kind
    chosen = report_of_profile(profile, kind)
    return replace(chosen, process=report.process, system=report.system, incident=report.incident)


_JSON_END = b"\n]}\n"


class FileJoiner:
    """Concatenates files of a format whose ``between`` is not None.

    A page is written at the end, from all reports: it has an overview.
    """

    def __init__(self, chosen: ReportFormat) -> None:
        self._format = chosen
        self._between = chosen.between or b""
        self._is_document = chosen.name == "json"
        self._is_first = True
        self._reports: list[Report] = []

    def add(self, data: bytes) -> bytes:
        """Return a file's bytes as written after those before it."""
        is_first, self._is_first = self._is_first, False
        if not self._is_document:
            return data if is_first else self._between + data
        # One document for all: a first line, a line for each report, and a last line.
        data = data.removesuffix(_JSON_END)
        return data if is_first else b"," + data[data.index(b"\n") :]

    def add_reports(self, reports: Sequence[Report]) -> None:
        """Add reports to a page."""
        self._reports += reports

    def end(self) -> bytes:
        """Return the bytes after the last file, or the page."""
        if self._reports:
            return self._format.write(self._reports)
        return _JSON_END if self._is_document and not self._is_first else b""


def as_shown(reports: Sequence[Report], chosen: ReportFormat) -> Sequence[Report]:
    """Return the reports with demangled names for views, else unchanged."""
    if not chosen.is_view:
        return reports
    return [demangled_report(report) for report in reports]


def demangled_report(report: Report) -> Report:
    """Return the report with each mangled name demangled; itself if it has none.

    KSCrash, PLCrashReporter, lines of ``callStackSymbols`` and others print ``$s4Demo3runyyF``.
    """
    from machtrace.model.frame_changes import with_changed_frames

    thrown = report.language_exception
    frames = None if thrown is None else _demangled(thrown.frames)
    if thrown is not None and frames is not None:
        report = replace(report, language_exception=replace(thrown, frames=frames))
    others = tuple(with_changed_frames(other, _demangled) for other in report.others)
    if any(new is not old for new, old in zip(others, report.others, strict=True)):
        report = replace(report, others=others)
    return with_changed_frames(report, _demangled)


def _demangled(frames: Sequence[ReportedFrame]) -> tuple[ReportedFrame, ...] | None:
    """Return the frames with demangled names; None if no name is mangled."""
    from machtrace.demangler import demangle, may_be_mangled

    mangled = [
        number
        for number, frame in enumerate(frames)
        if frame.symbol is not None and may_be_mangled(frame.symbol.name)
    ]
    if not mangled:
        return None
    demangled = [*frames]
    for number in mangled:
        symbol = frames[number].symbol
        if symbol is not None:
            name = demangle(symbol.name)
            demangled[number] = frames[number]._replace(symbol=symbol._replace(name=name))
    return tuple(demangled)
