"""Results of analyses as sections of text: headings and tables, drawn on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from machtrace.cli.console import output, wants_colour
from machtrace.cli.tables import table
from machtrace.frozen import dataclass
from machtrace.model.report import Report
from machtrace.model.text import counted, printable, reported_lines
from machtrace.reports.analysis.function_costs import FunctionCosts, FunctionKey
from machtrace.reports.analysis.groups import (
    Change,
    Counts,
    FunctionDifference,
    GroupDifference,
    ReportGroup,
)
from machtrace.reports.analysis.waits.graph import WaitGraph
from machtrace.reports.analysis.watched_calls import WatchedCalls, WatchedStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, lines and a table."""

    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: frozenset[int] = frozenset()
    """The columns of numbers."""
    lines: tuple[str, ...] = ()
    """Text before the table."""


def show(sections: Iterable[Section]) -> None:
    """Write sections to standard output."""
    if wants_colour(sys.stdout):
        _draw(sections)
        return
    with output() as sink:
        for number, section in enumerate(sections):
            if number:
                sink.write("\n")
            sink.write(f"{printable(section.title)}\n")
            for line in section.lines:
                sink.write(f"  {printable(line)}\n")
            if section.rows:
                cells = [tuple(map(printable, row)) for row in section.rows]
                for line in table(section.headings, cells, right=section.right):
                    sink.write(f"  {line}\n")


