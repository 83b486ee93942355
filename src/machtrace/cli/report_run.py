"""Running batches of reports, and saying what became of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from machtrace.capture.report_batches import (
    BatchItem,
    BatchOptions,
    BatchOutcome,
    BatchRunner,
    merged_missing,
)
from machtrace.cli.console import binary_output, complain, output, warn
from machtrace.cli.report_progress import report_progress
from machtrace.errors import ArgumentError, FileAccessError
from machtrace.report.formats import FORMATS, report_format
from machtrace.report.inputs import ReportInput, report_inputs
from machtrace.report.source import ReportSource

_BATCH = 32
"""Files that are taken at once: enough for images to be shared, few enough to show progress."""
_PAYS = 2 * _BATCH
"""Files from which on a second process is started."""
_SHOWN = 10
Task = tuple[ReportInput, str | None]


def format_of(target: str) -> str:
    """The format whose files are called like ``target``; Apple's text where none is.

    Raises:
        ArgumentError: the name says nothing.
    """
    if target == "-" or not Path(target).suffix:
        return "apple"
    for one in sorted(FORMATS.values(), key=lambda one: -len(one.suffix)):
        if target.endswith(one.suffix) and one.suffix != ".txt":  # several are written as that
            return one.name
    raise ArgumentError(
        f"the name {target} does not say which format to write",
        remedy=f"give --format: {', '.join(FORMATS)}",
    )


def run(files: Sequence[str], options: BatchOptions, target: Path | None, jobs: int | None) -> int:
    """Read, name and write ``files``; the exit status."""
    suffix = report_format(options.format).suffix
    inputs = [one for file in files for one in _inputs(file)]
    if target == Path("-"):
        target = None
    tasks = list(_tasks(inputs, target, suffix))
    outcomes: list[BatchOutcome] = []
    with report_progress(len(tasks)) as progress:
        for outcome in _outcomes(tasks, options, jobs):
            outcomes.append(outcome)
            progress.advance(len(outcome.items))
    named = {one.name for one in inputs if one.is_named}
    items = [item for outcome in outcomes for item in outcome.items]
    _print([item.output for item in items if item.output is not None])
    return _summary(items, outcomes, options, named)


def _inputs(file: str) -> Iterator[ReportInput]:
    if file == "-":
        name = "standard input"
        yield ReportInput(name, ReportSource(name, sys.stdin.buffer.read()), is_named=True)
    else:
        yield from report_inputs(file)


def _tasks(inputs: Sequence[ReportInput], target: Path | None, suffix: str) -> Iterator[Task]:
    """Each input, and where what becomes of it goes."""
    if target is None:
        yield from ((one, None) for one in inputs)
        return
    is_one = len(inputs) == 1 and inputs[0].is_named and not target.is_dir()
    if is_one:
        yield inputs[0], str(target)
        return
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileAccessError(str(target), (error.strerror or "cannot be made").lower()) from error
    taken: set[str] = set()
    for one in inputs:
        stem = Path(one.name.replace(":", "/").replace("\\", "/").rstrip("/")).name
        name = candidate = Path(stem or "report").stem or "report"
        number = 1
        while candidate in taken:
            number += 1
            candidate = f"{name}-{number}"
        taken.add(candidate)
        yield one, str(target / (candidate + suffix))


def _outcomes(
    tasks: Sequence[Task], options: BatchOptions, jobs: int | None
) -> Iterator[BatchOutcome]:
    batches = [tasks[first : first + _BATCH] for first in range(0, len(tasks), _BATCH)]
    processes = jobs or (os.cpu_count() or 1 if len(tasks) >= _PAYS else 1)
    if processes == 1 or len(batches) < 2:  # noqa: PLR2004 - nothing to share out
        runner = BatchRunner(options)
        yield from map(runner.run, batches)
        return
    from machtrace.cli.report_processes import run_in_processes

    yield from run_in_processes(batches, options, min(processes, len(batches)))


def _print(outputs: Sequence[bytes]) -> None:
    if not outputs:
        return
    if sys.stdout.isatty() and all(_is_text(one) for one in outputs):
        with output() as sink:
            sink.write("\n".join(one.decode("utf-8", "backslashreplace") for one in outputs))
        return
    with binary_output() as binary:
        binary.write(b"\n".join(outputs))


def _is_text(data: bytes) -> bool:
    return b"\0" not in data


def _summary(
    items: Sequence[BatchItem],
    outcomes: Sequence[BatchOutcome],
    options: BatchOptions,
    named: set[str],
) -> int:
    """What became of everything, on standard error."""
    status = 0
    unread = 0
    for item in items:
        if item.error is not None:
            if item.name in named or isinstance(item.error, FileAccessError):
                complain(item.error)
                status = 1
            else:
                unread += 1
        if len(items) == 1:
            for text in item.warnings[:_SHOWN]:
                warn(f"{item.name}: {text}")
    reports = sum(item.reports for item in items)
    if options.wants_names and reports:
        _tell_names(outcomes)
    if len(items) > 1:
        rest = f", {unread} files were no reports" if unread else ""
        warn(f"{reports} reports of {len(items)} files{rest}")
    return 1 if not reports else status


def _tell_names(outcomes: Sequence[BatchOutcome]) -> None:
    frames = sum(outcome.frames for outcome in outcomes)
    named = sum(outcome.named for outcome in outcomes)
    contradicted = sum(outcome.contradicted for outcome in outcomes)
    said = f", {contradicted} of them otherwise than the report" if contradicted else ""
    warn(f"{named} of {frames} frames were named{said}")
    missing = merged_missing(outcomes)
    for one in missing[:_SHOWN]:
        uuid = "no UUID" if one.image.uuid is None else str(one.image.uuid).upper()
        name = one.image.name or one.image.path or "???"
        warn(f"no symbols for {name} {one.image.arch or ''} {uuid}: {one.frames} frames")
    if len(missing) > _SHOWN:
        warn(f"no symbols for {len(missing) - _SHOWN} more images")
    for problem in list(dict.fromkeys(str(one) for o in outcomes for one in o.problems))[:_SHOWN]:
        warn(problem)
