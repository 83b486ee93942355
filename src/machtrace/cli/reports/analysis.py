"""Analyses of reports, and their output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from machtrace.cli.console import output, print_error, warn
from machtrace.cli.progress import Progress, progress_bar
from machtrace.cli.reports import sections
from machtrace.cli.reports.run import FEW_FILES, warn_of_nothing
from machtrace.cli.reports.sections import Section, show
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportKind
from machtrace.model.text import printable
from machtrace.reports.analysis.function_costs import FunctionCosts, function_costs
from machtrace.reports.analysis.groups import (
    FunctionDifference,
    GroupDifference,
    ReportGroup,
    function_differences,
    group_differences,
    report_groups,
)
from machtrace.reports.analysis.waits.graph import WaitGraph, WaitNode, wait_graph
from machtrace.reports.analysis.watched_calls import WatchedCalls, watched_calls
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
        shown = list(_sections(read, before, wanted))
        show(shown)
        if wanted.waits and not shown:
            warn(f"no known waits in {', '.join(map(printable, files))}")
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
    # A spool has no names of its own, so that it gets those of the files it names.
    wanted = [search or report.kind is ReportKind.SPOOL for report in read.reports]
    if any(wanted):
        from machtrace.symbolizer.report_names import ReportNames
        from machtrace.symbolizer.report_symbolicator import symbolicate_reports

        chosen = [
            report for report, is_wanted in zip(read.reports, wanted, strict=True) if is_wanted
        ]
        named = iter(symbolicate_reports(chosen, ReportNames(search)).reports)
        read.reports = [
            next(named) if is_wanted else report
            for report, is_wanted in zip(read.reports, wanted, strict=True)
        ]
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
    if wanted.top and before is None:
        for calls, report, name in _watched(read, wanted.top):
            yield from sections.watched(calls, report, name)
    if wanted.groups and (groups := report_groups(_incidents(read.reports))):
        yield sections.groups(groups, sum(group.count for group in groups))
        if wanted.explain:
            yield from map(sections.explanation, groups)
    if wanted.waits:
        for report, name in zip(read.reports, read.names, strict=True):
            yield from sections.waits(wait_graph(report), name)
    if wanted.top and before is None and (incidents := _incidents(read.reports)):
        yield sections.functions(_costs(incidents), wanted.top)


def _watched(read: ReadReports, count: int) -> Iterator[tuple[WatchedCalls, Report, str]]:
    """Yield the calls of each spool, with its report and name."""
    for report, name in zip(read.reports, read.names, strict=True):
        calls = watched_calls(report, count)
        if calls is not None:
            yield calls, report, name


def _incidents(reports: Sequence[Report]) -> list[Report]:
    """Return the reports without spools, whose stacks are of calls and not of an incident."""
    return [report for report in reports if report.kind is not ReportKind.SPOOL]


def _document(read: ReadReports, before: ReadReports | None, wanted: Wanted) -> dict[str, object]:
    document_parts: dict[str, object] = {"reports": read.names}
    if before is not None:
        document_parts["before"] = before.names
        changes = group_differences(before.reports, read.reports)
        document_parts["group_differences"] = list(map(group_change_document, changes))
        costs = function_differences(_costs(before.reports), _costs(read.reports))
        shown = costs[: wanted.top]
        document_parts["function_differences"] = list(map(function_change_document, shown))
    if wanted.groups:
        document_parts["groups"] = list(map(group_document, report_groups(read.reports)))
    if wanted.waits:
        graphs = map(wait_graph, read.reports)
        document_parts["waits"] = [
            waits_document(graph, name) for graph, name in zip(graphs, read.names, strict=True)
        ]
    if wanted.top and before is None:
        document_parts["functions"] = functions_document(_costs(read.reports), wanted.top)
        if spools := [watched_document(*row) for row in _watched(read, wanted.top)]:
            document_parts["spools"] = spools
    return document_parts


_Object = dict[str, Any]


def functions_document(costs: FunctionCosts, count: int) -> _Object:
    """Return the document of the functions in which most stacks end."""
    return {
        "stacks": costs.weight,
        "functions": [
            {
                **cost.function._asdict(),
                "own": cost.own,
                "total": cost.total,
                "path": cost.path or None,
            }
            for cost in costs.functions[:count]
        ],
    }


def watched_document(calls: WatchedCalls, report: Report, name: str) -> _Object:
    """Return the document of a spool's functions and most frequent stacks."""
    facts = calls.facts
    return {
        "report": name,
        "is_stopped": facts.is_stopped,
        "incomplete": [*report.warnings],
        "incidents": [*facts.incidents],
        "functions": [
            {
                "symbol": function.facts.symbol,
                "state": function.facts.state.value,
                "calls": function.facts.calls,
                "stacks": function.facts.stacks,
                "timed": function.facts.timed,
                "callers": dict(function.callers),
                "states": [state._asdict() for state in function.facts.states],
            }
            for function in calls.functions
        ],
        "stacks": [
            {
                "function": stack.function,
                "calls": stack.calls,
                "frames": [
                    {
                        "image": None if frame.image is None else report.images[frame.image].name,
                        "offset": frame.offset,
                        "name": None if frame.symbol is None else frame.symbol.name,
                    }
                    for frame in stack.frames
                ],
            }
            for stack in calls.stacks
        ],
    }


