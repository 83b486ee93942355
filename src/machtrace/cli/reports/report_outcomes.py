"""Tasks made up into batches, and these done here or in several processes."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from itertools import islice

from machtrace.reports.batches import BatchOptions, BatchOutcome, BatchRunner
from machtrace.cli.reports.outputs import Task

_FILES = 32
"""Files that are taken at once: enough for images to be shared, few enough to show progress."""
_BYTES = 1 << 25
"""Bytes of files that are taken at once, unless one alone has more."""

Batch = list[Task]


def outcomes(
    tasks: Iterator[Task], options: BatchOptions, jobs: int | None
) -> Generator[BatchOutcome]:
    """What becomes of each batch, in the order of the tasks.

    Another process is started where there is more than one batch; fewer are done by then.
    """
    batches = _batches(tasks)
    first = list(islice(batches, 2))
    processes = min(jobs or os.cpu_count() or 1, len(first) and 64)
    if len(first) < 2 or processes == 1:  # noqa: PLR2004 - nothing to share out
        runner = BatchRunner(options)
        for batch in _handed_on(first, batches):
            yield runner.run(batch)
        return
    from machtrace.cli.reports.processes import run_in_processes

    yield from run_in_processes(_handed_on(first, batches), options, processes)


def _handed_on(first: list[Batch], others: Iterator[Batch]) -> Iterator[Batch]:
    """All of them, none held here once it is taken."""
    while first:
        yield first.pop(0)
    yield from others


def _batches(tasks: Iterator[Task]) -> Iterator[Batch]:
    batch: Batch = []
    size = 0
    for task in tasks:
        batch.append(task)
        size += task[0].size
        if len(batch) == _FILES or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
