"""Requests for graphs: flame graphs, differences, functions, hangs, who calls what is watched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.server.answering import is_condition, number
from machtrace.server.graphs.selection import Selection, read_selection, stored_rows
from machtrace.server.graphs.watched import caller_of, families, family_of, image_owners
from machtrace.server.limits import NOT_FOUND, RefusedError
from machtrace.server.service import Service
from machtrace.server.tables import (
    ARROW,
    TABLES,
    arrow_stream,
    attachment,
    chosen_format,
    table_response,
)
from machtrace.warehouse.difference import Difference
from machtrace.warehouse.documents import flame_document
from machtrace.warehouse.function_tree import MAX_NODES, FunctionTree, heaviest
from machtrace.warehouse.graphs.audit_matrix import audit_matrix
from machtrace.warehouse.graphs.butterfly import Butterfly, butterfly
from machtrace.warehouse.graphs.changes import OneSided, one_sided, telling_changes
from machtrace.warehouse.graphs.columns import (
    difference_table,
    flame_table,
    folded_difference,
    graph_columns,
)
from machtrace.warehouse.graphs.hangs import MAX_HANGS, StoredHang, stored_hangs
from machtrace.warehouse.graphs.selection import FunctionCost, function_costs
from machtrace.warehouse.warehouse import Warehouse

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
FLAMES = {
    "folded": _TEXT,
    "speedscope": _JSON,
    "firefox": _JSON,
    "pprof": "application/octet-stream",
    "arrow": ARROW,
    "json": _JSON,
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}
"""By format of weighted stacks: its media type."""
DIFFERENCES = {"json": _JSON, "folded": _TEXT, "arrow": ARROW}
"""By format of a difference: its media type."""
_FILES = {
    "folded": "folded",
    "speedscope": "speedscope.json",
    "firefox": "firefox.json",
    "pprof": "pb.gz",
    "arrow": "arrows",
}
"""By format: the end of the name of a file."""
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; sandbox"
_CHANGES, _FUNCTIONS = 1000, 1000
_HANG_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("report", "stack")),
        *((name, pa.int64()) for name in ("time", "duration")),
        *((name, pa.string()) for name in StoredHang._fields[4:]),
    ]
)


async def answer_flame(service: Service, request: Request) -> Response:
    """Return the stacks that a condition selects, as one weighted tree."""
    query = request.query_params
    form = chosen_format(query.get("format", "folded"), FLAMES)
    nodes = max(number(query.get("nodes", str(MAX_NODES)), "nodes"), 1)
    selection = read_selection(query, query.get("where", "true"))
    has_sql = is_condition(selection.where)
    return await service.reading(request, _flame, selection, nodes, form, has_sql=has_sql)


def _flame(warehouse: Warehouse, selection: Selection, nodes: int, form: str) -> Response:
    return tree_response(warehouse, selection.tree(warehouse, nodes), form)


def tree_response(warehouse: Warehouse, tree: FunctionTree, form: str) -> Response:
    """Return a tree in one of :data:`FLAMES`.

    Raises:
        RefusedError: it has no stack.
    """
    if not tree.own.any():
        raise RefusedError(NOT_FOUND, "no stack has this condition")
    name = warehouse.folder.resolve().name
    headers: dict[str, str] = {}
    if form == "json":
        return JSONResponse(graph_columns(tree, image_owners(warehouse)))
    if form in _FILES:
        safe = "".join(each if each.isascii() and each.isalnum() else "-" for each in name)
        headers |= attachment(f"{safe}.{_FILES[form]}")
    else:
        policy = f"{_PAGE_POLICY} allow-scripts" if form == "html" else _PAGE_POLICY
        headers["Content-Security-Policy"] = policy
    data = arrow_stream(flame_table(tree)) if form == "arrow" else flame_document(tree, name, form)
    return Response(data, headers=headers, media_type=FLAMES[form])


async def answer_diff(service: Service, request: Request) -> Response:
    """Return the difference of two sets of stacks."""
    query = request.query_params
    form = chosen_format(query.get("format", "json"), DIFFERENCES)
    most = number(query.get("limit", str(_CHANGES)), "limit")
    sides = query.get("a", "true"), query.get("b", "true")
    has_sql = any(map(is_condition, sides))
    return await service.reading(request, _difference, sides, form, most, has_sql=has_sql)


def _difference(warehouse: Warehouse, sides: tuple[str, str], form: str, most: int) -> Response:
    both = warehouse.diff(*sides)
    if form == "json":
        return JSONResponse(_difference_document(both, sides, most))
    data = folded_difference(both) if form == "folded" else arrow_stream(difference_table(both))
    headers = attachment(f"difference.{_FILES[form]}")
    return Response(data, headers=headers, media_type=DIFFERENCES[form])


async def answer_functions(service: Service, request: Request) -> Response:
    """Return functions by weight; or one of them with its callers, callees and builds."""
    query = request.query_params
    name, image, where = query.get("name", ""), query.get("image"), query.get("where", "true")
    has_sql = is_condition(where)
    most = number(query.get("limit", str(_FUNCTIONS)), "limit")
    side = chosen_format(query.get("side", "callees"), ("callers", "callees"))
    form = chosen_format(query.get("format", "json"), FLAMES if name else TABLES)
    if not name:
        words = query.get("search", "")
        return await service.reading(request, _functions, where, words, most, form, has_sql=has_sql)
    return await service.reading(
        request, _function, name, image, where, side, form, has_sql=has_sql
    )


def _functions(warehouse: Warehouse, where: str, words: str, most: int, form: str) -> Response:
    tree = stored_rows(warehouse, where)
    costs = matching(function_costs(tree), words)
    further = {"whole": int(tree.own.sum()), "total": len(costs)}
    return table_response(costs_table(costs[:most]), form, "functions", further)


def _function(
    warehouse: Warehouse, name: str, image: str | None, where: str, side: str, form: str
) -> Response:
    made = butterfly(warehouse, name, image, where)
    if not made.total:
        raise RefusedError(NOT_FOUND, "no stack of this condition has the function")
    if form == "json":
        return JSONResponse(_function_document(made))
    tree = made.callers if side == "callers" else made.callees
    return tree_response(warehouse, heaviest(tree), form)


async def answer_hangs(service: Service, request: Request) -> Response:
    """Return the latest hangs of the reports that a condition selects."""
    query = request.query_params
    form = chosen_format(query.get("format", "json"), TABLES)
    most = number(query.get("limit", str(MAX_HANGS)), "limit")
    where = query.get("where", "true")
    has_sql = is_condition(where)
    most = min(most, service.limits.rows)
    return await service.reading(request, _hangs, where, most, form, has_sql=has_sql)


def _hangs(warehouse: Warehouse, where: str, most: int, form: str) -> Response:
    hangs = stored_hangs(warehouse, where, most)
    rows = [
        {**hang._asdict(), "report": hang.report.hex(), "stack": hang.stack.hex()} for hang in hangs
    ]
    return table_response(pa.Table.from_pylist(rows, schema=_HANG_COLUMNS), form, "hangs", {})


async def answer_audit(service: Service, request: Request) -> Response:
    """Return how many stacks call each family of watched functions, by caller."""
    query = request.query_params
    form = chosen_format(query.get("format", "json"), TABLES)
    where = query.get("where", "true")
    return await service.reading(request, _matrix, where, form, has_sql=is_condition(where))


def _matrix(warehouse: Warehouse, where: str, form: str) -> Response:
    callers = caller_of(image_owners(warehouse))
    cells = audit_matrix(stored_rows(warehouse, where), family_of, callers)
    required = {family.name: list(family.required) for family in families()}
    columns = {
        "family": pa.array([cell.family for cell in cells], pa.string()),
        "required": pa.array([", ".join(required[cell.family]) for cell in cells], pa.string()),
        "caller": pa.array([cell.caller.name for cell in cells], pa.string()),
        "owner": pa.array([cell.caller.owner for cell in cells], pa.string()),
        "weight": pa.array([cell.weight for cell in cells], pa.int64()),
    }
    return table_response(pa.table(columns), form, "cells", {})


def matching(costs: Sequence[FunctionCost], words: str) -> list[FunctionCost]:
    """Return the functions whose name or image has a text, in any case."""
    wanted = words.strip().lower()
    return [
        cost
        for cost in costs
        if wanted in cost.function.name.lower() or wanted in cost.function.image.lower()
    ]


def costs_table(costs: Sequence[FunctionCost]) -> pa.Table:
    """Return the weights of functions as a table."""
    return pa.table(
        {
            "name": pa.array([cost.function.name for cost in costs], pa.string()),
            "image": pa.array([cost.function.image for cost in costs], pa.string()),
            "own": pa.array([cost.own for cost in costs], pa.int64()),
            "total": pa.array([cost.total for cost in costs], pa.int64()),
        }
    )


def _difference_document(both: Difference, sides: Sequence[str], most: int) -> dict[str, Any]:
    gone, new = one_sided(both)
    changes = telling_changes(both)
    of_side = partial(_one_sided, most=most)
    return {
        "a": {"where": sides[0], "weight": int(both.before[0])},
        "b": {"where": sides[1], "weight": int(both.after[0])},
        "total": len(changes),
        "changes": [
            {
                "name": change.function.name,
                "image": change.function.image,
                "callers": both.callers(change.node),
                "a": change.before,
                "b": change.after,
                "least": change.least,
                "most": change.most,
                "is_sure": change.is_sure,
            }
            for change in changes[:most]
        ],
        "gone": of_side(gone),
        "new": of_side(new),
    }


def _one_sided(functions: Sequence[OneSided], most: int) -> list[dict[str, Any]]:
    return [
        {**function.function._asdict(), "share": function.share} for function in functions[:most]
    ]


def _function_document(made: Butterfly) -> dict[str, Any]:
    return {
        "name": made.function.name,
        "image": made.function.image or None,
        "images": list(made.images),
        "whole": made.whole,
        "own": made.own,
        "total": made.total,
        "callers": [_neighbour(neighbour) for neighbour in neighbours(made.callers)],
        "callees": [_neighbour(neighbour) for neighbour in neighbours(made.callees)],
        "builds": [build._asdict() for build in made.builds],
        "places": [place._asdict() for place in made.places],
    }


def neighbours(tree: FunctionTree) -> list[FunctionCost]:
    """Return the functions next to the outermost ones of a tree, the heaviest first."""
    totals = tree.totals
    made: dict[int, list[int]] = {}
    for node in (tree.tree.depth == 2).nonzero()[0].tolist():  # noqa: PLR2004 - below the outermost
        sums = made.setdefault(int(tree.tree.frame[node]), [0, 0])
        sums[0] += int(tree.own[node])
        sums[1] += int(totals[node])
    costs = [FunctionCost(tree.functions[at], *sums) for at, sums in made.items()]
    return sorted(costs, key=lambda each: (-each.total, each.function))


def _neighbour(cost: FunctionCost) -> dict[str, Any]:
    return {"name": cost.function.name, "image": cost.function.image, "weight": cost.total}
