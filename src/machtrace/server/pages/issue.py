"""The page of an issue: its stacks, where it happens, what it is made of, and decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from machtrace.frozen import dataclass
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, lines, text
from machtrace.server.deciding import MAX_NOTE_LENGTH, decide, issue_of
from machtrace.server.pages.filters import Build, builds
from machtrace.server.pages.frame import SEE_OTHER, page
from machtrace.server.pages.frames import Frame, frame_table, read_frames
from machtrace.server.pages.issue_list import (
    ISSUES,
    Listed,
    badges,
    in_order,
    listed,
    newest_builds,
    state_badge,
    trends,
)
from machtrace.server.pages.parts import (
    Column,
    address,
    facts,
    link,
    moment,
    shown,
    table,
)
from machtrace.server.pages.signing_in import may, read_form
from machtrace.server.pages.trend import sparkline
from machtrace.server.service import Service
from machtrace.warehouse.grouping.issues import Issue, Variant
from machtrace.warehouse.triage import Decision, State
from machtrace.warehouse.warehouse import Warehouse

_VARIANTS, _STACKS, _REPORTS = 50, 20_000, 20
_MAX_BUILDS, _MAX_SYSTEMS = 12, 12
_SHADES = 5
_OF_ISSUE = """
FROM stacks_of_reports
WHERE role = CASE WHEN kind = 'audit' THEN 'sample' ELSE 'subject' END
    AND kind = $kind AND stack IN (SELECT unnest($stacks))
"""
_MATRIX = f"SELECT build, os, count(*) AS reports {_OF_ISSUE} GROUP BY ALL"
_LATEST = f"""
SELECT key, time, app, version, build, os, model, device, exception {_OF_ISSUE}
ORDER BY time DESC, key LIMIT {_REPORTS}
"""
_VARIANT_COLUMNS = (
    Column("Stack"),
    Column("Reports", is_number=True),
    Column("Share", is_number=True),
)
_REPORT_COLUMNS = tuple(
    map(Column, ("Report", "Time", "Version", "System", "Model", "Device", "Exception"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    row: Listed
    known: Sequence[Build]
    frames: Sequence[Frame]
    matrix: Sequence[dict[str, Any]]
    reports: Sequence[dict[str, Any]]
    earlier: Sequence[str]
    trend: Sequence[int]


async def issue_page(service: Service, request: Request) -> Response:
    """Return an issue; an earlier identifier leads to the present one."""
    name = request.path_params["issue"]
    present, title, body = await service.reading(request, _made, name, may(service, request))
    if present != name:
        return RedirectResponse(address(f"/issues/{present}", was=name), SEE_OTHER)
    return page(service, request, title, _moved(request) + body, section=ISSUES)


async def receive_issue_form(service: Service, request: Request) -> Response:
    """Store a decision that the page's form states, and return to the page."""
    form = await read_form(service, request)
    name = request.path_params["issue"]
    present = await decide(service, request, name, form.get("state"), form.get("note", "").strip())
    return RedirectResponse(f"/issues/{present}", SEE_OTHER)


def _made(warehouse: Warehouse, name: str, may_decide: bool) -> tuple[str, str, str]:  # noqa: FBT001 - of a request
    """Return the present identifier, the title and the content of the page."""
    content = _content(warehouse, name)
    issue = content.row.issue
    return issue.id, issue.title[:200], _body(content, may_decide=may_decide)


def _content(warehouse: Warehouse, name: str) -> _Content:
    issue = issue_of(warehouse, name)
    known = builds(warehouse)
    decisions = warehouse.decisions().get(issue.id, [])
    count = len({row.build for row in known})
    parameters = {
        "kind": issue.kind,
        "stacks": [variant.stack for variant in issue.variants[:_STACKS]],
    }
    most = issue.variants[0]
    start, end = known[0].first, max(row.last for row in known) + 1
    return _Content(
        row=listed(issue, decisions, newest_builds(known), count),
        known=known,
        frames=read_frames(warehouse.stacks_of(most.segment), [most.node])[most.node],
        matrix=warehouse.query(_MATRIX, parameters).to_pylist(),
        reports=warehouse.query(_LATEST, parameters).to_pylist(),
        earlier=warehouse.earlier_issues(issue.id),
        trend=trends(warehouse, [issue], start, end).get(issue.id, []),
    )


def _moved(request: Request) -> str:
    was = request.query_params.get("was", "")
    if not was:
        return ""
    return element("p", f"Earlier called {shown(was, 60)}.", class_="note", role="status")


def _body(content: _Content, *, may_decide: bool) -> str:
    row = content.row
    issue = row.issue
    order = in_order(issue.builds, content.known)
    span = (
        " → ".join(shown(build, 24) for build in dict.fromkeys((order[0], order[-1])))
        if order
        else ""
    )
    head = f'<p class="below">{badges(row)} {state_badge(row)} <code>{text(issue.id)}</code></p>'
    numbers = facts(
        (
            ("Reports", f"{issue.reports:,}"),
            ("Devices", f"{issue.devices:,}"),
            ("First seen", moment(issue.first)),
            ("Last seen", moment(issue.last)),
            ("Builds", span),
            ("Exception", ", ".join(shown(exception, 60) for exception in issue.exceptions[:4])),
            ("Trend", sparkline(content.trend, "Reports over all time")),
        )
    )
    variant = issue.variants[0]
    stack = element("h2", "Most frequent stack") + element(
        "p",
        f"{counted(variant.reports, 'report')} of {issue.reports:,} · "
        + link(f"/stacks/{variant.stack.hex()}", "Stack, and others through each frame"),
        class_="note",
    )
    main = stack + frame_table(content.frames, "Most frequent stack", budget=60_000)
    main += _variants(issue) + _matrix(content) + _reports(content.reports)
    side = _decision(content, may_decide=may_decide) + _fingerprint(issue) + _earlier(content)
    return head + numbers + f'<div class="beside"><div>{main}</div><aside>{side}</aside></div>'


