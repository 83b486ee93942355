"""Jobs over a warehouse or a folder of spools, on any engine, with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from machtrace.engines.kernels import audit, flame, grouping, naming
from machtrace.engines.parts import image_parts, read_part, segment_parts, spool_parts
from machtrace.engines.store import Store
from machtrace.engines.wire import Runner, Work, packed, unpacked, work_of
from machtrace.errors import FormatError, MachtraceError
from machtrace.warehouse.segment import Segment

_ROWS = 1 << 22
"""Rows of answers that wait to be merged, beyond as many as are merged already."""


class Engine(StrEnum):
    """Programs that apply a job to its parts."""

    LOCAL = "local"
    PROCESSES = "processes"
    RAY = "ray"
    DASK = "dask"
    SPARK = "spark"


class Job(StrEnum):
    """Jobs."""

    NAMING = "naming"
    GROUPING = "grouping"
    FLAME = "flame"
    AUDIT = "audit"


class Request(NamedTuple):
    """A job, and what it reads."""

    job: Job
    place: str
    """The folder, or its URI: a warehouse or segments; of ``AUDIT`` spools."""
    search: tuple[str, ...] = ()
    """Files and folders with symbols for ``NAMING``, besides the store."""
    rules: str = ""
    """The rules of ``AUDIT``: those of a platform, or a file's."""


class Stage(NamedTuple):
    """A step of a job: a function for each part, and another one for the answers."""

    kernel: Callable[[Request], Callable[[pa.Table], pa.Table]]
    """Is called once in each process; opens what the function needs."""
    merge: Callable[[Sequence[pa.Table]], pa.Table]
    """Is associative and commutative; its answer is in canonical order."""
    schema: pa.Schema


def run(
    request: Request,
    engine: Engine,
    workers: int,
    on_part: Callable[[int, int], object] = lambda _done, _all: None,
) -> pa.Table:
    """Return the rows of a job, which are the same on each engine.

    Args:
        request: the job.
        engine: what applies it to its parts.
        workers: how many processes on this machine; a cluster may have others.
        on_part: is called with the number of parts that are done, and with that of all.

    Raises:
        MachtraceError: the input cannot be read, or the engine failed.
        MissingExtraError: the engine is not installed.
    """
    runner = _runner(engine)
    each = partial(_stage, request, runner, workers, on_part)
    match request.job:
        case Job.NAMING:
            offsets = each("offsets", segment_parts(request.place))
            return each("naming", image_parts(offsets))
        case Job.FLAME:
            return flame.finished(each("flame", segment_parts(request.place)))
        case Job.GROUPING:
            return grouping.finished(each("grouping", segment_parts(request.place)))
        case Job.AUDIT:
            return each("audit", spool_parts(request.place))


def digests(table: pa.Table) -> dict[str, str]:
    """Return a digest of each column's values, whatever their chunks and dictionaries."""
    return {name: _digest(table[name]) for name in table.column_names}


def begin(name: str, request: Request) -> Work:
    """Return the work of a stage, in the process that does it."""
    return work_of(STAGES[name].kernel(request))


def _runner(engine: Engine) -> Runner:
    module = import_module(f"machtrace.engines.runners.{engine.value}")
    return cast("Runner", module.run)


def _stage(
    request: Request,
    runner: Runner,
    workers: int,
    on_part: Callable[[int, int], object],
    name: str,
    parts: Sequence[pa.Table],
) -> pa.Table:
    stage = STAGES[name]
    merger = _Merger(stage)
    done = 0
    on_part(0, len(parts))
    with closing(
        runner([packed(part) for part in parts], partial(begin, name, request), workers)
    ) as (answers):
        for answer in answers:
            merger.add(unpacked(answer))
            done += answer.num_rows
            on_part(done, len(parts))
    if done != len(parts):
        raise MachtraceError(f"the engine answered {done} of {len(parts)} parts")
    return merger.merged()


class _Merger:
    """Merges answers as they arrive, so that each row is merged a few times at most."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._tables: list[pa.Table] = [stage.schema.empty_table()]
        self._waiting = 0

    def add(self, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            self._tables.append(table)
            self._waiting += table.num_rows
        if self._waiting > self._tables[0].num_rows + _ROWS:
            self._tables = [self.merged()]
            self._waiting = 0

    def merged(self) -> pa.Table:
        return self._stage.merge(self._tables)


def _of_segments(
    kernel: Callable[[Segment], pa.Table],
    merge: Callable[[Sequence[pa.Table]], pa.Table],
    schema: pa.Schema,
    *,
    has_occurrences: bool = True,
) -> Stage:
    def opened(request: Request) -> Callable[[pa.Table], pa.Table]:
        store = Store.open(request.place)

        def answer(parts: pa.Table) -> pa.Table:
            rows = parts.to_pylist()
            return merge(
                [kernel(read_part(store, **row, has_occurrences=has_occurrences)) for row in rows]
            )

        return answer

    return Stage(opened, merge, schema)


def _naming(request: Request) -> Callable[[pa.Table], pa.Table]:
    from machtrace.symbolizer.report_names import ReportNames

    names = ReportNames(request.search)
    return lambda images: naming.calls_at(images, names)


def _audit(request: Request) -> Callable[[pa.Table], pa.Table]:
    from machtrace.audit.observed.process_calls import process_calls
    from machtrace.audit.rules import load_rules
    from machtrace.reports.spool.spool import Spool

    store, rules = Store.open(request.place), load_rules(request.rules)

    def one(file: str, device: str) -> pa.Table:
        try:
            spool = Spool.parse(store.read(file), file)
        except FormatError as error:
            return audit.problem_of(device, str(error))
        return audit.calls_of(process_calls(spool, rules, device=device))

    return lambda parts: audit.merged([one(**row) for row in parts.to_pylist()])


STAGES = {
    "offsets": _of_segments(
        naming.offsets_of, naming.merged_offsets, naming.OFFSETS, has_occurrences=False
    ),
    "naming": Stage(_naming, naming.merged_calls, naming.CALLS),
    "flame": _of_segments(flame.tree_of, flame.merged, flame.TREE),
    "grouping": _of_segments(grouping.groups_of, grouping.merged, grouping.GROUPS),
    "audit": Stage(_audit, audit.merged, audit.CALLS),
}


def _digest(column: pa.ChunkedArray) -> str:
    whole = pa.table({"": column}).unify_dictionaries().combine_chunks()[""]
    values: Any = whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    digest = blake2b(str(column.type).encode(), digest_size=16)
    if pa.types.is_boolean(column.type):
        values = values.cast(pa.uint8())
    digest.update(np.packbits(pc.is_null(values).to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_dictionary(column.type):
        order = pc.array_sort_indices(values.dictionary)
        place = np.empty(len(order), np.int64)
        place[order.to_numpy()] = np.arange(len(order))
        texts, values = values.dictionary.take(order), values.indices.fill_null(0)
        _add_bytes(digest, texts)
        digest.update(place[values.to_numpy()].tobytes())
    elif pa.types.is_integer(values.type):
        digest.update(values.fill_null(0).to_numpy().tobytes())
    else:
        _add_bytes(digest, values)
    return digest.hexdigest()


def _add_bytes(digest: blake2b, texts: pa.Array) -> None:
    digest.update(pc.binary_length(texts).fill_null(0).to_numpy().tobytes())
    for text in texts.cast(pa.binary()):
        digest.update(text.as_py() or b"")
