"""Analyses of reports, and their output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from machtrace.cli.console import output, print_error
from machtrace.cli.progress import Progress, progress_bar
from machtrace.cli.reports import document, sections
from machtrace.cli.reports.run import FEW_FILES, warn_of_nothing
from machtrace.cli.reports.sections import Section, show
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.report import Report
from machtrace.model.text import printable
from machtrace.reports.analysis.function_costs import FunctionCosts, function_costs
from machtrace.reports.analysis.groups import function_differences, group_differences, report_groups
from machtrace.reports.analysis.waits.graph import wait_graph
from machtrace.reports.inputs import ReportInput, report_inputs, standard_input
from machtrace.reports.readers import read_source
from machtrace.reports.stacks.profiles import profile_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requested analyses."""

    top: int | None
    groups: bool
    explain: bool
    waits: bool
    before: tuple[str, ...]
    search: tuple[str, ...]
    is_json: bool


@dataclass(slots=True)
class ReadReports:
    """Reports, with the names of the inputs they were read from."""

    reports: list[Report]
    names: list[str]
    failed: bool = False
    """Whether a file that the user named could not be read."""


def run(files: Sequence[str], wanted: Wanted) -> int:
    """Print the analyses, and return the exit status."""
    read = _read(files, wanted.search)
    before = _read(wanted.before, wanted.search) if wanted.before else None
    if not read.reports or (before is not None and not before.reports):
        return 1
    if wanted.is_json:
        with output() as sink:
            json.dump(_document(read, before, wanted), sink, indent=2)
            sink.write("\n")
    else:
        show(_sections(read, before, wanted))
    return int(read.failed or (before is not None and before.failed))


def _read(files: Sequence[str], search: Sequence[str]) -> ReadReports:
    read = ReadReports([], [])
    inputs = [source for file in files for source in _inputs(file, read)]
    shown = progress_bar(len(inputs), unit="files", note="reports")
    with shown if len(inputs) > FEW_FILES else nullcontext(Progress()) as progress:
        for source in inputs:
            try:
                if isinstance(source.source, MachtraceError):
                    raise source.source
                reports = read_source(source.source).reports
            except MachtraceError as error:
                if source.is_named or isinstance(error, FileAccessError):
                    print_error(error)
                    read.failed = True
            else:
                read.reports += reports
                read.names += [source.name] * len(reports)
            progress.advance(1)
    if not read.reports and not read.failed and files:
        warn_of_nothing("there is no report", ", ".join(map(printable, files)))
    if search and read.reports:
        from machtrace.symbolizer.report_names import ReportNames
        from machtrace.symbolizer.report_symbolicator import symbolicate_reports

        names = ReportNames(search)
        read.reports = list(symbolicate_reports(read.reports, names).reports)
    from machtrace.reports.writers import demangled_report

    read.reports = list(map(demangled_report, read.reports))
    return read


def _inputs(file: str, read: ReadReports) -> Iterator[ReportInput]:
    if file == "-":
        yield from standard_input()
        return
    try:
        yield from report_inputs(file)
    except MachtraceError as error:
        print_error(error)
        read.failed = True


def _costs(reports: Sequence[Report]) -> FunctionCosts:
    return function_costs(profile_of(report) for report in reports)


def _sections(read: ReadReports, before: ReadReports | None, wanted: Wanted) -> Iterator[Section]:
    if before is not None:
        group_changes = group_differences(before.reports, read.reports)
        yield sections.group_changes(group_changes, len(before.reports), len(read.reports))
        changes = function_differences(_costs(before.reports), _costs(read.reports))
        yield sections.function_changes(changes, wanted.top or len(changes))
    if wanted.groups:
        groups = report_groups(read.reports)
        yield sections.groups(groups, sum(group.count for group in groups))
        if wanted.explain:
            yield from map(sections.explanation, groups)
    if wanted.waits:
        for report, name in zip(read.reports, read.names, strict=True):
            yield from sections.waits(wait_graph(report), name)
    if wanted.top and before is None:
        yield sections.functions(_costs(read.reports), wanted.top)


def _document(read: ReadReports, before: ReadReports | None, wanted: Wanted) -> dict[str, object]:
    document_parts: dict[str, object] = {"reports": read.names}
    if before is not None:
        document_parts["before"] = before.names
        changes = group_differences(before.reports, read.reports)
        document_parts["group_differences"] = list(map(document.group_change, changes))
        costs = function_differences(_costs(before.reports), _costs(read.reports))
        shown = costs[: wanted.top]
        document_parts["function_differences"] = list(map(document.function_change, shown))
    if wanted.groups:
        document_parts["groups"] = list(map(document.group, report_groups(read.reports)))
    if wanted.waits:
        graphs = map(wait_graph, read.reports)
        document_parts["waits"] = [
            document.waits(graph, name) for graph, name in zip(graphs, read.names, strict=True)
        ]
    if wanted.top and before is None:
        document_parts["functions"] = document.functions(_costs(read.reports), wanted.top)
    return document_parts
