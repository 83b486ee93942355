"""Tables as answers: JSON, CSV, or an Arrow stream."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from machtrace.server.limits import BAD_REQUEST, RefusedError
from machtrace.warehouse.documents import cell

ARROW = "application/vnd.apache.arrow.stream"
TABLES = {"json": "application/json", "csv": "text/csv; charset=utf-8", "arrow": ARROW}
"""By format of a table: its media type."""
_ENDS = {"json": "json", "csv": "csv", "arrow": "arrows"}


def chosen_format(form: str, known: Any) -> str:  # noqa: ANN401 - any collection of texts
    """Return a format that is known.

    Raises:
        RefusedError: it is not.
    """
    if form not in known:
        raise RefusedError(BAD_REQUEST, f"unknown format {form!r}; use {', '.join(known)}")
    return form


def table_response(table: pa.Table, form: str, name: str, further: dict[str, Any]) -> Response:
    """Return a table in a format.

    Args:
        table: its rows.
        form: a key of :data:`TABLES`.
        name: of the rows in JSON, and of a file that is downloaded.
        further: other fields of the JSON.
    """
    if form == "arrow":
        data = arrow_stream(table)
    elif form == "csv":
        data = csv_text(table)
    else:
        rows = [
            {key: finite(cell(value)) for key, value in row.items()} for row in table.to_pylist()
        ]
        data = json.dumps({**further, name: rows}).encode()
    headers = {} if form == "json" else attachment(f"{name}.{_ENDS[form]}")
    return Response(data, headers=headers, media_type=TABLES[form])


def attachment(file: str) -> dict[str, str]:
    """Return the header that lets a browser store an answer."""
    return {"Content-Disposition": f'attachment; filename="{file}"'}


def arrow_stream(table: pa.Table) -> bytes:
    """Return rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def csv_text(table: pa.Table) -> bytes:
    """Return rows as CSV, with a line of names."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(table.column_names)
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        writer.writerow(["" if value is None else cell(value) for value in row])
    return out.getvalue().encode("utf-8", "backslashreplace")


def finite(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    """Return a value of a row as JSON has it, without numbers that JSON does not have."""
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
