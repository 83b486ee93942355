"""The page of a flame graph: stored stacks as one tree, and its heaviest functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element
from machtrace.server.graphs.selection import Selection, read_selection
from machtrace.server.graphs.watched import image_owners
from machtrace.server.pages.filters import Build, Filters, builds, filter_form, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.graphs.parts import (
    SCRIPT,
    TREES,
    exports,
    function_link,
    graph,
    hidden,
    selected,
    share,
    stacks_choice,
    stacks_condition,
)
from machtrace.server.pages.parts import Column, address, facts, shown, table
from machtrace.server.service import Service
from machtrace.warehouse.function_tree import MAX_NODES
from machtrace.warehouse.graphs.columns import graph_columns
from machtrace.warehouse.graphs.selection import FunctionCost, function_costs
from machtrace.warehouse.warehouse import Warehouse

FLAME = "/flame"
_LISTED = 50
_PICTURE_NODES = 3000
_FULL = MAX_NODES - MAX_NODES // 20
"""Nodes of a graph that has probably left some out: those that are equal go together."""
COSTS = (
    Column("Function"),
    Column("Image"),
    Column("With what it calls", is_number=True),
    Column("Itself", is_number=True),
)
HINT = "os LIKE '%26%' AND image = 'UIKitCore'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flame:
    known: Sequence[Build]
    data: dict[str, Any]
    costs: Sequence[FunctionCost]
    functions: int
    whole: int


async def flame_page(service: Service, request: Request) -> Response:
    """Return the flame graph of the chosen stacks."""
    query = request.query_params
    filters, stacks = read_filters(query), query.get("stacks", "")
    selection = read_selection(query, stacks_condition(filters, stacks))
    body = await service.reading(
        request, _made, filters, stacks, selection, has_sql=filters.has_condition
    )
    return page(service, request, "Flame graph", body, section=FLAME, scripts=SCRIPT)


def _made(warehouse: Warehouse, filters: Filters, stacks: str, selection: Selection) -> str:
    """Return the content of the page."""
    content = _flame(warehouse, selection)
    form = filter_form(
        FLAME, filters, content.known, stacks_choice(stacks) + hidden(selection.query), HINT
    )
    return form + _body(content, filters, stacks, selection)


def _flame(warehouse: Warehouse, selection: Selection) -> _Flame:
    rows = selection.rows(warehouse)
    tree = selection.tree(warehouse, rows=rows)
    costs = function_costs(rows)
    return _Flame(
        known=builds(warehouse),
        data=graph_columns(tree, image_owners(warehouse)),
        costs=costs[:_LISTED],
        functions=len(costs),
        whole=int(tree.own.sum()),
    )


def _body(content: _Flame, filters: Filters, stacks: str, selection: Selection) -> str:
    base = {**filters.query, **({"stacks": stacks} if stacks else {})}
    chosen = selected(selection, address(FLAME, **base))
    if not content.data["keys"]:
        words = "No stack has these properties." if content.known else "No reports yet."
        return chosen + element("p", words, class_="empty")
    query = {"where": selection.where, **selection.query}
    numbers = [("Weight", f"{content.whole:,}"), ("Functions", f"{content.functions:,}")]
    drawn = len(content.data["keys"])
    part = f"the heaviest {drawn:,}" if drawn >= _FULL else f"{drawn:,}"
    numbers.append(("Nodes of the graph", part))
    picture = address("/v1/flame", **query, format="svg", nodes=_PICTURE_NODES)
    return (
        chosen
        + facts(numbers)
        + graph(content.data, "Flame graph", base, fallback=picture)
        + exports("/v1/flame", TREES, query)
        + element("h2", "Heaviest functions")
        + cost_table(content.costs, content.whole, base)
    )


def cost_table(costs: Sequence[FunctionCost], whole: int, base: dict[str, str]) -> str:
    """Return functions with their weights."""
    rows = [
        [
            function_link(cost.function.name, cost.function.image, base),
            shown(cost.function.image, 60),
            share(cost.total / max(whole, 1)),
            share(cost.own / max(whole, 1)),
        ]
        for cost in costs
    ]
    return table(COSTS, rows, "Functions by weight", class_="costs")
