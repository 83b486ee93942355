"""Batches of report files: read, symbolicated and written, here or in worker processes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace

from machtrace.atomic_write import replace_file
from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.report import Report
from machtrace.reports.inputs import ReportInput
from machtrace.reports.readers import ReportContents, read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import (
    ReportFormat,
    as_shown,
    report_format,
    with_chosen_samples,
    write_reports,
    write_unique,
)
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import MissingImage, symbolicate_reports


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector; for code that creates many objects and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How each report is processed."""

    format: str
    """A name in :data:`~machtrace.reports.writers.FORMATS`."""
    search: tuple[str, ...] = ()
    wants_names: bool = True
    keeps_form: bool = False
    """Whether a file that the user named is written in its own format, if that can be written."""
    unique: bool = False
    """Whether equal stacks are merged; the format is one of those for that."""
    idle: bool = True
    """Whether idle samples stay."""
    by_name: bool | None = None
    """Whether sampled threads of each name are merged, or all; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """The result for one file."""

    name: str
    """As the user knows it."""
    output: bytes | None = None
    """The converted bytes; None if written to a file, unreadable, or part of a page."""
    of_page: tuple[Report, ...] = ()
    """The reports, if the format is a page and they go to one for all files."""
    error: MachtraceError | None = None
    warnings: tuple[str, ...] = ()
    reports: int = 0
    is_named: bool = True
    """Whether the user named the file itself rather than its folder or archive."""


@dataclass(slots=True)
class BatchOutcome:
    """The result of a batch."""

    items: list[BatchItem] = field(default_factory=list)
    missing: list[MissingImage] = field(default_factory=list)
    problems: list[MachtraceError] = field(default_factory=list)
    """Why names or lines may be missing."""
    frames: int = 0
    named: int = 0
    nameless: int = 0
    contradicted: int = 0


class BatchRunner:
    """Processes batches of files, and caches opened images between them."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._format: ReportFormat = report_format(options.format)
        self._names = ReportNames(options.search)

    def run(self, inputs: Iterable[tuple[ReportInput, str | None]]) -> BatchOutcome:
        """Process each file, with the path to write to; None stores the bytes in its item."""
        with collector_paused():
            outcome = self._run(inputs)
        gc.collect(0)  # the caller may have disabled it; survivors are scanned only once
        return outcome

    def _run(self, inputs: Iterable[tuple[ReportInput, str | None]]) -> BatchOutcome:
        outcome = BatchOutcome()
        read: list[tuple[ReportInput, str | None, ReportContents]] = []
        for report_input, target in inputs:
            try:
                contents = _contents(report_input)
            except MachtraceError as error:
                item = BatchItem(
                    name=report_input.name, error=error, is_named=report_input.is_named
                )
                outcome.items.append(item)
            else:
                read.append((report_input, target, contents))
        named = self._named([contents.reports for _, _, contents in read], outcome)
        for (report_input, target, contents), reports in zip(read, named, strict=True):
            chosen = self._format
            if self._options.keeps_form and report_input.is_named:
                chosen = own_format(contents) or chosen
            outcome.items.append(self._written(report_input, target, reports, chosen))
        outcome.problems = list(self._names.problems)
        return outcome

    def _named(
        self, read: Sequence[tuple[Report, ...]], outcome: BatchOutcome
    ) -> Iterator[tuple[Report, ...]]:
        if not self._options.wants_names:
            return iter(read)
        named = symbolicate_reports([report for reports in read for report in reports], self._names)
        outcome.frames, outcome.named = named.frames, named.named
        outcome.nameless = named.nameless
        outcome.contradicted = named.contradicted
        outcome.missing = list(named.missing)
        remaining = iter(named.reports)
        return iter([tuple(next(remaining) for _ in reports) for reports in read])

    def _written(
        self,
        item: ReportInput,
        target: str | None,
        reports: tuple[Report, ...],
        chosen: ReportFormat,
    ) -> BatchItem:
        warnings = tuple(text for report in reports for text in report.warnings)
        output = error = None
        of_page: tuple[Report, ...] = ()
        count = len(reports)
        try:
            if not self._options.idle or self._options.by_name is not None:
                reports = tuple(
                    with_chosen_samples(
                        report, idle=self._options.idle, by_name=self._options.by_name
                    )
                    for report in reports
                )
            reports = tuple(as_shown(reports, chosen))
            write = write_unique if self._options.unique else write_reports
            if target is not None and chosen.between is None and count > 1:
                for number, report in enumerate(reports, 1):
                    one_file = [write([report], chosen.name)]
                    replace_file(self._numbered(target, number), one_file)
            elif target is None and chosen.is_page:
                of_page = reports
            else:
                output = write(reports, chosen.name)
                if target is not None:
                    replace_file(target, [output])
                    output = None
        except MachtraceError as refused:
            error, output, count = refused, None, 0
        return BatchItem(
            name=item.name,
            output=output,
            of_page=of_page,
            error=error,
            warnings=warnings,
            reports=count,
            is_named=item.is_named,
        )

    def _numbered(self, target: str, number: int) -> str:
        stem = target.removesuffix(self._format.suffix)
        return target if number == 1 else f"{stem}-{number}{self._format.suffix}"


_OWN = {
    "machtrace.reports.machtrace_json": "json",
    "machtrace.reports.ips.reader": "ips",
    "machtrace.reports.sample": "sample",
    "machtrace.reports.profiles.folded": "folded",
    "machtrace.reports.profiles.speedscope": "speedscope",
    "machtrace.reports.profiles.firefox": "firefox",
    "machtrace.reports.stacks.own_text": "text",
    "machtrace.reports.backtraces.lldb": "lldb",
    "machtrace.reports.backtraces.bs": "bs",
    "machtrace.reports.backtraces.nsthread": "nsthread",
}
"""Formats that are read and written, by the module that reads them."""


def own_format(contents: ReportContents) -> ReportFormat | None:
    """Return the format that a file was read from; None if it is not written or holds fewer."""
    name = _OWN.get(contents.reader)
    if contents.reader == "machtrace.reports.stacks.own_json":
        name = "stacks-json" if contents.reports[0].threads else "profile-json"
    form = None if name is None else report_format(name)
    if form is None or (len(contents.reports) > 1 and form.between is None):
        return None
    return form


def _contents(read: ReportInput) -> ReportContents:
    if isinstance(read.source, MachtraceError):
        raise read.source
    # A source of its own, so that its parsed contents are released before the next file.
    return read_source(ReportSource(read.source.name, read.source.data))


class MissingImages:
    """Sums images without files over batches."""

    def __init__(self) -> None:
        self._counts: Counter[object] = Counter()
        self._first: dict[object, MissingImage] = {}

    def add(self, missing: Iterable[MissingImage]) -> None:
        """Add those of a batch."""
        for image in missing:
            key = image.image.uuid or image.image.name
            self._counts[key] += image.frames
            self._first.setdefault(key, image)

    def most_first(self) -> list[MissingImage]:
        """Return those with the most frames first."""
        return [
            replace(self._first[key], frames=count) for key, count in self._counts.most_common()
        ]
