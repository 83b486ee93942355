"""Rows of a warehouse as files of other programs: Parquet, Arrow, CSV, lines of JSON.

Rows are written as they are read, so that any number of them needs little memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from machtrace.errors import ArgumentError
from machtrace.warehouse.documents import cell

BATCH_ROWS = 1 << 16


class ExportFormat(StrEnum):
    """Formats of rows."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


def export_format(name: str) -> ExportFormat:
    """Return a format by its name, which is the suffix of its files.

    Raises:
        ArgumentError: there is none of this name.
    """
    try:
        return ExportFormat(name)
    except ValueError:
        raise ArgumentError(
            f"no format of rows is called {name!r}", remedy=f"use {', '.join(ExportFormat)}"
        ) from None


def exported(reader: pa.RecordBatchReader, form: ExportFormat) -> Iterator[tuple[bytes, int]]:
    """Yield the parts of a file with rows, each with its number of rows.

    Args:
        reader: the rows.
        form: the format. CSV and JSON have bytes in hexadecimal.
    """
    if form is ExportFormat.JSONL:
        for batch in _batches(reader):
            yield json_lines(batch), batch.num_rows
        return
    parts = _Parts()
    sink = pa.PythonFile(parts, mode="w")
    is_csv = form is ExportFormat.CSV
    schema = _readable(reader.schema.empty_table()).schema if is_csv else reader.schema
    match form:
        case ExportFormat.PARQUET:
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
        case ExportFormat.ARROW:
            writer = pa.ipc.new_file(sink, schema)
        case _:
            writer = csv.CSVWriter(sink, schema)
    with writer:
        for batch in _batches(reader):
            table = pa.Table.from_batches([batch])
            writer.write_table(_readable(table) if is_csv else table)
            yield parts.take(), batch.num_rows
    yield parts.take(), 0


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise ArgumentError(f"the query failed: {error}", remedy="correct it") from None


class _Parts:
    """A file whose bytes are taken away while it is written."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        """Return what was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _readable(table: pa.Table) -> pa.Table:
    """Return the columns as CSV has them: bytes in hexadecimal, lists as text."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind):
            columns[name] = column.cast(kind.value_type)
        elif pa.types.is_primitive(kind) or pa.types.is_string(kind):
            columns[name] = column
        else:
            values = (cell(each) for each in column.to_pylist())
            columns[name] = pa.array([None if v is None else str(v) for v in values], pa.string())
    return pa.table(columns)


def json_lines(batch: pa.RecordBatch | pa.Table) -> bytes:
    """Return rows as lines of JSON, with bytes in hexadecimal."""
    lines = (
        json.dumps({name: _finite(cell(value)) for name, value in row.items()}) + "\n"
        for row in batch.to_pylist()
    )
    return "".join(lines).encode()


def _finite(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