def _draw(sections: Iterable[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section in sections:
        console.print(Text(printable(section.title), style="bold"))
        for line in section.lines:
            console.print(Text(f"  {printable(line)}"))
        if section.rows:
            drawn = Table(box=None, pad_edge=False, header_style="dim")
            for column, heading in enumerate(section.headings):
                is_right = column in section.right
                drawn.add_column(heading, justify="right" if is_right else "left", overflow="fold")
            for row in section.rows:
                drawn.add_row(*(Text(printable(cell)) for cell in row))
            console.print(drawn)
        console.print()


_NUMBERS = frozenset({0, 1, 2, 3})


def functions(costs: FunctionCosts, count: int) -> Section:
    """Return the section of the functions in which most stacks end."""
    rows = tuple(
        (
            str(cost.own),
            _percent(costs.share(cost.own)),
            str(cost.total),
            _percent(costs.share(cost.total)),
            _function(cost.function),
        )
        for cost in costs.functions[:count]
    )
    return Section(
        title=f"Functions of {counted(costs.weight, 'stack')}",
        headings=("own", "", "total", "", "function"),
        rows=rows,
        right=_NUMBERS,
    )


def groups(report_groups: Sequence[ReportGroup], reports: int) -> Section:
    """Return the section of the groups, as sorted by the caller."""
    rows = tuple(
        (
            str(group.count),
            group.fingerprint.hash + ("*" if group.fingerprint.is_build_sensitive else ""),
            group.fingerprint.title,
            _counts(group.exceptions),
            _counts(group.versions),
        )
        for group in report_groups
    )
    sensitive = any(group.fingerprint.is_build_sensitive for group in report_groups)
    note = "* frames without names: another build has another fingerprint"
    return Section(
        title=f"Groups: {len(report_groups)} of {counted(reports, 'report')}",
        headings=("reports", "fingerprint", "frame", "exception", "versions"),
        rows=rows,
        right=frozenset({0}),
        lines=(note,) if sensitive else (),
    )


def explanation(group: ReportGroup) -> Section:
    """Return the section that explains a group's fingerprint."""
    fingerprint = group.fingerprint
    stack = "no stack" if group.subject is None else group.subject.value
    return Section(
        title=f"Fingerprint {fingerprint.hash}",
        lines=(f"of {stack}, and there of {fingerprint.basis.value}",),
        headings=("frame", "image", "what counted", "why"),
        rows=tuple(
            (str(frame.place), frame.image, frame.name, frame.reason.value)
            for frame in fingerprint.frames
        ),
        right=frozenset({0}),
    )


def waits(graph: WaitGraph, name: str) -> Iterator[Section]:
    """Yield the section of one report's waits, if it has any."""
    threads = graph.threads
    lines: list[str] = []
    for deadlock in graph.deadlocks:
        labels = [threads[index].thread.label for index in deadlock.threads]
        sure = "" if deadlock.is_certain else " (partly a guess)"
        noted = ", as reported by the system" if deadlock.is_noted else ""
        verb = "waits for itself" if len(labels) == 1 else "wait for one another"
        lines.append(f"DEADLOCK{sure}: {', '.join(labels)} {verb}{noted}")
    for event, waiting in graph.shared_events:
        labels = [threads[index].thread.label for index in waiting]
        words = " ".join(f"{word:#x}" for word in event)
        lines.append(f"{', '.join(labels)} wait for the same event {words}")
    rows = [
        (
            threads[edge.waiter].thread.label,
            edge.owner_label or "???",
            edge.source.value if edge.source.is_certain else f"guess: {edge.source.value}",
            edge.text,
        )
        for edge in graph.edges
    ]
    for index in graph.ownerless:
        wait = threads[index].thread.wait
        if wait is not None:
            row = (threads[index].thread.label, "not known", wait.kind.value, wait.function)
            rows.append(row)
    if rows or lines:
        yield Section(
            title=f"Waits in {name}",
            headings=("thread", "waits for", "known by", "evidence"),
            rows=tuple(rows),
            lines=tuple(lines),
        )


def watched(calls: WatchedCalls, report: Report, name: str) -> Iterator[Section]:
    """Yield the sections of a spool: its functions, then its most frequent stacks."""
    total = sum(function.facts.calls for function in calls.functions)
    has_states = any(function.facts.states for function in calls.functions)
    rows = tuple(
        (
            f"{facts.calls:,}",
            f"{facts.stacks:,}",
            facts.symbol,
            facts.text,
            ", ".join(f"{image or 'unknown'} {count:,}" for image, count in callers[:_CALLERS]),
            *([", ".join(state.text for state in facts.states)] if has_states else ()),
        )
        for facts, callers in calls.functions
    )
    end = "the agent was stopped" if calls.facts.is_stopped else "the agent was not stopped"
    yield Section(
        title=f"Watched functions of {report.process}: {counted(total, 'call')}, {end} ({name})",
        headings=(
            *("calls", "stacks", "function", "state", "called from"),
            *(("consent",) if has_states else ()),
        ),
        rows=rows,
        right=frozenset({0, 1}),
        lines=report.warnings,
    )
    for text, thread in zip_longest(calls.facts.incidents, report.threads):
        lines = () if thread is None else tuple(reported_lines(thread.frames, report.images))
        yield Section(title=f"Incident: {text}", lines=lines)
    for stack in calls.stacks:
        yield _watched_stack(stack, total, report)


_CALLERS = 3
"""Images that are listed with a watched function."""


def _watched_stack(stack: WatchedStack, total: int, report: Report) -> Section:
    share = _percent(stack.calls / total if total else 0.0)
    return Section(
        title=f"{counted(stack.calls, 'call')} of {stack.function}, {share}",
        lines=tuple(reported_lines(stack.frames, report.images)),
    )


def group_changes(differences: Sequence[GroupDifference], before: int, after: int) -> Section:
    """Return the section of groups that are new, gone, more or less frequent."""
    changed = [row for row in differences if row.change is not Change.SAME]
    same = len(differences) - len(changed)
    return Section(
        title=f"Groups: {counted(before, 'report')} before, {after:,} after",
        headings=("", "before", "after", "fingerprint", "frame"),
        rows=tuple(
            (
                row.change.value,
                str(row.before),
                str(row.after),
                row.group.fingerprint.hash,
                row.group.fingerprint.title,
            )
            for row in changed
        ),
        right=frozenset({1, 2}),
        lines=(f"{same} more have the same share as before",) if same else (),
    )


def function_changes(differences: Sequence[FunctionDifference], count: int) -> Section:
    """Return the section of the functions whose shares changed most."""
    changed = [row for row in differences if row.own_change or row.total_change]
    return Section(
        title=f"Functions: {len(changed)} have another share",
        headings=("own", "change", "total", "change", "function"),
        rows=tuple(
            (
                f"{row.own_before} → {row.own_after}",
                f"{100 * row.own_change:+.1f} %",
                f"{row.total_before} → {row.total_after}",
                f"{100 * row.total_change:+.1f} %",
                _function(row.function),
            )
            for row in changed[:count]
        ),
        right=_NUMBERS,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _function(function: FunctionKey) -> str:
    return f"{function.name} ({function.image})" if function.image else function.name


def _counts(counts: Counts) -> str:
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{label} ×{count}" for label, count in counts)
