"""Rows that engines move: one for each part, with its rows in Arrow's IPC format.

No engine has to know the types of a job, which Spark and others only partly have.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import pyarrow as pa

from machtrace.errors import MachtraceError

WIRE = pa.schema(
    [
        ("rows", pa.binary()),
        ("problem", pa.string()),  # why there are none, else null
        ("remedy", pa.string()),
    ]
)
Work: TypeAlias = Callable[[pa.Table], pa.Table]
"""Returns the answer for each of some parts, as rows of :data:`WIRE` both."""
Begin: TypeAlias = Callable[[], Work]
"""Is called once in each process, and can be sent to it."""
Runner: TypeAlias = Callable[[Sequence[pa.Table], Begin, int], Generator[pa.Table]]
"""Applies the work to parts in a number of processes, and yields the answers in any order."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def packed(table: pa.Table) -> pa.Table:
    """Return a table as one row of :data:`WIRE`."""
    sink = pa.BufferOutputStream()
    # One batch has one dictionary of each column.
    whole = table.unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema, options=_OPTIONS) as writer:
        writer.write_table(whole)
    row = {"rows": sink.getvalue().to_pybytes(), "problem": None, "remedy": None}
    return pa.Table.from_pylist([row], WIRE)


def unpacked(wire: pa.Table) -> list[pa.Table]:
    """Return the tables of rows.

    Raises:
        MachtraceError: the work on one of them failed with it.
    """
    tables = []
    for rows, problem, remedy in zip(*(wire[name] for name in WIRE.names), strict=True):
        if problem.is_valid:
            raise MachtraceError(problem.as_py(), remedy=remedy.as_py() or "")
        tables.append(pa.ipc.open_stream(rows.as_buffer()).read_all())
    return tables


def work_of(kernel: Callable[[pa.Table], pa.Table]) -> Work:
    """Return the work that applies a function to each part."""

    def work(wire: pa.Table) -> pa.Table:
        return pa.concat_tables([_answer(kernel, part) for part in unpacked(wire)])

    return work


def _answer(kernel: Callable[[pa.Table], pa.Table], part: pa.Table) -> pa.Table:
    try:
        return packed(kernel(part))
    except MachtraceError as error:
        # As text: not every engine sends exceptions as they are.
        row = {"rows": None, "problem": str(error), "remedy": error.remedy}
        return pa.Table.from_pylist([row], WIRE)
