"""The page of an audit's matrix: who calls which family of watched functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log10

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text
from machtrace.server.graphs.selection import stored_rows
from machtrace.server.graphs.watched import Family, caller_of, families, family_of, image_owners
from machtrace.server.pages.filters import Build, Filters, builds, filter_form, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.graphs.flame import FLAME, HINT
from machtrace.server.pages.graphs.parts import ROWS, exports, stacks_choice, stacks_condition
from machtrace.server.pages.parts import address, facts, link, shown
from machtrace.server.service import Service
from machtrace.warehouse.graphs.audit_matrix import NOBODY, Caller, Cell, audit_matrix
from machtrace.warehouse.warehouse import Warehouse

AUDIT = "/audit"
_MAX_COLUMNS = 24
_SHADES = 6
_ORDER = ("app", "sdk", "unknown")
_OWNERS = {"app": "App", "sdk": "SDKs", "unknown": "Others"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    known: Sequence[Build]
    cells: Sequence[Cell]
    whole: int


async def audit_page(service: Service, request: Request) -> Response:
    """Return the matrix of the chosen stacks."""
    query = request.query_params
    filters, stacks = read_filters(query), query.get("stacks", "")
    where = stacks_condition(filters, stacks)
    body = await service.reading(
        request, _made, filters, stacks, where, has_sql=filters.has_condition
    )
    return page(service, request, "Audit", body, section=AUDIT)


def _made(warehouse: Warehouse, filters: Filters, stacks: str, where: str) -> str:
    """Return the content of the page."""
    content = _matrix(warehouse, where)
    base = {**filters.query, **({"stacks": stacks} if stacks else {})}
    form = filter_form(AUDIT, filters, content.known, stacks_choice(stacks), HINT)
    return form + _body(content, base, where)


def _matrix(warehouse: Warehouse, where: str) -> _Matrix:
    tree = stored_rows(warehouse, where)
    callers = caller_of(image_owners(warehouse))
    return _Matrix(
        known=builds(warehouse),
        cells=audit_matrix(tree, family_of, callers),
        whole=int(tree.own.sum()),
    )


def _body(content: _Matrix, base: dict[str, str], where: str) -> str:
    count = sum(family.functions for family in families())
    watched = f"{count:,} functions in {len(families())} families"
    if not content.cells:
        words = "No stack calls a watched function." if content.known else "No reports yet."
        note = element("p", f"Watched are {watched}.", class_="note")
        return element("div", element("p", words) + note, class_="empty")
    sums: dict[Caller, int] = defaultdict(int)
    for cell in content.cells:
        sums[cell.caller] += cell.weight
    columns = sorted(sums, key=lambda each: (_rank(each), -sums[each], each))
    shown_columns = sorted(columns, key=lambda each: -sums[each])[:_MAX_COLUMNS]
    columns = [column for column in columns if column in shown_columns]
    called = {cell.family for cell in content.cells}
    rows = [family for family in families() if family.name in called]
    numbers = (
        ("Families called", f"{len(rows)} of {len(families())}"),
        ("Callers", f"{len(sums):,}"),
        ("Weight of all stacks", f"{content.whole:,}"),
    )
    note = (
        "A number is the weight of stacks with a function of the family whose first caller outside "
        "of the system is the column’s; it leads to their flame graph. Stacks are evidence of what "
        "ran, not of all that can run."
    )
    return (
        facts(numbers)
        + element("p", note, class_="note")
        + _table(content.cells, rows, columns, base)
        + exports("/v1/audit", ROWS, {"where": where})
    )


def _rank(caller: Caller) -> int:
    if caller.name == NOBODY:
        return len(_ORDER)
    return _ORDER.index(caller.owner) if caller.owner in _ORDER else len(_ORDER)


def _table(
    cells: Sequence[Cell], rows: Sequence[Family], columns: Sequence[Caller], base: dict[str, str]
) -> str:
    weights = {(cell.family, cell.caller): cell.weight for cell in cells}
    most = max(weights.values())
    groups: dict[str, int] = {}
    for each in columns:
        group = "System" if each.name == NOBODY else _OWNERS.get(each.owner, "Others")
        groups[group] = groups.get(group, 0) + 1
    top = '<th rowspan="2" scope="col">Family</th>' + "".join(
        element("th", text(name), scope="colgroup", colspan=str(size))
        for name, size in groups.items()
    )
    heads = "".join(
        element("th", element("span", _caller(column)), scope="col", class_="caller")
        for column in columns
    )
    body = []
    for family in rows:
        badge = "".join(
            element("span", "required reason", class_="badge", title=", ".join(family.required))
            for _ in family.required[:1]
        )
        line = [element("th", f"{text(family.name)} {badge}", scope="row")]
        for each in columns:
            weight = weights.get((family.name, each), 0)
            if not weight:
                line.append('<td class="number"></td>')
                continue
            shade = 1 + int((_SHADES - 1) * log10(1 + weight) / log10(1 + most))
            where = address(FLAME, **base, family=family.name)
            where += "&caller=" + address("", x=each.name).partition("=")[2]
            line.append(
                element(
                    "td",
                    link(
                        where,
                        f"{weight:,}",
                        title=f"{family.name}: {each.name or 'the system alone'}",
                    ),
                    class_=f"number shade{min(shade, _SHADES)}",
                )
            )
        body.append(element("tr", "".join(line)))
    head = element("thead", element("tr", top) + element("tr", heads))
    inner = element("table", head + element("tbody", "".join(body)), class_="matrix")
    return element(
        "div", inner, class_="scroll", tabindex="0", role="region", aria_label="Who calls what"
    )


def _caller(caller: Caller) -> str:
    return "the system alone" if caller.name == NOBODY else shown(caller.name, 40)
