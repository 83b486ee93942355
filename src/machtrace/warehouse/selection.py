"""The stacks that an SQL condition selects, as columns: which nodes, with which weights.

A condition over a report's columns is evaluated once for each report. The occurrences of those
reports are ranges of their table, which is read without SQL; the others are not read. A condition
over the columns of occurrences needs no join with stacks. Only one that names a function, an image,
a file, a line or a stack needs the whole view.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.warehouse.forest import Forest
from machtrace.warehouse.schema import OCCURRENCES
from machtrace.warehouse.segment import numbers
from machtrace.warehouse.segment_files import opened
from machtrace.warehouse.sql import SegmentFiles, checked, translated_errors
from machtrace.warehouse.stack_tree import Weights

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS = 1 << 20
_BY_ROW = re.compile(r"\b(random|setseed|uuid\w*|gen_random_uuid|nextval|currval)\b", re.IGNORECASE)
"""Functions whose value differs from row to row."""
_PART = "hash(device) % {groups} + {first}"
_OF_REPORTS = """
SELECT segment, report, ({part})::INTEGER AS part FROM (
    SELECT * EXCLUDE (time) FROM reports
) AS stacks_of_reports WHERE ({where}
)
"""
_OF_OCCURRENCES = """
SELECT segment, node, weight, ({part})::INTEGER AS part FROM (
    SELECT o.* EXCLUDE (time), coalesce(o.time, r.time, r.received) AS time,
        r.* EXCLUDE (segment, report, time)
    FROM occurrences o JOIN reports r USING (segment, report)
) AS stacks_of_reports WHERE ({where}
)
"""
_OF_STACKS = """
SELECT segment, node, weight, ({part})::INTEGER AS part FROM stacks_of_reports WHERE ({where}
)
"""


class Chunk(NamedTuple):
    """Some selected stacks of a segment."""

    segment: int
    node: npt.NDArray[Any]
    weight: npt.NDArray[Any]
    part: npt.NDArray[Any]
    """By stack: the group of its device; see :func:`selected`."""


def selected(
    connection: duckdb.DuckDBPyConnection,
    files: Mapping[int, SegmentFiles],
    where: str,
    *,
    groups: int = 1,
    first: int = 0,
    part: str = "",
) -> list[Chunk]:
    """Return the stacks that a condition selects.

    Args:
        connection: see ``sql.connect``.
        files: those of the segments, by number.
        where: a condition over the columns of ``stacks_of_reports``.
        groups: how many groups devices are divided into.
        first: the number of the first group.
        part: an expression over the columns of reports instead: the number of a part.

    Raises:
        ArgumentError: the condition is invalid.
        FileAccessError, FormatError: a file cannot be read, or is damaged.
    """
    part = part or _PART.format(groups=groups, first=first)
    reports = None
    if not _BY_ROW.search(where):
        reports = _answer(connection, _OF_REPORTS.format(part=part, where=where), is_try=True)
    if reports is not None:
        with translated_errors():
            chosen = reports.read_all()
        return list(_of_reports(chosen, files))
    rows = _answer(connection, _OF_OCCURRENCES.format(part=part, where=where), is_try=True)
    if rows is None:
        rows = _answer(connection, _OF_STACKS.format(part=part, where=where))
    with translated_errors():
        return [chunk for batch in rows or () for chunk in _by_segment(batch)]


def used_segments(chunks: Sequence[Chunk]) -> list[int]:
    """Return the numbers of the segments with selected stacks, ascending."""
    return sorted({chunk.segment for chunk in chunks})


def weights_of(forest: Forest, chunks: Sequence[Chunk]) -> Weights:
    """Return the weight of each node of a forest."""
    own = np.zeros(len(forest.frame), np.int64)
    for chunk in chunks:
        np.add.at(own, forest.nodes_of(chunk.segment, chunk.node), chunk.weight)
    return own


def parts_of(
    forest: Forest, numbered: npt.NDArray[np.int64], chunks: Sequence[Chunk], nodes: int, parts: int
) -> Weights:
    """Return the weights of nodes by part.

    Args:
        forest: the stacks.
        numbered: by node of the forest: a number.
        chunks: the selected stacks.
        nodes: how many of these numbers there are.
        parts: how many parts.
    """
    own = np.zeros(nodes * parts, np.int64)
    for chunk in chunks:
        number = numbered[forest.nodes_of(chunk.segment, chunk.node)].astype(np.int64)
        np.add.at(own, number * parts + chunk.part, chunk.weight)
    return own.reshape(nodes, parts)


def _answer(
    connection: duckdb.DuckDBPyConnection, text: str, *, is_try: bool = False
) -> pa.RecordBatchReader | None:
    """Return the rows of a statement; None if it names a column that is not there."""
    import duckdb

    with translated_errors():
        try:
            return checked(connection, text).to_arrow_reader(_ROWS)
        except duckdb.BinderException:
            if is_try:
                return None
            raise


def _by_segment(batch: pa.RecordBatch) -> Iterator[Chunk]:
    names = ("segment", "node", "weight", "part")
    segment, *columns = (batch.column(name).to_numpy(zero_copy_only=False) for name in names)
    for number in np.unique(segment).tolist():
        here = segment == number
        yield Chunk(number, *(column[here] for column in columns))


def _of_reports(rows: pa.Table, files: Mapping[int, SegmentFiles]) -> Iterator[Chunk]:
    segment, report, part = (numbers(rows, name) for name in ("segment", "report", "part"))
    for number in np.unique(segment).tolist():
        here = segment == number
        wanted = np.full(int(report[here].max()) + 1, -1, np.int32)
        wanted[report[here]] = part[here]
        path = files[number].folder / "occurrences.parquet"
        for node, weight, parts in _occurrences(path, wanted):
            yield Chunk(number, node, weight, parts)


def _occurrences(
    path: Path, wanted: npt.NDArray[np.int32]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield nodes, weights and parts of the occurrences of reports that have a part."""
    with opened(path) as file:
        for group in range(file.num_row_groups):
            lowest, highest = _range(file, group, "report", len(wanted))
            here = wanted[lowest : highest + 1]
            if not (here >= 0).any():
                continue
            least, most = _range(file, group, "weight", None)
            is_same = least == most
            columns = ["report", "node"] if is_same else ["report", "node", "weight"]
            table = file.read_row_group(group, columns=columns)
            report = numbers(table, "report")
            known = np.append(wanted, np.int32(-1))[np.minimum(report, len(wanted))]
            node = numbers(table, "node")
            size = len(node)
            weight = np.broadcast_to(np.int64(least), size) if is_same else numbers(table, "weight")
            rows = known >= 0
            if rows.all():
                yield node, weight, known
            elif rows.any():
                yield node[rows], weight[rows], known[rows]


def _range(file: pq.ParquetFile, group: int, column: str, end: int | None) -> tuple[int, int]:
    """Return the least and the largest value of a column in a group of rows."""
    metadata = file.metadata.row_group(group)
    statistics = metadata.column(OCCURRENCES.get_field_index(column)).statistics
    if statistics is None or not statistics.has_min_max:
        return 0, -1 if end is None else end
    return int(statistics.min), int(statistics.max)
