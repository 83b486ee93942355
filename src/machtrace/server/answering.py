"""Requests that query: SQL, issues, names of offsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import MemoryLimitError
from machtrace.server.bodies import read_body
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, TOO_LARGE, RefusedError
from machtrace.server.service import Service
from machtrace.server.symbolicate import Job, read_jobs, symbolicated
from machtrace.server.tables import ARROW, arrow_stream, csv_text
from machtrace.warehouse.documents import issue_document
from machtrace.warehouse.export import json_lines
from machtrace.warehouse.sql import RowLimits, Rows
from machtrace.warehouse.warehouse import Warehouse

JSON_LINES = "application/x-ndjson"


class RowFormat(NamedTuple):
    """A format of any rows."""

    label: str
    media_type: str
    end: str
    """The end of a file's name."""
    write: Callable[[pa.Table], bytes]


ROWS = {
    "csv": RowFormat("CSV", "text/csv; charset=utf-8", "csv", csv_text),
    "json": RowFormat("JSON", JSON_LINES, "jsonl", json_lines),
    "arrow": RowFormat("Arrow", ARROW, "arrows", arrow_stream),
}
TRUNCATED = "X-Machtrace-Truncated"
_ISSUES = 1000


async def answer_query(service: Service, request: Request) -> Response:
    """Return the rows of an SQL query, as lines of JSON or an Arrow stream."""
    text, most = _query(await _question(service, request), request)
    limits = RowLimits(min(most, service.limits.rows), service.limits.answer_bytes)
    form = "arrow" if ARROW in request.headers.get("accept", "") else "json"
    data, is_whole = await service.reading(request, written_rows, text, limits, form, has_sql=True)
    headers = {TRUNCATED: "false" if is_whole else "true"}
    return Response(data, headers=headers, media_type=ROWS[form].media_type)


def first_rows(warehouse: Warehouse, text: str, limits: RowLimits) -> Rows:
    """Return the first rows of a query.

    Raises:
        RefusedError: the first row is larger than an answer may be.
    """
    rows = warehouse.first_rows(text, limits)
    if not rows.is_whole and not rows.table.num_rows and limits.rows:
        raise _too_large(limits)
    return rows


def _too_large(limits: RowLimits) -> RefusedError:
    return RefusedError(
        TOO_LARGE,
        f"a row is larger than the {limits.size >> 20:,} MiB of an answer",
        remedy=MemoryLimitError.remedy,
    )


def written_rows(
    warehouse: Warehouse, text: str, limits: RowLimits, form: str
) -> tuple[bytes, bool]:
    """Return the first rows of a query in one of :data:`ROWS`, and whether these are all."""
    rows = first_rows(warehouse, text, limits)
    data, table, is_whole = b"", rows.table, rows.is_whole
    while len(data := ROWS[form].write(table)) > limits.size:
        # They are larger as text.
        fitting = min(table.num_rows - 1, table.num_rows * limits.size // len(data))
        if fitting <= 0:
            raise _too_large(limits)
        table, is_whole = table.slice(0, fitting), False
    return data, is_whole


async def answer_issues(service: Service, request: Request) -> Response:
    """Return the issues of the reports that a condition selects, the most frequent first."""
    where = request.query_params.get("where", "true")
    most = number(request.query_params.get("limit", str(_ISSUES)), "limit")
    return await service.reading(request, _issues, where, most, has_sql=is_condition(where))


def _issues(warehouse: Warehouse, where: str, most: int) -> Response:
    issues, decisions = warehouse.issues(where), warehouse.decisions()
    rows = [issue_document(issue, decisions.get(issue.id, [])) for issue in issues[:most]]
    return JSONResponse({"total": len(issues), "issues": rows})


def is_condition(where: str) -> bool:
    """Whether a condition of a request can take any time."""
    return where.strip().lower() not in ("", "true")


async def answer_received(service: Service, request: Request) -> Response:
    """Return the bytes of a record as they were received."""
    name = request.path_params["record"]
    body = await service.performing(lambda each: each.received(name))
    if body is None:
        raise RefusedError(NOT_FOUND, "there is no such record")
    # The name is a client's.
    label = "".join(one if one.isascii() and one.isalnum() else "_" for one in body.name[-100:])
    stem, _, end = label.rpartition("_")
    file = f"{stem}.{end}" if stem and end else label or "report"
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(body.data, headers=headers, media_type="application/octet-stream")


async def answer_wanted(service: Service, request: Request) -> Response:
    """Return the images whose symbols are missing, those of most frames first."""
    return await service.reading(request, _wanted)


def _wanted(warehouse: Warehouse) -> Response:
    return JSONResponse({"wanted": [row._asdict() for row in warehouse.wanted()]})


async def answer_symbolicate(service: Service, request: Request) -> Response:
    """Return the names of offsets in modules, as Mozilla's symbol server does."""
    try:
        document = json.loads(await _question(service, request))
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the request is no JSON: {error}") from None
    jobs = read_jobs(document, service.limits.frames)

    def work(jobs: list[Job]) -> dict[str, Any]:
        with service.names() as names:
            return symbolicated(jobs, names, service.store)

    return JSONResponse(await asyncio.to_thread(work, jobs))


async def refuse_code(_service: Service, _request: Request) -> Response:
    """Refuse lines of sources and instructions.

    A debug file may name any file, and who sends it chooses the name: none of them is read.
    """
    raise RefusedError(
        NOT_FOUND,
        "the server has no sources, and does not disassemble",
        remedy="see docs/server.md",
    )


async def _question(service: Service, request: Request) -> bytes:
    with service.memory.reservation() as room:
        return await read_body(request, service.limits.question_bytes, service.limits, room)


def _query(data: bytes, request: Request) -> tuple[str, int]:
    """Return the text of a query and the number of rows."""
    most = 1 << 62
    try:
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            return data.decode(), most
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the query cannot be read: {error}") from None
    text = document.get("sql") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise RefusedError(BAD_REQUEST, 'a query is {"sql": TEXT, "rows": NUMBER}')
    return text, number(str(document.get("rows", most)), "rows")


def number(text: str, name: str) -> int:
    """Return a parameter that is a whole number.

    Raises:
        RefusedError: it is none.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 19:  # noqa: PLR2004 - 64 bits
        raise RefusedError(BAD_REQUEST, f"{name} is no number")
    return int(text)
