"""Observed calls as one HTML file: findings, and a matrix that opens into stacks and flame graphs.

The file needs no network. Without its script everything but the filters works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from machtrace.audit.baseline import Comparison
from machtrace.audit.observed.builds import builds_of
from machtrace.audit.observed.code import RecordedCode
from machtrace.audit.observed.report import (
    MAX_STACKS,
    UNKNOWN_NAME,
    ObservedReport,
    ObservedStack,
)
from machtrace.audit.observed.summary import LibraryCalls, library_calls, verdict
from machtrace.audit.output.observed.text import (
    asker_text,
    coverage_line,
    coverage_rows,
    dead_lines,
    frame_text,
    recall_lines,
    site_text,
)
from machtrace.audit.policies import Condition
from machtrace.audit.trail.calls import Consent, ImageRole
from machtrace.audit.trail.stacks import NO_IMAGE, CodeAddress
from machtrace.model.text import counted
from machtrace.reports.html import shell
from machtrace.reports.html.markup import element, folded, text

_CONTROLS = (
    '<search class="tools"><label>Search <input type="search" id="search" '
    'placeholder="call, function, library (press /)" autocomplete="off"></label>'
    '<label><input type="checkbox" id="sure-only"> only without consent</label>'
    '<output id="count" aria-live="polite"></output></search>'
)
_WIDTH, _ROW = 1000.0, 16
_LETTER = 6.6
"""Pixels of a flame graph's width, of a frame's height, and of a letter."""
_NARROWEST = 0.5
_Key = tuple[str, str]


def observed_page(
    report: ObservedReport,
    code: RecordedCode,
    comparison: Comparison | None = None,
    language: str = "en",
) -> str:
    """Return the page of a report, with categories in ``language``: ``en`` or ``zh``."""
    rows: dict[_Key, list[LibraryCalls]] = defaultdict(list)
    for row in library_calls(report):
        rows[row.library, row.rule.category_in(language)].append(row)
    stacks = _stacks_of_cells(report, language)
    parts = [
        element("p", text(verdict(report))),
        _problems(report),
        _findings(report, code, comparison),
        _matrix(rows),
        _cells(report, code, rows, stacks),
        _coverage(report),
        _rules(report),
        _os_report(report),
    ]
    rules = report.rules
    footer = element(
        "p",
        f"Rules: {text(rules.name)}, {counted(len(rules), 'rule')}, "
        f"SHA-256 {element('code', text(rules.digest))}.",
    )
    package = "machtrace.audit.output"
    apps = {process.app for process in report.recording.trail.processes if process.app}
    return shell.page(
        f"Audit of {', '.join(sorted(apps)) or 'observed calls'}",
        controls=_CONTROLS,
        main="".join(parts),
        footer=footer,
        style=shell.resource("page.css") + shell.resource("audit.css", package),
        script=shell.resource("audit.js", package),
    )


def _problems(report: ObservedReport) -> str:
    if not report.unjudged:
        return ""
    listed = "".join(element("li", text(problem)) for problem in report.unjudged)
    return folded("Parts that could not be judged", element("ul", listed), class_="warnings")


def _findings(report: ObservedReport, code: RecordedCode, comparison: Comparison | None) -> str:
    items: list[str] = []
    builds = builds_of(report)
    for finding in report.findings:
        state = "" if comparison is None else f" ({comparison.changes[finding.identity].value})"
        heading = f"<b>{finding.severity.value}{state}</b>: {text(finding.message)}"
        identity = element("p", f"Identity: {element('code', text(finding.identity))}")
        where = builds.text(finding)
        seen = element("p", f"Seen {text(where)}") if where else ""
        content = identity + seen
        content += "".join(_stack(report, stack, code) for stack in finding.stacks)
        kind = f"finding {finding.severity.value}"
        if finding.condition is not Condition.BEFORE_CONSENT:
            kind += " possible"
        items.append(folded(heading, content, class_=kind))
    items += [
        element("p", f"<b>gone</b>: {text(gone.message)}", class_="finding gone")
        for gone in (comparison.gone if comparison is not None else ())
    ]
    content = "".join(items) or element("p", "None.")
    return element("section", element("h2", "Findings") + content)


def _stack(
    report: ObservedReport, stack: ObservedStack, code: RecordedCode, called: str = ""
) -> str:
    """Return a stack; ``called`` is a text about the watched function."""
    lines = "".join(
        element(
            "li",
            element("code", element("bdi", text(frame_text(report, address, code)))),
            class_="asker" if number == stack.asker.frame else None,
        )
        for number, address in enumerate(stack.frames)
    )
    summary = f"{counted(stack.calls, 'call')}{text(called)}: {text(asker_text(stack))}"
    return folded(summary, element("ol", lines, start="0"), data_site="")


class _CellStack(NamedTuple):
    """Calls of one function with one stack."""

    stack: ObservedStack
    watch: str
    without_consent: int

    def page(self, report: ObservedReport, code: RecordedCode) -> str:
        """Return it with its watched function."""
        called = f" of {self.watch}"
        if self.without_consent:
            called += f", {self.without_consent:,} without consent"
        part = _stack(report, self.stack, code, called)
        return part if self.without_consent else element("div", part, class_="possible")


def _stacks_of_cells(report: ObservedReport, language: str) -> dict[_Key, list[_CellStack]]:
    """Return the stacks of each library and category, with their calls, the most first."""
    attribution, calls = report.attribution, report.recording.trail.calls
    totals, without = (np.zeros(len(attribution.rule), np.int64) for _ in range(2))
    np.add.at(totals, attribution.row_of_call, calls.calls)
    is_before = (report.consent == Consent.BEFORE) | (report.consent == Consent.REFUSED)
    np.add.at(without, attribution.row_of_call[is_before], calls.calls[is_before])
    cells: dict[_Key, list[_CellStack]] = defaultdict(list)
    for row in np.argsort(-totals, kind="stable").tolist():
        asker = report.asker(row)
        rule = report.rule(int(attribution.rule[row]))
        cell = cells[asker.library, rule.category_in(language)]
        if len(cell) < MAX_STACKS and totals[row]:
            stack = report.stack(row, int(totals[row]))
            cell.append(_CellStack(stack, rule.watch, int(without[row])))
    return cells


def _axes(cells: Iterable[_Key]) -> tuple[list[str], list[str]]:
    keys = list(cells)
    return sorted({library for library, _ in keys}), sorted({data for _, data in keys})


def _identity(row: int, column: int) -> str:
    return f"cell-{row}-{column}"


def _matrix(cells: dict[_Key, list[LibraryCalls]]) -> str:
    if not cells:
        return ""
    libraries, categories = _axes(cells)
    head = element("th", "Library", scope="col")
    head += "".join(element("th", text(each), scope="col") for each in categories)
    rows: list[str] = []
    for row, library in enumerate(libraries):
        content = element("th", element("bdi", text(library)), scope="row")
        for column, category in enumerate(categories):
            content += element("td", _cell(cells.get((library, category), []), row, column))
        rows.append(element("tr", content))
    table = element(
        "table", element("thead", element("tr", head)) + element("tbody", "".join(rows))
    )
    region = element(
        "div", table, class_="matrix", tabindex="0", role="region", aria_label="Calls by library"
    )
    note = element("p", "Calls of each library: without consent, and with it.")
    return element("section", element("h2", "Libraries and data") + note + region)


def _cell(rows: Sequence[LibraryCalls], row: int, column: int) -> str:
    if not rows:
        return ""
    before, after, unstated = (
        sum(counts)
        for counts in zip(
            *((each.without_consent, each.with_consent, each.unstated) for each in rows),
            strict=True,
        )
    )
    label = element("span", f"{before:,} before", class_="before") if before else ""
    for number, word in ((after, "after"), (unstated, "unstated")):
        if number:
            label += element("small", f"{number:,} {word}")
    return element("a", label, href=f"#{_identity(row, column)}")


def _cells(
    report: ObservedReport,
    code: RecordedCode,
    cells: dict[_Key, list[LibraryCalls]],
    stacks: dict[_Key, list[_CellStack]],
) -> str:
    if not cells:
        return ""
    libraries, categories = _axes(cells)
    parts: list[str] = []
    for row, library in enumerate(libraries):
        for column, category in enumerate(categories):
            rows = cells.get((library, category))
            if not rows:
                continue
            calls = counted(sum(each.calls for each in rows), "call")
            called = ", ".join(each.rule.watch for each in rows)
            heading = f"<b>{text(library)}</b>, {text(category)}: {calls} of {text(called)}"
            shown = stacks.get((library, category), [])
            content = _flame_graph(report, [each.stack for each in shown], code)
            content += "".join(each.page(report, code) for each in shown)
            kind = "cell" if any(each.without_consent for each in rows) else "cell possible"
            parts.append(folded(heading, content, class_=kind, id=_identity(row, column)))
    return element("section", element("h2", "Stacks") + "".join(parts))


def _coverage(report: ObservedReport) -> str:
    """Return the call sites by library and function, with those that were not reached."""
    rows = coverage_rows(report)
    if report.coverage is None or not rows:
        return ""
    missed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in report.coverage.missed():
        missed[each.library or UNKNOWN_NAME, each.site.rule.watch].append(site_text(each))
    parts: list[str] = []
    for library, watch, reached, sites in rows:
        heading = f"<b>{text(library)}</b>, {text(watch)}: {reached} of {sites} reached"
        listed = "".join(
            element("li", element("code", element("bdi", text(each))), data_site="")
            for each in missed[library, watch]
        )
        content = element("ul", listed) if listed else element("p", "All were reached.")
        parts.append(folded(heading, content, class_="cell possible"))
    summary = element("p", text(coverage_line(report)))
    return element("section", element("h2", "Call sites") + summary + "".join(parts))


def _flame_graph(
    report: ObservedReport, stacks: Sequence[ObservedStack], code: RecordedCode
) -> str:
    """Return the stacks as a drawing: callers above, a frame as wide as its calls."""
    whole = sum(stack.calls for stack in stacks)
    if not whole:
        return ""
    levels: list[dict[tuple[CodeAddress, ...], int]] = []
    for stack in stacks:
        outer = stack.frames[::-1]
        for depth in range(len(outer)):
            if depth == len(levels):
                levels.append({})
            path = outer[: depth + 1]
            levels[depth][path] = levels[depth].get(path, 0) + stack.calls
    starts: dict[tuple[CodeAddress, ...], float] = {(): 0.0}
    used: dict[tuple[CodeAddress, ...], float] = defaultdict(float)
    drawn: list[str] = []
    for depth, level in enumerate(levels):
        for path, calls in level.items():
            width = _WIDTH * calls / whole
            left = starts[path[:-1]] + used[path[:-1]]
            used[path[:-1]] += width
            starts[path] = left
            if width >= _NARROWEST:
                label = frame_text(report, path[-1], code)
                drawn.append(_frame(label, _role(report, path[-1]), calls, left, width, depth))
    height = _ROW * len(levels)
    return element(
        "svg",
        "".join(drawn),
        class_="graph",
        viewBox=f"0 0 {_WIDTH:g} {height}",
        role="img",
        aria_label=f"Flame graph of {counted(len(stacks), 'stack')}",
    )


def _role(report: ObservedReport, address: CodeAddress) -> str:
    if address.image == NO_IMAGE:
        return ImageRole.SYSTEM.value
    return report.recording.trail.images[address.image].role.value


def _frame(label: str, role: str, calls: int, left: float, width: float, depth: int) -> str:
    title = element("title", text(f"{label}: {counted(calls, 'call')}"))
    top = depth * _ROW
    box = element(
        "rect",
        title,
        x=f"{left:.2f}",
        y=str(top),
        width=f"{max(width - 0.5, 0.5):.2f}",
        height=str(_ROW - 1),
    )
    room = int(width / _LETTER) - 1
    if room < 3:  # noqa: PLR2004 - two letters and an ellipsis
        return element("g", box, class_=role)
    short = label if len(label) <= room else f"{label[: room - 1]}…"
    name = element("text", text(short), x=f"{left + 3:.2f}", y=str(top + 11))
    return element("g", box + name, class_=role)


def _os_report(report: ObservedReport) -> str:
    lines = list(recall_lines(report))
    if not lines:
        return ""
    listed = "".join(element("li", text(line)) for line in lines[1:])
    return folded(f"<b>{text(lines[0])}</b>", element("ul", listed))


def _rules(report: ObservedReport) -> str:
    lines = list(dead_lines(report))
    if not lines:
        return ""
    listed = "".join(element("li", text(line)) for line in lines)
    return folded(f"<b>Rules that observed nothing</b>: {len(lines)}", element("ul", listed))
