"""``machtrace warehouse run``: a job over many segments, on one machine or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.audit.commands import rules_option
from machtrace.cli.options import (
    DocumentFormat,
    check_search_paths,
    count_type,
    format_option,
    parse_path,
    quiet_option,
    search_option,
)
from machtrace.cli.tables import write_json
from machtrace.model.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

_JOBS = ("naming", "grouping", "flame", "audit")
_ENGINES = ("local", "processes", "ray", "dask", "spark")
_CHUNK = 1 << 20


@click.command("run")
@click.argument("job", metavar="JOB", type=click.Choice(_JOBS))
@click.argument("place", metavar="PLACE")
@click.option(
    "--engine",
    metavar="ENGINE",
    type=click.Choice(_ENGINES),
    default="local",
    show_default=True,
    help="What runs it: local, processes, ray, dask or spark.",
)
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    type=count_type(),
    help="Worker processes (default: one for each processor).",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=parse_path,
    help="Write the rows to this file: .parquet, or .arrow.",
)
@rules_option
@search_option
@quiet_option
@format_option()
def run_job(
    *,
    job: str,
    place: str,
    engine: str,
    jobs: int | None,
    output: Path | None,
    rules: str,
    search: tuple[str, ...],
    form: DocumentFormat,
) -> int:
    """Run JOB over the segments or spools at PLACE, on an engine.

    Jobs are naming (the calls at all stored offsets), grouping (reports by issue, variant, build
    and device), flame (all functions as one tree with weights) and audit (calls in the *.spool
    files of a fleet by rule and stack). PLACE is a warehouse, a folder of segments or of spools, or
    a URI of one, such as s3://bucket/warehouse. The rows are the same on each engine. The exit
    status is 1 if a spool could not be read.
    """
    from machtrace.cli.console import output as printed
    from machtrace.cli.console import warn
    from machtrace.cli.progress import progress_bar
    from machtrace.engines.jobs import Engine, Job, Request, digests, run

    check_search_paths(search)
    _check_output(output)
    request = Request(Job(job), place, search, rules)
    with progress_bar(None, unit="files") as progress:
        done = 0

        def on_part(now: int, every: int) -> None:
            nonlocal done
            progress.show(note=f"{now} of {every}")
            progress.advance(max(now - done, 0))
            done = now

        rows = run(request, Engine(engine), jobs or os.cpu_count() or 1, on_part)
    if output is not None:
        _write(rows, output)
    problems = _problems(rows)
    with printed():
        if form is DocumentFormat.JSON:
            document = {"job": job, "engine": engine, "rows": rows.num_rows}
            write_json({**document, "digests": digests(rows)})
        else:
            sys.stdout.write(f"{counted(rows.num_rows, 'row')}\n")
    for problem in problems:
        warn(problem)
    return 1 if problems else 0


def _check_output(path: Path | None) -> None:
    if path is not None and path.suffix not in (".parquet", ".arrow"):
        raise click.BadParameter(
            f"{path.name} ends neither in .parquet nor in .arrow", param_hint="'--output'"
        )


def _problems(rows: pa.Table) -> list[str]:
    if "problem" not in rows.column_names:
        return []
    return [f"{text}; it is left out" for text in rows["problem"].drop_null().to_pylist()]


def _write(rows: pa.Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from machtrace.atomic_write import replace_file

    sink = pa.BufferOutputStream()
    if path.suffix == ".parquet":
        pq.write_table(rows, sink, compression="zstd")
    else:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows.unify_dictionaries())
    replace_file(str(path), _chunks(memoryview(sink.getvalue())))


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]
