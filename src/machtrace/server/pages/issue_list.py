"""The first page: issues, by how many reports they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, text
from machtrace.server.limits import BAD_REQUEST, RefusedError
from machtrace.server.pages.filters import Build, Filters, builds, choice, filter_form, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.parts import Column, link, moment, pager, shown, table
from machtrace.server.pages.trend import BUCKETS, sparkline
from machtrace.server.service import Service
from machtrace.warehouse.grouping.issues import Issue
from machtrace.warehouse.triage import Decision, State
from machtrace.warehouse.warehouse import Warehouse

ISSUES = "/"
_PAGE = 50
_STATES = {"": "Open", "resolved": "Resolved", "ignored": "Ignored", "any": "Any"}
_SORTS = {"": "Reports", "devices": "Devices", "last": "Last seen", "first": "First seen"}
_TREND_STACKS = 20_000
_TREND = """
SELECT kind, stack, (time - $start) // $width AS bucket, count(*) AS reports
FROM stacks_of_reports
WHERE (role = 'subject' OR role = 'sample' AND kind = 'audit') AND time >= $start
    AND stack IN (SELECT unnest($stacks))
GROUP BY ALL
"""
_COLUMNS = (
    Column("Issue"),
    Column("Trend"),
    Column("Reports", is_number=True),
    Column("Devices", is_number=True),
    Column("Builds"),
    Column("Last seen"),
    Column("State"),
)


class Novelty(StrEnum):
    """How an issue relates to what was known before."""

    NONE = ""
    NEW = "new"
    """Only the newest build of an app has it."""
    REGRESSED = "regressed"
    """A report is later than the decision that it is resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An issue of the list."""

    issue: Issue
    decisions: Sequence[Decision]
    novelty: Novelty

    @property
    def state(self) -> State:
        """The decision that holds; a resolved issue that is there again is open."""
        if not self.decisions or self.novelty is Novelty.REGRESSED:
            return State.OPEN
        return self.decisions[0].state


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    rows: Sequence[Listed]
    total: int
    known: Sequence[Build]
    trends: dict[str, list[int]]
    start: int
    end: int


async def issues_page(service: Service, request: Request) -> Response:
    """Return the issues of the chosen reports."""
    query = request.query_params
    filters = read_filters(query)
    state, sort, number = query.get("state", ""), query.get("sort", ""), query.get("page", "1")
    if state not in _STATES or sort not in _SORTS or not number.isdecimal() or len(number) > 6:  # noqa: PLR2004 - more pages than there are
        raise RefusedError(BAD_REQUEST, "an unknown state, order or page of issues")
    at = max(int(number), 1)
    body = await service.reading(
        request, _made, filters, state, sort, at, has_sql=filters.has_condition
    )
    return page(service, request, "Issues", body, section=ISSUES)


def listed(issue: Issue, decisions: Sequence[Decision], newest: set[str], known: int) -> Listed:
    """Return an issue as lists show it.

    Args:
        issue: with all of its reports.
        decisions: those about it, the one that holds first.
        newest: the newest build of each app.
        known: the number of builds.
    """
    novelty = Novelty.NONE
    if decisions and decisions[0].state is State.RESOLVED and issue.last > decisions[0].changed:
        novelty = Novelty.REGRESSED
    elif known > 1 and issue.builds and set(issue.builds) <= newest:
        novelty = Novelty.NEW
    return Listed(issue=issue, decisions=decisions, novelty=novelty)


def newest_builds(known: Sequence[Build]) -> set[str]:
    """Return the build of each app that appeared last."""
    return set({row.app: row.build for row in known if row.build}.values())


def in_order(own: Sequence[str], known: Sequence[Build]) -> list[str]:
    """Return builds in the order in which they appeared."""
    place = {row.build: at for at, row in reversed(list(enumerate(known)))}
    return sorted(own, key=lambda build: place.get(build, -1))


def badges(row: Listed) -> str:
    """Return what a reader has to know about an issue, beside its title."""
    parts = [element("span", text(row.issue.kind), class_="badge")]
    if row.novelty:
        parts.append(element("span", row.novelty.value, class_=f"badge {row.novelty.value}"))
    if row.issue.fingerprint.is_build_sensitive:
        parts.append(
            element(
                "span",
                "unnamed frames",
                class_="badge",
                title="Some frames have no name, so other builds are other issues.",
            )
        )
    return " ".join(parts)


def title_of(issue: Issue) -> tuple[str, str]:
    """Return the function and the image of an issue, as HTML."""
    frames = issue.fingerprint.frames
    if not frames:
        return shown(issue.title, 200), ""
    if issue.kind == "audit":
        return shown(issue.title, 200), ""
    return shown(frames[0].name or issue.title, 200), shown(frames[0].image, 60)


def _made(warehouse: Warehouse, filters: Filters, state: str, sort: str, at: int) -> str:
    """Return the content of the page."""
    content = _list(warehouse, filters, state, sort, at)
    further = choice("state", "State", state, _STATES.items())
    further += choice("sort", "Order", sort, _SORTS.items())
    form = filter_form(
        ISSUES, filters, content.known, further, "os LIKE '%26%' AND model = 'iPhone17,1'"
    )
    return form + _body(content, filters, {"state": state, "sort": sort}, at)


def _list(warehouse: Warehouse, filters: Filters, state: str, sort: str, at: int) -> _List:
    known = builds(warehouse)
    decisions = warehouse.decisions()
    condition = filters.condition
    chosen = warehouse.issues(condition)
    whole = chosen if condition == "true" else warehouse.issues()
    history = {issue.id: issue for issue in whole}
    newest, count = newest_builds(known), len({row.build for row in known})
    rows = []
    for issue in chosen:
        row = listed(history.get(issue.id, issue), decisions.get(issue.id, []), newest, count)
        if state == "any" or row.state.value == (state or State.OPEN.value):
            rows.append(Listed(issue=issue, decisions=row.decisions, novelty=row.novelty))
    if sort == "devices":
        rows.sort(key=lambda row: (-row.issue.devices, -row.issue.reports, row.issue.id))
    elif sort:
        is_last = sort == "last"
        rows.sort(key=lambda row: row.issue.last if is_last else row.issue.first, reverse=True)
    part = rows[(at - 1) * _PAGE : at * _PAGE]
    start = filters.start or min((row.first for row in known), default=0)
    end = max((row.last for row in known), default=0) + 1
    counts = trends(warehouse, [row.issue for row in part], start, end)
    return _List(rows=part, total=len(rows), known=known, trends=counts, start=start, end=end)


def trends(
    warehouse: Warehouse, issues: Sequence[Issue], start: int, end: int
) -> dict[str, list[int]]:
    """Return by issue the reports of its most frequent stacks, by part of the time.

    Args:
        warehouse: where they are.
        issues: some issues.
        start: the beginning of the time, in ns since 1970.
        end: its end.
    """
    if not issues:
        return {}
    each = _TREND_STACKS // len(issues)
    owner = {(row.kind, variant.stack): row.id for row in issues for variant in row.variants[:each]}
    width = max(-(-(end - start) // BUCKETS), 1)
    parameters = {"start": start, "width": width, "stacks": list({stack for _, stack in owner})}
    made: dict[str, list[int]] = defaultdict(lambda: [0] * BUCKETS)
    for row in warehouse.query(_TREND, parameters).to_pylist():
        issue = owner.get((row["kind"], row["stack"]))
        if issue is not None and 0 <= row["bucket"] < BUCKETS:
            made[issue][row["bucket"]] += row["reports"]
    return dict(made)


def _body(content: _List, filters: Filters, chosen: dict[str, str], at: int) -> str:
    if not content.known:
        return element(
            "div",
            "<p>No reports yet.</p><p>Send one: <code>curl --data-binary @crash.ips "
            "http://127.0.0.1:8760/v1/reports</code></p>",
            class_="empty",
        )
    if not content.rows:
        return element("p", "No issue has these properties.", class_="empty")
    rows = [_row(row, content) for row in content.rows]
    query = {**filters.query, **{name: value for name, value in chosen.items() if value}}
    head = element("p", counted(content.total, "issue"), class_="note", role="status")
    return (
        head
        + table(_COLUMNS, rows, "Issues", class_="issues", is_cards=True)
        + pager(ISSUES, query, at, content.total, _PAGE)
    )


def _row(row: Listed, content: _List) -> list[str]:
    issue = row.issue
    name, image = title_of(issue)
    head = link(f"/issues/{issue.id}", name, class_="title mono")
    reason = " ".join(shown(exception, 40) for exception in issue.exceptions[:2])
    below = element("div", f"{badges(row)} {reason} <small>{image}</small>", class_="below")
    counts = content.trends.get(issue.id, [])
    label = f"Reports from {moment_text(content.start)} to {moment_text(content.end)}"
    order = in_order(issue.builds, content.known)
    first, last = (order[0], order[-1]) if order else ("", "")
    span = shown(first, 24) if first == last else f"{shown(first, 24)} → {shown(last, 24)}"
    return [
        head + below,
        sparkline(counts, label),
        f"{issue.reports:,}",
        f"{issue.devices:,}",
        span,
        moment(issue.last),
        state_badge(row),
    ]


def state_badge(row: Listed) -> str:
    """Return the state of an issue."""
    return element("span", row.state.value, class_=f"state {row.state.value}")


def moment_text(nanoseconds: int) -> str:
    """Return a day in plain text."""
    return moment(nanoseconds).partition(">")[2].partition(" ")[0]
