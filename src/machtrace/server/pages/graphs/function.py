"""The page of a function: its callers above, its callees below, its share by build, its lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text
from machtrace.server.graphs.answers import matching, neighbours
from machtrace.server.graphs.selection import stored_rows
from machtrace.server.graphs.watched import image_owners
from machtrace.server.pages.filters import Build, Filters, builds, filter_form, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.graphs.flame import FLAME, HINT, cost_table
from machtrace.server.pages.graphs.parts import (
    ROWS,
    SCRIPT,
    TREES,
    exports,
    function_link,
    graph,
    hidden,
    percent,
    share,
    stacks_choice,
    stacks_condition,
)
from machtrace.server.pages.parts import Column, address, facts, link, shown, table
from machtrace.server.service import Service
from machtrace.warehouse.function_tree import heaviest
from machtrace.warehouse.graphs.butterfly import BuildShare, Butterfly, butterfly
from machtrace.warehouse.graphs.columns import graph_columns
from machtrace.warehouse.graphs.selection import FunctionCost, function_costs
from machtrace.warehouse.warehouse import Warehouse

FUNCTIONS = "/functions"
_NODES = 5_000
"""Nodes of each of the two graphs: the heaviest."""
_NEIGHBOURS, _LISTED, _PLACES = 25, 200, 30
_BESIDE = (Column("Function"), Column("Image"), Column("Share", is_number=True))
_BUILDS = (
    Column("Build"),
    Column("App"),
    Column("Share of the build", is_number=True),
    Column("Weight", is_number=True),
)
_LINES = (Column("File"), Column("Image"), Column("Call sites", is_number=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    known: Sequence[Build]
    made: Butterfly
    callers: dict[str, Any]
    callees: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    known: Sequence[Build]
    costs: Sequence[FunctionCost]
    total: int
    whole: int


async def functions_page(service: Service, request: Request) -> Response:
    """Return a function between its callers and callees; without a name, the heaviest functions."""
    query = request.query_params
    filters, stacks = read_filters(query), query.get("stacks", "")
    name, image = query.get("name", ""), query.get("image")
    where = stacks_condition(filters, stacks)
    has_sql = filters.has_condition
    if not name:
        words = query.get("search", "")
        body = await service.reading(
            request, _list_made, filters, stacks, where, words, has_sql=has_sql
        )
        return page(service, request, "Functions", body, section=FLAME)
    body = await service.reading(
        request, _made, filters, stacks, where, name, image, has_sql=has_sql
    )
    return page(service, request, name[:200], body, section=FLAME, scripts=SCRIPT)


def _list_made(warehouse: Warehouse, filters: Filters, stacks: str, where: str, words: str) -> str:
    """Return the content of the page without a function."""
    listed = _list(warehouse, where, words)
    search = '<label>Name<input name="search" type="search" '
    search += f'value="{text(words)}" spellcheck="false" autocomplete="off"></label>'
    form = filter_form(FUNCTIONS, filters, listed.known, stacks_choice(stacks) + search, HINT)
    return form + _functions(listed, _base(filters, stacks), where, words)


def _made(
    warehouse: Warehouse, filters: Filters, stacks: str, where: str, name: str, image: str | None
) -> str:
    """Return the content of the page of a function."""
    content = _function(warehouse, name, image, where)
    fields = {"name": name, **({} if image is None else {"image": image})}
    form = filter_form(
        FUNCTIONS, filters, content.known, stacks_choice(stacks) + hidden(fields), HINT
    )
    return form + _body(content, _base(filters, stacks), where, filters)


def _base(filters: Filters, stacks: str) -> dict[str, str]:
    return {**filters.query, **({"stacks": stacks} if stacks else {})}


def _list(warehouse: Warehouse, where: str, words: str) -> _List:
    tree = stored_rows(warehouse, where)
    costs = matching(function_costs(tree), words)
    whole = int(tree.own.sum())
    return _List(known=builds(warehouse), costs=costs[:_LISTED], total=len(costs), whole=whole)


def _function(warehouse: Warehouse, name: str, image: str | None, where: str) -> _Function:
    made = butterfly(warehouse, name, image, where)
    owners = image_owners(warehouse)
    return _Function(
        known=builds(warehouse),
        made=made,
        callers=graph_columns(heaviest(made.callers, _NODES), owners),
        callees=graph_columns(heaviest(made.callees, _NODES), owners),
    )


def _functions(content: _List, base: dict[str, str], where: str, words: str) -> str:
    if not content.costs:
        return element("p", "No function has these properties.", class_="empty")
    part = f"{content.total:,} functions"
    if content.total > len(content.costs):
        part = f"The heaviest {len(content.costs):,} of {part}"
    query = {"where": where, "search": words}
    return (
        element("p", part, class_="note", role="status")
        + cost_table(content.costs, content.whole, base)
        + exports("/v1/functions", ROWS, query)
    )


def _body(content: _Function, base: dict[str, str], where: str, filters: Filters) -> str:
    made = content.made
    if not made.total:
        other = link(address(FUNCTIONS, **base, search=made.function.name), "Search for the name")
        words = f"<p>No stack of these has the function.</p><p>{other}</p>"
        return element("div", words, class_="empty")
    name, image = made.function.name, made.function.image
    numbers = (
        ("With what it calls", f"{percent(made.total / made.whole)} · {made.total:,}"),
        ("Itself", f"{percent(made.own / made.whole)} · {made.own:,}"),
        ("Image", shown(image, 80) if image else _images(made, base)),
    )
    query: dict[str, object] = {"where": where, "name": name}
    if image:
        query["image"] = image
    through = address(FLAME, **base, function=name, image=image or None)
    return (
        facts(numbers)
        + element("p", link(through, "Flame graph of its stacks", class_="button"))
        + _side("Callers", content.callers, made.callers, made.total, base, is_up=True)
        + exports("/v1/functions", TREES, {**query, "side": "callers"})
        + _side("Callees", content.callees, made.callees, made.total, base)
        + exports("/v1/functions", TREES, {**query, "side": "callees"})
        + _builds(made.builds, filters)
        + _places(made)
    )


def _images(made: Butterfly, base: dict[str, str]) -> str:
    if len(made.images) == 1:
        return shown(made.images[0] or "none", 80)
    return " ".join(
        link(address(FUNCTIONS, **base, name=made.function.name, image=image), shown(image, 60))
        for image in made.images[:_NEIGHBOURS]
        if image
    )


def _side(
    title: str,
    data: dict[str, Any],
    tree: Any,  # noqa: ANN401 - a tree of functions
    total: int,
    base: dict[str, str],
    *,
    is_up: bool = False,
) -> str:
    rows = [
        [
            function_link(neighbour.function.name, neighbour.function.image, base),
            shown(neighbour.function.image, 60),
            share(neighbour.total / max(total, 1)),
        ]
        for neighbour in neighbours(tree)[:_NEIGHBOURS]
    ]
    if not rows:
        words = (
            "Nothing calls it: it is outermost." if is_up else "It calls nothing in these stacks."
        )
        return element("h2", title) + element("p", words, class_="note")
    direct = table(_BESIDE, rows, title, class_="costs")
    return element("h2", title) + graph(data, title, base, is_up=is_up) + direct


def _builds(builds_: Sequence[BuildShare], filters: Filters) -> str:
    if not builds_ or filters.build:
        return ""
    most = max(build.share for build in builds_) or 1.0
    rows = [
        [
            shown(build.build or "unknown", 40),
            shown(build.app, 60),
            share(build.share / most, percent(build.share)),
            f"{build.weight:,} <small>of {build.whole:,}</small>",
        ]
        for build in builds_
    ]
    return element("h2", "By build") + table(_BUILDS, rows, "Share by build", class_="costs")


def _places(made: Butterfly) -> str:
    if not made.places:
        return ""
    rows = [
        [
            shown(place.file, 200) + (f":{place.line}" if place.line else ""),
            shown(place.image, 60),
            f"{place.frames:,}",
        ]
        for place in made.places[:_PLACES]
    ]
    return element("h2", "Lines") + table(_LINES, rows, "Files and lines")
