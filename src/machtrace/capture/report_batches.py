"""Files of reports, read, named and written: a batch at a time, here or in other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from machtrace.capture.collector_pause import collector_paused
from machtrace.capture.file_replacement import replace_file
from machtrace.errors import MachtraceError
from machtrace.model.report import Report
from machtrace.report.formats import ReportFormat, report_format, write_reports
from machtrace.report.inputs import ReportInput
from machtrace.report.reading import read_source
from machtrace.symbolicate.report_names import ReportNames
from machtrace.symbolicate.reports import MissingImage, symbolicate_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What is done to each report."""

    format: str
    """Of :data:`~machtrace.report.formats.FORMATS`."""
    search: tuple[str, ...] = ()
    wants_names: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One file's outcome."""

    name: str
    """As the user knows it."""
    output: bytes | None = None
    """What was made of it, unless it was written to a file or could not be read."""
    error: MachtraceError | None = None
    warnings: tuple[str, ...] = ()
    reports: int = 0


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch."""

    items: list[BatchItem] = field(default_factory=list)
    missing: list[MissingImage] = field(default_factory=list)
    problems: list[MachtraceError] = field(default_factory=list)
    """Why names or lines may be missing."""
    frames: int = 0
    named: int = 0
    contradicted: int = 0


class BatchRunner:
    """Takes batches of files, and keeps what it opened for the next."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._format: ReportFormat = report_format(options.format)
        self._names = ReportNames(options.search)

    def run(self, inputs: Iterable[tuple[ReportInput, str | None]]) -> BatchOutcome:
        """Each file, and where to write what becomes of it; None keeps it in its item."""
        with collector_paused():
            return self._run(inputs)

    def _run(self, inputs: Iterable[tuple[ReportInput, str | None]]) -> BatchOutcome:
        outcome = BatchOutcome()
        read: list[tuple[ReportInput, str | None, tuple[Report, ...]]] = []
        for one, target in inputs:
            try:
                reports = _reports(one)
            except MachtraceError as error:
                outcome.items.append(BatchItem(name=one.name, error=error))
            else:
                read.append((one, target, reports))
        named = self._named([reports for _, _, reports in read], outcome)
        for (one, target, _), reports in zip(read, named, strict=True):
            outcome.items.append(self._written(one.name, target, reports))
        outcome.problems = list(self._names.problems)
        return outcome

    def _named(
        self, read: Sequence[tuple[Report, ...]], outcome: BatchOutcome
    ) -> Iterator[tuple[Report, ...]]:
        if not self._options.wants_names:
            return iter(read)
        named = symbolicate_reports([one for reports in read for one in reports], self._names)
        outcome.frames, outcome.named = named.frames, named.named
        outcome.contradicted = named.contradicted
        outcome.missing = list(named.missing)
        found = iter(named.reports)
        return iter([tuple(next(found) for _ in reports) for reports in read])

    def _written(self, name: str, target: str | None, reports: tuple[Report, ...]) -> BatchItem:
        warnings = tuple(text for report in reports for text in report.warnings)
        try:
            output = write_reports(reports, self._format.name)
            if target is not None:
                replace_file(target, [output])
        except MachtraceError as error:
            return BatchItem(name=name, error=error, warnings=warnings)
        return BatchItem(
            name=name,
            output=output if target is None else None,
            warnings=warnings,
            reports=len(reports),
        )


def _reports(one: ReportInput) -> tuple[Report, ...]:
    if isinstance(one.source, MachtraceError):
        raise one.source
    return read_source(one.source).reports


def merged_missing(outcomes: Iterable[BatchOutcome]) -> list[MissingImage]:
    """The images that no batch had files of, those with the most frames first."""
    from dataclasses import replace

    counts: Counter[object] = Counter()
    first: dict[object, MissingImage] = {}
    for outcome in outcomes:
        for one in outcome.missing:
            key = one.image.uuid or one.image.name
            counts[key] += one.frames
            first.setdefault(key, one)
    return [replace(first[key], frames=count) for key, count in counts.most_common()]
