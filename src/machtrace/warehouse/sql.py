"""SQL over a warehouse: views over the files of its segments, by DuckDB.

DuckDB reads the Parquet files and owns nothing. Queries read no other file, write none, and load no
extension. Numbers of frames, nodes and reports are those of a segment: join by ``segment``, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from machtrace.errors import ArgumentError, MachtraceError, MemoryLimitError, MissingExtraError
from machtrace.warehouse.schema import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Parameters: TypeAlias = Sequence[Any] | dict[str, Any]
"""The values of a statement, in order or by name."""
_BATCH_ROWS = 4096
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_REMEDY = "a view's columns: FROM (DESCRIBE stacks_of_reports)"
_NUMBERED = {"reports": "report", "images": "image", "frames": "frame", "nodes": "node"}
"""Tables whose rows have a number, by which others refer to them."""
VIEWS = """
CREATE VIEW functions AS
SELECT segment, frame, function, file, line, source FROM names WHERE place = 0;
CREATE VIEW stack_tops AS
SELECT s.segment, s.node, s.key, n.frame, i.name AS image, i.owner, i.uuid, f."offset",
    nullif(coalesce(c.function, f."text"), '') AS function, c.file, c.line, c.source
FROM stacks s
JOIN nodes n USING (segment, node)
LEFT JOIN frames f ON f.segment = n.segment AND f.frame = n.frame AND n.depth > 0
LEFT JOIN images i ON i.segment = f.segment AND i.image = f.image
LEFT JOIN functions c ON c.segment = f.segment AND c.frame = f.frame;
CREATE VIEW stacks_of_reports AS
SELECT o.* EXCLUDE (time), coalesce(o.time, r.time, r.received) AS time,
    r.* EXCLUDE (segment, report, time), t.key AS stack, t.function, t.image, t.file, t.line
FROM occurrences o
JOIN reports r USING (segment, report)
LEFT JOIN stack_tops t USING (segment, node);
"""
"""``functions``: the innermost call at each frame. ``stack_tops``: a row for each distinct stack
with its innermost frame. ``stacks_of_reports``: a row for each stack of a report."""


class SegmentFiles(NamedTuple):
    """The files of a segment."""

    number: int
    folder: Path
    names: Path
    """The table of names, which may be later than the segment."""


class Resources(NamedTuple):
    """Limits of a connection."""

    memory: str = "1GB"
    """As DuckDB writes sizes."""
    spills: Path | None = None
    """A folder for what does not fit into memory, which DuckDB makes and removes; None: nothing is
    written."""
    spill_bytes: int | None = None
    """None: most of the disk."""


def connect(
    segments: Sequence[SegmentFiles], resources: Resources | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a connection with a view for each table of the segments, and :data:`VIEWS`.

    Raises:
        MissingExtraError: DuckDB is not installed.
    """
    connection = _connection(resources or Resources())
    for name in TABLES:
        connection.execute(_view(name, segments))
    connection.execute(VIEWS)
    folders = sorted({str(segment.folder.parent) for segment in segments})
    folders += sorted({str(segment.names.parent) for segment in segments})
    connection.execute("SET allowed_directories = ?", [folders])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def connect_counts(table: pa.Table, resources: Resources) -> duckdb.DuckDBPyConnection:
    """Return a connection whose ``reports`` are rows of counts; see :func:`matching_rows`."""
    connection = _connection(resources)
    connection.register("reports", table.select(_CONDITIONS))
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _connection(resources: Resources) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError("SQL over a warehouse", extra="warehouse") from None
    connection = duckdb.connect(config={**_CONFIG, "memory_limit": resources.memory})
    # A process that a fork server made looks like an interactive one.
    connection.execute("SET enable_progress_bar = false")
    spills = resources.spills
    connection.execute("SET temp_directory = ?", ["" if spills is None else str(spills)])
    if resources.spill_bytes is not None:
        # DuckDB 2.0 states a limit that connect() was given, and exceeds it.
        connection.execute("SET max_temp_directory_size = ?", [f"{resources.spill_bytes}B"])
    return connection


class Rows(NamedTuple):
    """The first rows of an answer."""

    table: pa.Table
    is_whole: bool
    """Whether these are all."""


class RowLimits(NamedTuple):
    """The size of an answer."""

    rows: int = 1 << 62
    size: int = 1 << 62
    """In bytes."""