def _decision(content: _Content, *, may_decide: bool) -> str:
    row = content.row
    issue, made = row.issue, row.decisions
    now = made[0] if made else None
    inner = element("h2", "Decision")
    if now is not None:
        inner += _decided(now)
    else:
        inner += element("p", "None yet: the issue is open.", class_="note")
    if not may_decide:
        inner += element("p", "A token of scope admin decides.", class_="note")
    else:
        chosen = row.state if now is None else now.state
        options = "".join(
            f'<label><input type="radio" name="state" value="{each}"'
            f"{' checked' if each is chosen else ''}> {each.value}</label>"
            for each in State
        )
        inner += (
            f'<form class="decide" method="post" action="/issues/{text(issue.id)}">'
            f"<fieldset><legend>State</legend>{options}</fieldset>"
            '<label for="note">Note</label>'
            f'<textarea id="note" name="note" rows="3" maxlength="{MAX_NOTE_LENGTH}"></textarea>'
            '<button class="main">Decide</button></form>'
        )
    if len(made) > 1:
        items = "".join(element("li", _decided(each)) for each in made[1:21])
        inner += element("h3", "Before") + element("ul", items, class_="plain")
    return element("section", inner)


def _decided(decision: Decision) -> str:
    state = element("span", decision.state.value, class_=f"state {decision.state.value}")
    line = element("p", f"{state} <small>{moment(decision.changed)}</small>")
    if decision.note:
        line += element("blockquote", lines(decision.note[:MAX_NOTE_LENGTH]))
    return line


def _fingerprint(issue: Issue) -> str:
    own = issue.fingerprint
    items = "".join(
        element(
            "li",
            f"<code>{shown(frame.name, 200)}</code> <small>{shown(frame.image, 60)} · "
            f"{text(frame.reason.value)}</small>",
        )
        for frame in own.frames
    )
    note = f"Made of {text(own.basis.value)}."
    if own.is_build_sensitive:
        note += " Some have no name, so other builds are other issues; symbols change that."
    inner = element("h2", "Fingerprint") + element("p", note, class_="note")
    return element("section", inner + element("ol", items, class_="plain frames-of"))


def _earlier(content: _Content) -> str:
    if not content.earlier:
        return ""
    items = "".join(element("li", f"<code>{text(each)}</code>") for each in content.earlier[:50])
    inner = element("h2", "Earlier identifiers") + element("ul", items, class_="plain")
    return element("section", inner)


def _variants(issue: Issue) -> str:
    rows = [_variant(variant, issue) for variant in issue.variants[:_VARIANTS]]
    head = element("h2", f"{counted(len(issue.variants), 'variant')}")
    note = ""
    if len(issue.variants) > _VARIANTS:
        note = element("p", f"The {_VARIANTS} most frequent ones.", class_="note")
    return head + note + table(_VARIANT_COLUMNS, rows, "Variants")


def _variant(variant: Variant, issue: Issue) -> list[str]:
    key = variant.stack.hex()
    return [
        link(f"/stacks/{key}", key, class_="mono"),
        f"{variant.reports:,}",
        f"{variant.reports / issue.reports:.1%}",
    ]


def _matrix(content: _Content) -> str:
    """Return the counts by build and system; shades show the larger ones."""
    counts: Counter[tuple[str, str]] = Counter()
    by_system: Counter[str] = Counter()
    for row in content.matrix:
        counts[row["build"] or "", row["os"] or ""] += row["reports"]
        by_system[row["os"] or ""] += row["reports"]
    order = in_order(list({build for build, _ in counts}), content.known)[-_MAX_BUILDS:]
    systems = sorted(system for system, _ in by_system.most_common(_MAX_SYSTEMS))
    most = max(counts.values(), default=0)
    if not most:
        return ""
    head = "".join(
        element("th", shown(system or "unknown", 40), scope="col", class_="number")
        for system in systems
    )
    body = ""
    for build in reversed(order):
        cells = element("th", shown(build or "unknown", 40), scope="row")
        for system in systems:
            count = counts[build, system]
            shade = -(-count * _SHADES // most)
            cells += element("td", f"{count:,}" if count else "·", class_=f"number s{shade}")
        body += element("tr", cells)
    inner = element("thead", f'<tr><th scope="col">Build</th>{head}</tr>') + element("tbody", body)
    grid = element("table", inner, class_="matrix")
    scroll = element(
        "div", grid, class_="scroll", tabindex="0", role="region", aria_label="Builds and systems"
    )
    return element("h2", "Builds and systems") + scroll


def _reports(reports: Sequence[dict[str, Any]]) -> str:
    rows = []
    for row in reports:
        key = row["key"].hex()
        build = f" ({row['build']})" if row["build"] else ""
        rows.append(
            [
                link(f"/reports/{key}", key[:12], class_="mono"),
                moment(row["time"]),
                shown(f"{row['version'] or ''}{build}", 40),
                shown(row["os"] or "", 40),
                shown(row["model"] or "", 40),
                shown(row["device"] or "", 40),
                shown(row["exception"] or "", 40),
            ]
        )
    head = element("h2", "Latest reports")
    return head + table(_REPORT_COLUMNS, rows, "Latest reports", is_cards=True)
