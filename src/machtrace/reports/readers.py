"""From a file's bytes to the reports in it, of whatever kind.

Files of several documents of JSON: lists of reports, and a report a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import NamedTuple, Protocol

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report
from machtrace.reports.json_writer import dumps
from machtrace.reports.lenient_json import read_json
from machtrace.reports.source import ReportSource, next_document

_KEYS = frozenset(
    {
        *("report_schema", "bug_type", "usedImages", "threads", "procName", "panicString"),
        *("processByPid", "processes", "crash", "binary_images", "recrash_report", "productData"),
        *("callStackTree", "callStacks", "callStackThreads"),
    }
)
_ENDS = ("Diagnostics", "Diagnostic")


class Part(NamedTuple):
    """A document of a file, or a text that is none."""

    text: str
    may_be_report: bool
    """Whether it is worth asking what it is: files may have a million objects of nothing."""

    def source(self, name: str) -> ReportSource:
        """The part as a file of its own."""
        return ReportSource(name, self.text.encode("utf-8", "surrogateescape"))


def listed(source: ReportSource) -> Iterator[Part]:
    """Each of the objects that a file is a list of; none where it is no such list.

    Senders of KSCrash's reports, and apps that keep payloads of MetricKit, write such.
    """
    documents = source.documents
    items = documents[0].value if documents else None
    if isinstance(items, list) and items and all(isinstance(one, dict) for one in items):
        for one in items:
            yield Part(dumps(one), _may_be_report(one))
        yield from following(source)


def following(source: ReportSource) -> Iterator[Part]:
    """What follows the first document of a file: each further object, then any other text."""
    text = source.text
    at = next_document(text, source.documents[0].end) if source.documents else len(text)
    while at < len(text):
        end, value = len(text), None
        if text.startswith("{", at):
            try:
                document = read_json(text, at, source.name)
            except FormatError:
                pass
            else:
                end, value = document.end, document.value
        yield Part(text[at:end], _may_be_report(value))
        at = next_document(text, end)


def _may_be_report(value: JsonValue) -> bool:
    return isinstance(value, dict) and (
        bool(_KEYS & value.keys()) or any(key.endswith(_ENDS) for key in value)
    )


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