def group_document(report_group: ReportGroup) -> _Object:
    """Return the document of a group, with the frames of its fingerprint."""
    fingerprint = report_group.fingerprint
    return {
        "fingerprint": fingerprint.hash,
        "basis": fingerprint.basis.name.lower().replace("_", "-"),
        "is_build_sensitive": fingerprint.is_build_sensitive,
        "stack": None if report_group.subject is None else report_group.subject.value,
        "frames": [
            {
                "place": frame.place,
                "image": frame.image or None,
                "name": frame.name,
                "is_named": frame.is_named,
                "reason": frame.reason.value,
            }
            for frame in fingerprint.frames
        ],
        "reports": list(report_group.reports),
        "count": report_group.count,
        "exceptions": dict(report_group.exceptions),
        "versions": dict(report_group.versions),
        "systems": dict(report_group.systems),
        "models": dict(report_group.models),
    }


def waits_document(graph: WaitGraph, name: str) -> _Object:
    """Return the document of a report's graph; threads are numbered by their list's indices."""
    return {
        "report": name,
        "threads": list(map(_node, graph.threads)),
        "edges": [
            {
                "waiter": edge.waiter,
                "owner": edge.owner,
                "owner_label": edge.owner_label or None,
                "source": edge.source.value,
                "is_certain": edge.source.is_certain,
                "samples": edge.samples,
                "text": edge.text,
            }
            for edge in graph.edges
        ],
        "deadlocks": [
            {
                "threads": list(deadlock.threads),
                "is_certain": deadlock.is_certain,
                "is_noted": deadlock.is_noted,
            }
            for deadlock in graph.deadlocks
        ],
        "shared_events": [
            {"event": list(event), "threads": list(threads)}
            for event, threads in graph.shared_events
        ],
        "ownerless": list(graph.ownerless),
    }


def _node(node: WaitNode) -> _Object:
    thread = node.thread
    wait = thread.wait
    return {
        "process": node.process,
        "index": thread.index,
        "id": thread.id,
        "name": thread.name,
        "queue": thread.queue,
        "samples": thread.samples,
        "wait": None
        if wait is None
        else {"kind": wait.kind.value, "function": wait.function, "is_idle": wait.kind.is_idle},
    }


def group_change_document(difference: GroupDifference) -> _Object:
    """Return the document of a group in two sets."""
    return {
        "change": difference.change.value,
        "before": difference.before,
        "after": difference.after,
        "fingerprint": difference.group.fingerprint.hash,
        "title": difference.group.fingerprint.title,
    }


def function_change_document(difference: FunctionDifference) -> _Object:
    """Return the document of a function in two sets."""
    return {
        **difference.function._asdict(),
        **{name: value for name, value in difference._asdict().items() if name != "function"},
    }
