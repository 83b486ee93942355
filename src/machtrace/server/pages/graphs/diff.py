"""The page of a difference: two sets of stacks, what changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text
from machtrace.server.graphs.answers import DIFFERENCES
from machtrace.server.graphs.watched import image_owners
from machtrace.server.pages.filters import Build, Filters, builds, choice, quoted, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.graphs.parts import (
    SCRIPT,
    exports,
    function_link,
    graph,
    percent,
    share,
    signed,
    stacks_choice,
    stacks_condition,
)
from machtrace.server.pages.parts import Column, facts, shown, table
from machtrace.server.service import Service
from machtrace.warehouse.difference import Change
from machtrace.warehouse.graphs.changes import OneSided, one_sided, telling_changes
from machtrace.warehouse.graphs.columns import difference_columns
from machtrace.warehouse.warehouse import Warehouse

DIFF = "/diff"
_LISTED, _ONE_SIDED = 50, 30
_CALLERS = 3
_SIDES = {"a": "Earlier", "b": "Later"}
_CHANGES = (
    Column("Function"),
    Column("Earlier", is_number=True),
    Column("Later", is_number=True),
    Column("Points", is_number=True),
    Column("95 % interval", is_number=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    build: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    data: dict[str, Any]
    weights: tuple[int, int]
    changes: Sequence[Change]
    callers: dict[int, str]
    total: int
    sure: int
    gone: Sequence[OneSided]
    new: Sequence[OneSided]


async def diff_page(service: Service, request: Request) -> Response:
    """Return the difference of two builds, or of any two conditions."""
    query = request.query_params
    filters, stacks = read_filters(query), query.get("stacks", "")
    known = await service.reading(request, builds)
    is_chosen = {"a", "b", "build_a", "build_b"} & query.keys()
    sides = {
        side: _Side(build=query.get(f"build_{side}", ""), where=query.get(side, ""))
        for side in _SIDES
    }
    if not is_chosen:
        sides = _last_two(known, filters)
    form = _form(filters, stacks, sides, known)
    conditions = {side: _condition(filters, stacks, own) for side, own in sides.items()}
    if conditions["a"] == conditions["b"]:
        words = "Choose two builds, or a condition for each side." if known else "No reports yet."
        body = form + element("p", words, class_="empty")
        return page(service, request, "Compare", body, section=DIFF)
    base = {**filters.query, **({"stacks": stacks} if stacks else {})}
    has_sql = filters.has_condition or any(own.where.strip() for own in sides.values())
    body = form + await service.reading(request, _made, base, conditions, has_sql=has_sql)
    return page(service, request, "Compare", body, section=DIFF, scripts=SCRIPT)


def _last_two(known: Sequence[Build], filters: Filters) -> dict[str, _Side]:
    """Return the two newest builds of the app with the most reports."""
    counts: dict[str, int] = {}
    for row in known:
        if row.build and filters.app in ("", row.app):
            counts[row.app] = counts.get(row.app, 0) + row.reports
    app = max(counts, key=lambda each: counts[each], default="")
    own = list(dict.fromkeys(row.build for row in known if row.app == app and row.build))
    pair = own[-2:] if len(own) > 1 else ["", ""]
    return {side: _Side(build=build, where="") for side, build in zip(_SIDES, pair, strict=True)}


def _condition(filters: Filters, stacks: str, side: _Side) -> str:
    parts = [stacks_condition(filters, stacks)]
    if side.build:
        parts.append(f"build = {quoted(side.build)}")
    if side.where.strip():
        parts.append(f"({side.where}\n)")
    return " AND ".join(parts)


def _made(warehouse: Warehouse, base: dict[str, str], conditions: dict[str, str]) -> str:
    """Return the content of the page below its form."""
    return _body(_difference(warehouse, conditions), base, conditions)


def _difference(warehouse: Warehouse, conditions: dict[str, str]) -> _Difference:
    both = warehouse.diff(conditions["a"], conditions["b"])
    changes = telling_changes(both)
    gone, new = one_sided(both)
    listed = changes[:_LISTED]
    return _Difference(
        data=difference_columns(both, image_owners(warehouse)),
        weights=(int(both.before[0]), int(both.after[0])),
        changes=listed,
        callers={each.node: " ← ".join(both.callers(each.node)[:_CALLERS]) for each in listed},
        total=len(changes),
        sure=sum(change.is_sure for change in changes),
        gone=gone,
        new=new,
    )


def _form(filters: Filters, stacks: str, sides: dict[str, _Side], known: Sequence[Build]) -> str:
    options = {
        "kind": [row.kind for row in known],
        "app": [row.app for row in known],
    }
    fields = [
        choice(
            name,
            label,
            getattr(filters, name),
            [
                ("", "All"),
                *((option, option) for option in dict.fromkeys(filter(None, options[name]))),
            ],
        )
        for name, label in (("kind", "Kind"), ("app", "App"))
    ]
    named = [("", "Any"), *((row.build, row.build) for row in reversed(known) if row.build)]
    groups = "".join(
        element(
            "fieldset",
            element("legend", label)
            + choice(f"build_{side}", "Build", sides[side].build, named)
            + '<label class="wide-field">Condition in SQL'
            + element(
                "input",
                name=side,
                value=sides[side].where,
                spellcheck="false",
                autocomplete="off",
                placeholder="os LIKE '%26%'",
            )
            + "</label>",
            class_=f"side {side}",
        )
        for side, label in _SIDES.items()
    )
    first = "".join(fields) + stacks_choice(stacks) + '<span class="break"></span>'
    inner = first + groups + '<button class="main">Compare</button>'
    return element("form", inner, class_="filters", method="get", action=DIFF, role="search")


def _body(content: _Difference, base: dict[str, str], conditions: dict[str, str]) -> str:
    before, after = content.weights
    if not before and not after:
        return element("p", "No stack is on either side.", class_="empty")
    numbers = (
        ("Earlier weight", f"{before:,}"),
        ("Later weight", f"{after:,}"),
        ("Changes", f"{content.total:,}"),
        ("Beyond chance", f"{content.sure:,}"),
    )
    missing = ""
    if not before or not after:
        which = "earlier" if not before else "later"
        missing = element("p", f"The {which} side has no stack.", class_="refusal", role="status")
    key = (
        '<p class="key"><span class="more">larger share</span> <span class="less">smaller share'
        '</span> <span class="chance">may be chance</span> <span class="note">Width: the shares of '
        "both sides.</span></p>"
    )
    return (
        missing
        + facts(numbers)
        + key
        + graph(content.data, "Difference", base)
        + exports("/v1/diff", DIFFERENCES, conditions)
        + element("h2", "Changes")
        + _changes(content, base)
        + _only("New functions", content.new, base)
        + _only("Gone functions", content.gone, base)
    )


def _changes(content: _Difference, base: dict[str, str]) -> str:
    if not content.changes:
        return element("p", "No share changed.", class_="empty")
    note = element(
        "p",
        "A caller whose change is that of one callee is left out. The interval is of resampled "
        "devices; where it has zero, the change may be chance.",
        class_="note",
    )
    return note + table(
        _CHANGES,
        [_row(change, content, base) for change in content.changes],
        "Changes",
        is_cards=True,
    )


def _row(change: Change, content: _Difference, base: dict[str, str]) -> list[str]:
    kind = "chance" if not change.is_sure else "more" if change.difference > 0 else "less"
    function = change.function
    callers = content.callers[change.node]
    below = f'<div class="below">{shown(function.image, 60)}'
    below += f" called by {shown(callers, 200)}</div>" if callers else "</div>"
    points = element("b", signed(change.difference), class_=f"points {kind}")
    interval = f"{signed(change.least)} to {signed(change.most)}"
    if not change.is_sure:
        interval += "<br><small>may be chance</small>"
    return [
        function_link(function.name, function.image, base) + below,
        percent(change.before),
        percent(change.after),
        points,
        interval,
    ]


def _only(title: str, functions: Sequence[OneSided], base: dict[str, str]) -> str:
    if not functions:
        return ""
    columns = (Column("Function"), Column("Image"), Column("Share", is_number=True))
    rows = [
        [
            function_link(function.function.name, function.function.image, base),
            shown(function.function.image, 60),
            share(function.share),
        ]
        for function in functions[:_ONE_SIDED]
    ]
    count = f" <small>{text(f'{len(functions):,}')}</small>"
    return element("h2", title + count) + table(columns, rows, title, class_="costs")
