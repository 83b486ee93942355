"""Reading the reports in a file of any kind.

Also files of several JSON documents: lists of reports, and a report a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple, Protocol

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.report import JsonValue, Report
from machtrace.reports.json_writer import dumps
from machtrace.reports.lenient_json import read_json
from machtrace.reports.source import STANDARD_INPUT, ReportSource, next_document

_KEYS = frozenset(
    {
        *("report_schema", "bug_type", "usedImages", "threads", "procName", "panicString"),
        *("processByPid", "processes", "crash", "binary_images", "recrash_report", "productData"),
        *("callStackTree", "callStacks", "callStackThreads", "event_id", "chunk_id"),
    }
)
"""Keys of JSON reports, at least one for each format: objects of a list without any are skipped."""
_ENDS = ("Diagnostics", "Diagnostic")
"""Ends of MetricKit's keys, which serve as well."""


class Part(NamedTuple):
    """A document of a file, or text between documents."""

    text: str
    may_be_report: bool
    """Whether it is worth recognising: files may have a million unrelated objects."""

    def source(self, name: str) -> ReportSource:
        """Return the part as a file of its own."""
        return ReportSource(name, self.text.encode("utf-8", "surrogateescape"))


def listed(source: ReportSource) -> Iterator[Part]:
    """Yield the objects that a file is a list of; none if it is not such a list.

    Senders of KSCrash's reports write these, and apps that store MetricKit's payloads.
    """
    items = source.value
    if isinstance(items, list) and items and all(isinstance(item, dict) for item in items):
        for item in items:
            yield Part(dumps(item), _may_be_report(item))
        yield from following(source)


def following(source: ReportSource) -> Iterator[Part]:
    """Yield what follows the first document of a file: each further object, then other text."""
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
        """Return whether the contents are of this kind, by no name. May raise FormatError."""

    def read(self, source: ReportSource) -> tuple[Report, ...]:
        """Return its reports.

        Raises:
            FormatError: the contents are invalid.
        """


READERS: tuple[str, ...] = (
    "machtrace.watching.own.record",
    "machtrace.reports.spool.reader",
    "machtrace.reports.plcrash.reader",
    "machtrace.reports.profiles.pprof",
    "machtrace.reports.profiles.otlp",
    "machtrace.reports.machtrace_json",
    "machtrace.reports.stacks.own_json",
    "machtrace.reports.profiles.speedscope",
    "machtrace.reports.profiles.firefox",
    "machtrace.reports.swift.json_reader",
    "machtrace.reports.sentry.event",
    "machtrace.reports.sentry.profile",
    "machtrace.reports.ips.reader",
    "machtrace.reports.kscrash.reader",
    "machtrace.reports.metrickit.reader",
    "machtrace.reports.sample",
    "machtrace.reports.stacks.own_text",
    "machtrace.reports.spindump",
    "machtrace.reports.swift.text_reader",
    "machtrace.reports.crash.reader",
    "machtrace.reports.backtraces.lldb",
    "machtrace.reports.backtraces.bs",
    "machtrace.reports.backtraces.sanitizer",
    "machtrace.reports.backtraces.gdb",
    "machtrace.reports.backtraces.nsthread",
    "machtrace.reports.profiles.folded",
)
"""The modules in the order in which they are tried: the most specific signatures first."""
_OF_ONE_DOCUMENT = frozenset(
    {
        "machtrace.reports.machtrace_json",
        "machtrace.reports.stacks.own_json",
        "machtrace.reports.profiles.speedscope",
        "machtrace.reports.profiles.firefox",
        "machtrace.reports.swift.json_reader",
        "machtrace.reports.sentry.event",
        "machtrace.reports.sentry.profile",
        "machtrace.reports.kscrash.reader",
        "machtrace.reports.metrickit.reader",
    }
)
"""Readers of a file's first JSON document only; what follows it is read as further reports."""
_OF_DOCUMENTS = tuple(
    name for name in READERS if name in {*_OF_ONE_DOCUMENT, "machtrace.reports.ips.reader"}
)
_CORE = re.compile(rb"\x7fELF.{12}\x04\x00|[\xcf\xce]\xfa\xed\xfe.{8}\x04\x00{3}", re.DOTALL)
"""The beginning of a little-endian ELF or Mach-O core: its magic and its type."""
AFTER = "after"
"""The detail of text after a report in its file."""


@dataclass(frozen=True, slots=True)
class ReportContents:
    """The reports of a file."""

    reports: tuple[Report, ...]
    reader: str
    """The module that read them."""


def read_source(source: ReportSource) -> ReportContents:
    """Return the reports in ``source``.

    Several in lists, in concatenated files, and in MetricKit's payloads.

    Raises:
        FormatError: it is empty, of an unknown kind, or invalid.
    """
    if not source.data.strip(b"\0 \t\r\n"):
        is_input = source.name == STANDARD_INPUT
        remedy = "pipe a report into it" if is_input else "copy the file again"
        empty = FormatError("no content", source=source.name, offset=0, remedy=remedy)
        empty.args = (f"{source.name} has no content",)
        raise empty
    first: FormatError | None = None
    for name in READERS:
        reader: ReportReader = import_module(name)
        try:
            if reader.recognises(source):
                contents = ReportContents(reader.read(source), name)
                if name in _OF_ONE_DOCUMENT:
                    return _with_parts(following(source), source.name, contents)
                return contents
        except FormatError as error:
            first = first or error
    if first is not None:
        raise first
    several = _with_parts(listed(source), source.name, ReportContents((), ""))
    if several.reports:
        return several
    if _CORE.match(source.data):
        raise FormatError(
            "a core, not a report",
            source=source.name,
            offset=0,
            remedy="write a report of it with machtrace backtrace FILE --format apple or ips",
        )
    raise FormatError(
        "unknown kind of report",
        source=source.name,
        offset=0,
        remedy="pass an .ips, .crash, MetricKit, KSCrash, .plcrash, sample or spindump report, the"
        " log of a sanitizer or Swift's runtime, or lines of callStackSymbols, lldb's or gdb's bt",
    )


def _with_parts(parts: Iterable[Part], name: str, first_contents: ReportContents) -> ReportContents:
    """Add the parts' reports; a part that is not a report is stored with the one before it."""
    reports, reader = [*first_contents.reports], first_contents.reader
    leftovers: dict[int, list[str]] = {}
    for part in parts:
        contents = _read_one(part.source(name)) if part.may_be_report else None
        if contents is None:
            leftovers.setdefault(max(len(reports) - 1, 0), []).append(part.text)
        else:
            reports += contents.reports
            reader = reader or contents.reader
    for place, texts in leftovers.items() if reports else ():
        reports[place] = replace(
            reports[place],
            details={**reports[place].details, AFTER: "\n".join(texts)},
            warnings=(*reports[place].warnings, "the file has more, which is not a report"),
        )
    return ReportContents(tuple(reports), reader)


def _read_one(source: ReportSource) -> ReportContents | None:
    """Return the reports of one document of several; None if it has none."""
    for name in _OF_DOCUMENTS:
        reader: ReportReader = import_module(name)
        try:
            if reader.recognises(source):
                return ReportContents(reader.read(source), name)
        except FormatError:
            return None
    return None