def query(
    connection: duckdb.DuckDBPyConnection,
    text: str,
    limits: RowLimits | None = None,
    parameters: Parameters | None = None,
) -> Rows:
    """Return the rows of one SELECT statement.

    Args:
        connection: see :func:`connect`.
        text: the statement.
        limits: of the answer; the first rows are returned if it has more.
        parameters: values for the statement, in order or by name.

    Raises:
        ArgumentError: the statement is invalid, is another one, or refers to what it must not read.
        MemoryLimitError: it needs more memory than the connection may use.
    """
    with translated_errors():
        relation = checked(connection, text, parameters)
        if limits is None:
            return Rows(relation.to_arrow_table(), is_whole=True)
        return _first_rows(relation, limits)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise ArgumentError or MemoryLimitError for DuckDB's errors."""
    import duckdb

    try:
        yield
    except MachtraceError:
        raise
    # Readers of rows have its errors as OSError, by their texts.
    except (duckdb.Error, OSError, MemoryError) as error:
        first = str(error).partition("\n")[0]
        is_full = isinstance(error, (duckdb.OutOfMemoryException, MemoryError))
        if is_full or first.startswith("Out of Memory Error"):
            raise MemoryLimitError(
                f"the query needs more memory than it may use: {first}"
            ) from None
        raise ArgumentError(f"the query failed: {error}", remedy=_REMEDY) from None


def checked(
    connection: duckdb.DuckDBPyConnection, text: str, parameters: Parameters | None = None
) -> duckdb.DuckDBPyRelation:
    """Return the relation of one SELECT statement.

    Raises:
        ArgumentError: it is another one.
    """
    import duckdb

    statements = duckdb.extract_statements(text)
    # COPY could write where the views may read.
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise ArgumentError("the query failed: pass one SELECT statement", remedy=_REMEDY)
    return connection.sql(text, params=parameters)


_CONDITIONS = ("kind", "app", "build", "os", "exception", "day")


def matching_rows(connection: duckdb.DuckDBPyConnection, where: str, rows: int) -> pa.Array | None:
    """Return which rows of counts a condition over ``reports`` selects.

    Args:
        connection: see :func:`connect_counts`.
        where: the condition.
        rows: how many there are.

    Returns:
        None if it refers to other columns, or is invalid.

    Raises:
        MemoryLimitError: it needs more memory than the connection may use.
    """
    import pyarrow as pa

    try:
        text = f"SELECT coalesce(({where}\n), false) AS chosen FROM reports"  # noqa: S608 - queries only read
        chosen = query(connection, text).table["chosen"]
    except ArgumentError:
        return None
    if chosen.type != pa.bool_() or len(chosen) != rows:
        return None
    return chosen.combine_chunks()


def _first_rows(relation: duckdb.DuckDBPyRelation, limits: RowLimits) -> Rows:
    # One more, which shows that there are more.
    reader = relation.limit(limits.rows + 1).to_arrow_reader(_BATCH_ROWS)
    batches, rows, left = [], 0, limits.size
    for batch in reader:
        fitting = _fitting(batch, left)
        batches.append(batch.slice(0, fitting))
        rows += fitting
        left -= batches[-1].nbytes
        if fitting < batch.num_rows:
            return Rows(_table(batches, reader.schema, limits.rows), is_whole=False)
    return Rows(_table(batches, reader.schema, limits.rows), is_whole=rows <= limits.rows)


def _table(batches: Sequence[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(batches, schema).slice(0, rows)


def _fitting(batch: pa.RecordBatch, size: int) -> int:
    """Return how many of the first rows have a size in bytes at most."""
    if batch.nbytes <= size:
        return int(batch.num_rows)
    return bisect_right(
        range(1, batch.num_rows + 1), size, key=lambda rows: batch.slice(0, rows).nbytes
    )


def _view(name: str, segments: Sequence[SegmentFiles]) -> str:
    parts = []
    if not segments or name == "reports":
        # The first segments have reports of fewer columns.
        columns = ", ".join(
            f'NULL::{_sql_type(field.type)} AS "{field.name}"' for field in TABLES[name]
        )
        number = _NUMBERED.get(name)
        numbered = "" if number is None else f'NULL::BIGINT AS "{number}", '
        parts.append(f"(SELECT NULL::BIGINT AS segment, {numbered}{columns} LIMIT 0)")
    for segment in segments:
        path = segment.names if name == "names" else segment.folder / f"{name}.parquet"
        number = _NUMBERED.get(name)
        numbered = "" if number is None else f', file_row_number AS "{number}"'
        options = "" if number is None else ", file_row_number = true"
        exclude = "" if number is None else " EXCLUDE (file_row_number)"
        quoted = str(path).replace("'", "''")
        columns = f"{segment.number}::BIGINT AS segment{numbered}, *{exclude}"
        parts.append(f"SELECT {columns} FROM read_parquet('{quoted}'{options})")  # noqa: S608 - ours
    rows = " UNION ALL BY NAME ".join(parts)
    if name == "reports":
        day = "make_timestamp(coalesce(time, received) // 1000)::DATE AS day"
        rows = f"SELECT *, {day} FROM ({rows})"  # noqa: S608 - ours
    return f"CREATE VIEW {name} AS {rows}"


def _sql_type(kind: pa.DataType) -> str:
    names = {"uint64": "UBIGINT", "uint32": "UINTEGER", "uint16": "USMALLINT", "uint8": "UTINYINT"}
    names |= {"int64": "BIGINT", "int32": "INTEGER"}
    text = str(kind)
    return "BLOB" if "binary" in text else names.get(text, "VARCHAR")
