"""The page of SQL: a query, its rows as a table, and as a download."""

from __future__ import annotations

from collections import defaultdict
from http import HTTPStatus
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from machtrace.errors import ArgumentError, MachtraceError
from machtrace.reports.html.markup import element, folded, text
from machtrace.server.answering import ROWS, TRUNCATED, first_rows, written_rows
from machtrace.server.limits import BAD_REQUEST, RefusedError
from machtrace.server.pages.frame import SEE_OTHER, page, sentence
from machtrace.server.pages.parts import Column, address, link, shown, table
from machtrace.server.pages.signing_in import read_form
from machtrace.server.service import Service
from machtrace.warehouse.documents import cell
from machtrace.warehouse.sql import RowLimits, Rows
from machtrace.warehouse.warehouse import Warehouse

SQL = "/sql"
_ROWS = 500
_BYTES = 130_000
"""Characters of the rows as HTML."""
_TAGS = 25
"""Those of a cell's tags."""
_LONG = 64
_MAX_IN_ADDRESS_LENGTH = 6000
"""Characters of a query."""
_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE NOT internal ORDER BY table_name, column_index"
)
_EXAMPLES = (
    (
        "Reports by build",
        (
            "SELECT app, build, kind, count(*) AS reports, count(DISTINCT device) AS devices\n"
            "FROM reports GROUP BY ALL ORDER BY reports DESC"
        ),
    ),
    (
        "Where crashes happen",
        (
            "SELECT image, function, count(*) AS reports FROM stacks_of_reports\n"
            "WHERE kind = 'crash' AND role = 'subject' GROUP BY ALL ORDER BY reports DESC LIMIT 50"
        ),
    ),
    (
        "The latest reports",
        (
            "SELECT make_timestamp(coalesce(time, received) // 1000) AS at, kind, app, build, os,\n"
            "  exception FROM reports ORDER BY at DESC LIMIT 50"
        ),
    ),
)
_LINKED = {"stack": "/stacks/", "issue": "/issues/"}
"""Columns whose values are pages, by name."""


async def sql_page(service: Service, request: Request) -> Response:
    """Return the rows of a query as a page or a download; without a query the form."""
    return await _answer(service, request, dict(request.query_params))


async def receive_sql(service: Service, request: Request) -> Response:
    """Return the address of a query; or its rows, if it is too long for an address."""
    form = await read_form(service, request)
    sql, kind = form.get("sql", ""), form.get("format", "")
    if len(sql) <= _MAX_IN_ADDRESS_LENGTH:
        # Reloading and sharing the page then work.
        return RedirectResponse(address(SQL, sql=sql, format=kind), SEE_OTHER)
    return await _answer(service, request, form)


async def _answer(service: Service, request: Request, form: dict[str, str]) -> Response:
    sql, kind = form.get("sql", ""), form.get("format", "")
    if kind and kind not in ROWS:
        raise RefusedError(BAD_REQUEST, f"unknown format {kind!r}; use {', '.join(ROWS)}")
    if kind and sql.strip():
        return await _download(service, request, sql, kind)
    views = await service.reading(request, _views)
    if not sql.strip():
        return page(service, request, "SQL", _form("") + _examples() + views, section=SQL)
    most = RowLimits(_ROWS, service.limits.answer_bytes)
    try:
        rows = await service.reading(request, _rows_made, sql, most, has_sql=True)
    except MachtraceError as error:
        return _problem(service, request, sql, error, views)
    return page(service, request, "SQL", _form(sql) + rows + views, section=SQL)


async def _download(service: Service, request: Request, sql: str, kind: str) -> Response:
    limits = service.limits
    most = RowLimits(limits.rows, limits.answer_bytes)
    try:
        data, is_whole = await service.reading(request, written_rows, sql, most, kind, has_sql=True)
    except MachtraceError as error:
        return _problem(service, request, sql, error, await service.reading(request, _views))
    headers = {
        "Content-Disposition": f'attachment; filename="rows.{ROWS[kind].end}"',
        TRUNCATED: "false" if is_whole else "true",
    }
    return Response(data, headers=headers, media_type=ROWS[kind].media_type)


def _problem(
    service: Service, request: Request, sql: str, error: MachtraceError, views: str
) -> Response:
    status = BAD_REQUEST if isinstance(error, ArgumentError) else HTTPStatus.BAD_GATEWAY
    status = error.status if isinstance(error, RefusedError) else status
    message = str(error).removeprefix("the query failed: ")
    problem = element("pre", "\n".join(map(text, message.splitlines())), class_="problem")
    if isinstance(error, RefusedError) and error.remedy != RefusedError.remedy:
        problem += element("p", text(sentence(error.remedy)))
    body = _form(sql) + element("div", problem, role="alert") + views
    return page(service, request, "SQL", body, section=SQL, status=int(status))


def _rows_made(warehouse: Warehouse, sql: str, limits: RowLimits) -> str:
    """Return the rows of a query as HTML."""
    return _rows(first_rows(warehouse, sql, limits))


def _form(sql: str) -> str:
    lines = min(max(sql.count("\n") + 2, 4), 16)
    area = element(
        "textarea",
        "\n" + "\n".join(map(text, sql.splitlines())),
        id="sql",
        name="sql",
        rows=str(lines),
        spellcheck="false",
        autocomplete="off",
        aria_describedby="sql-help",
        required="",
    )
    downloads = "".join(
        f'<button name="format" value="{name}">{label}</button> '
        for name, (label, *_) in ROWS.items()
    )
    return (
        f'<form class="sql" method="post" action="{SQL}">'
        f'<label for="sql">One SELECT statement of DuckDB’s SQL</label>{area}'
        f'<p class="row"><button class="main">Run</button><span class="note">Download:</span>'
        f'{downloads}<span class="note" id="sql-help">Reads the views below alone, and changes '
        "nothing.</span></p></form>"
    )


def _examples() -> str:
    items = "".join(
        element("li", link(address(SQL, sql=sql), text(name))) for name, sql in _EXAMPLES
    )
    return element("h2", "Examples") + element("ul", items)


def _rows(rows: Rows) -> str:
    names = rows.table.column_names
    kinds = [
        pa.types.is_integer(each.type) or pa.types.is_floating(each.type)
        for each in rows.table.schema
    ]
    columns = [Column(name[:100], is_number) for name, is_number in zip(names, kinds, strict=True)]
    written: list[list[str]] = []
    size = 0
    for row in zip(*(column.to_pylist() for column in rows.table.columns), strict=True):
        cells = [_cell(name, value) for name, value in zip(names, row, strict=True)]
        size += sum(len(each) + _TAGS for each in cells)
        if size > _BYTES:
            break
        written.append(cells)
    total = rows.table.num_rows
    is_whole = rows.is_whole and len(written) == total
    count = f"{len(written):,} row{'' if len(written) == 1 else 's'}"
    note = count if is_whole else f"The first {count}; a download has more."
    if not columns or not written:
        return element("p", "No rows.", class_="empty", role="status")
    return element("p", note, class_="note", role="status") + table(
        columns, written, "Rows", class_="rows"
    )


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 - any value of a database
    if value is None:
        return '<span class="null">NULL</span>'
    simple = cell(value)
    if isinstance(simple, str) and name in _LINKED and simple:
        return link(_LINKED[name] + simple, shown(simple, 64), class_="mono")
    if isinstance(simple, float):
        return text(f"{simple:.6g}")
    content = shown(simple, 300)
    if isinstance(simple, str) and len(simple) > _LONG:
        return element("span", content, class_="long")
    return content


def _views(warehouse: Warehouse) -> str:
    views: dict[str, list[str]] = defaultdict(list)
    for row in warehouse.query(_COLUMNS).to_pylist():
        kind = element("small", text(row["data_type"].lower()))
        views[row["table_name"]].append(f"<code>{text(row['column_name'])}</code> {kind}")
    items = "".join(
        folded(
            element("code", text(view)) + f" <small>{len(columns)} columns</small>",
            element("ul", "".join(element("li", column) for column in columns), class_="columns"),
        )
        for view, columns in views.items()
    )
    return element("section", element("h2", "Views") + items, class_="views")
