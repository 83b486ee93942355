"""Processing reports in batches, in this process or several, with a summary on standard error.

Files are read when their batch is built, and released when it is written: any number of them takes
the memory of a few batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path

from machtrace.atomic_write import replace_file
from machtrace.cli.console import binary_output, output, print_error, print_message, warn
from machtrace.cli.progress import Progress, progress_bar, shows_progress
from machtrace.cli.reports.outputs import Task, tasks
from machtrace.errors import ArgumentError, FileAccessError, MachtraceError
from machtrace.model.image import shown_identifier
from machtrace.model.text import counted, printable
from machtrace.reports.batches import (
    BatchItem,
    BatchOptions,
    BatchOutcome,
    BatchRunner,
    MissingImages,
)
from machtrace.reports.inputs import (
    ReportInput,
    count_files,
    report_inputs,
    standard_input,
)
from machtrace.reports.writers import (
    FORMATS,
    FileJoiner,
    ReportFormat,
    format_of_suffix,
    report_format,
)

_FILES = 32
"""Files per batch: enough for images to be shared, few enough to show progress."""
_BYTES = 1 << 25
"""Bytes per batch, unless one file alone has more."""

FEW_FILES = 8
"""Maximum number of files that are processed without a progress bar."""

Batch = list[Task]


def outcomes(
    tasks: Iterator[Task], options: BatchOptions, jobs: int | None
) -> Generator[BatchOutcome]:
    """Yield the outcome of each batch, in the order of the tasks.

    Processes are started for two batches or more; a single one is faster in this process.
    """
    batches = _batches(tasks)
    first = list(islice(batches, 2))
    processes = min(jobs or os.cpu_count() or 1, len(first) and 64)
    if len(first) < 2 or processes == 1:  # noqa: PLR2004 - nothing to share out
        runner = BatchRunner(options)
        for batch in _handed_on(first, batches):
            yield runner.run(batch)
        return
    from machtrace.engines.processes import run_in_processes

    begin = partial(_runner, options)
    yield from run_in_processes(_handed_on(first, batches), begin, processes)


def _runner(options: BatchOptions) -> Callable[[Batch], BatchOutcome]:
    """Return the work of a child process, which caches the images that it opens."""
    return BatchRunner(options).run


def _handed_on(first: list[Batch], others: Iterator[Batch]) -> Iterator[Batch]:
    """Yield all batches, without references to earlier ones."""
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


_SHOWN = 10


class RunSummary:
    """Accumulates outcomes, without their output."""

    def __init__(self, options: BatchOptions, files: Sequence[str]) -> None:
        self._options = options
        self._given = ", ".join(map(printable, files[:_SHOWN]))
        self._errors: list[MachtraceError] = []
        self._missing = MissingImages()
        self._problems: dict[str, None] = {}
        self._only: BatchItem | None = None
        self._files = self._unread = self._reports = self._warned = 0
        self._frames = self._named = self._nameless = self._contradicted = 0

    def add(self, outcome: BatchOutcome) -> None:
        """Add the outcome of a batch."""
        for item in outcome.items:
            self._files += 1
            self._reports += item.reports
            self._warned += bool(item.warnings)
            self._only = item
            if item.error is None:
                continue
            if item.is_named or item.reports or isinstance(item.error, FileAccessError):
                self._errors.append(item.error)
            else:
                self._unread += 1
        self._missing.add(outcome.missing)
        self._problems |= dict.fromkeys(map(str, outcome.problems))
        self._frames += outcome.frames
        self._named += outcome.named
        self._nameless += outcome.nameless
        self._contradicted += outcome.contradicted

    def print(self) -> int:
        """Print the summary, and return the exit status: 1 if a file failed, or there was none."""
        for error in self._errors[:_SHOWN]:
            print_error(error)
        if len(self._errors) > _SHOWN:
            more = counted(len(self._errors) - _SHOWN, "more file")
            print_message(f"{more} could not be read or written")
        if self._files == 1 and self._only is not None:
            self._print_warnings(self._only)
        if self._options.wants_names and self._reports:
            self._print_names()
        if self._files == 0:
            warn_of_nothing("there are no files", self._given)
        elif self._files > 1:
            passed = "1 file was no report"
            if self._unread > 1:
                passed = f"{self._unread} files were no reports"
            rest = f", {passed}" if self._unread else ""
            rest += f", {counted(self._warned, 'file')} with warnings" if self._warned else ""
            warn(f"{counted(self._reports, 'report')} of {counted(self._files, 'file')}{rest}")
        if self._files and self._unread == self._files:
            warn_of_nothing("there is no report", self._given)
        return 1 if self._errors or not self._reports else 0

    def _print_warnings(self, item: BatchItem) -> None:
        name = printable(item.name)
        for text in item.warnings[:_SHOWN]:
            warn(f"{name}: {printable(text)}")
        if len(item.warnings) > _SHOWN:
            warn(f"{name}: {counted(len(item.warnings) - _SHOWN, 'more warning')}")

    def _print_names(self) -> None:
        differing = ""
        if self._contradicted:
            differing = f", {self._contradicted} of them unlike the report"
        others = self._frames - self._named - self._nameless
        warn(
            f"{counted(self._named, 'frame')} named from files{differing}; "
            f"{others} {'keeps its name' if others == 1 else 'keep their names'} from the report; "
            f"{self._nameless} {'has' if self._nameless == 1 else 'have'} none"
        )
        images = self._missing.most_first()
        for missing in images[:_SHOWN]:
            uuid = "no UUID" if missing.image.uuid is None else shown_identifier(missing.image.uuid)
            name = printable(missing.image.name or missing.image.path or "???")
            arch = f" {printable(missing.image.arch)}" if missing.image.arch else ""
            warn(f"no symbols for {name}{arch} {uuid}: {counted(missing.frames, 'frame')}")
        if len(images) > _SHOWN:
            warn(
                f"no symbols for {counted(len(images) - _SHOWN, 'more image')}",
                hint="machtrace symbols missing REPORT lists all images of a report",
            )
        for problem in list(self._problems)[:_SHOWN]:
            warn(printable(problem))


def warn_of_nothing(fact: str, paths: str) -> None:
    """Print that there is nothing in ``paths``, and what to pass."""
    print_message(f"{fact} in {paths}", hint="pass reports, or folders or archives of reports")


def format_of(target: str) -> str:
    """Return the format of the file name ``target``; Apple's text if it has no suffix.

    Raises:
        ArgumentError: no format has the suffix.
    """
    if target == "-" or not Path(target).suffix:
        return "apple"
    if (form := format_of_suffix(target)) is not None:
        return form
    raise ArgumentError(
        f"no format has the suffix of {target}",
        remedy=f"pass --format: {', '.join(FORMATS)}",
    )


def run(files: Sequence[str], options: BatchOptions, target: Path | None, jobs: int | None) -> int:
    """Read, symbolicate and write ``files``; return the exit status.

    Raises:
        ArgumentError: the format is unknown, or cannot be concatenated.
        FileAccessError: the folder cannot be created, or standard output cannot be written.
    """
    chosen = report_format(options.format)
    target = None if target == Path("-") else target
    if target is None and not chosen.is_text:
        with binary_output():  # refuses a terminal
            pass
    is_shown = target is None and sys.stdout.isatty()
    summary = RunSummary(options, files)
    with ExitStack() as stack:
        progress = Progress()
        count = 0 if is_shown else _count(files, target)
        if count > FEW_FILES:
            progress = stack.enter_context(progress_bar(count, unit="files", note="reports"))
        made, is_joined = tasks(_inputs(files, target), target, chosen.suffix, files)
        if is_joined:
            made = _checked(made, chosen)
        results = stack.enter_context(closing(outcomes(made, options, jobs)))
        parts = _parts(results, chosen, summary, progress)
        if is_joined and target is not None:
            with suppress(_NoReportError):
                replace_file(str(target), parts)
        else:
            with suppress(_NoReportError):
                for part in parts:
                    _put(part, is_shown=is_shown)
    return summary.print()


def _parts(
    results: Iterator[BatchOutcome], chosen: ReportFormat, summary: RunSummary, progress: Progress
) -> Iterator[bytes]:
    """Yield what goes to the one output of all files, batch by batch.

    Raises:
        _NoReportError: at the end, if there was none.
    """
    joiner = FileJoiner(chosen)
    is_empty = True
    for outcome in results:
        summary.add(outcome)
        is_empty = is_empty and not any(item.reports for item in outcome.items)
        for item in outcome.items:
            joiner.add_reports(item.of_page)
        outputs = [item.output for item in outcome.items if item.output is not None]
        yield b"".join(map(joiner.add, outputs))
        progress.advance(len(outcome.items))
    if is_empty:
        raise _NoReportError
    yield joiner.end()


class _NoReportError(Exception):
    """No file was a report, so no output is written."""


def _put(data: bytes, *, is_shown: bool) -> None:
    """Write to standard output."""
    if not data:
        return
    if is_shown:
        with output() as sink:
            sink.write(data.decode("utf-8", "backslashreplace"))
    else:
        with binary_output() as binary:
            binary.write(data)


def _count(files: Sequence[str], target: Path | None) -> int:
    """Return the number of files; counted only where progress is shown."""
    if not shows_progress(sys.stderr):
        return 0
    return sum(1 if file == "-" else count_files(file, without=target) for file in files)


def _inputs(files: Sequence[str], target: Path | None) -> Iterator[ReportInput]:
    for file in dict.fromkeys(files):
        if file == "-":
            yield from standard_input()
        else:
            yield from report_inputs(file, without=target)


def _checked(made: Iterator[Task], chosen: ReportFormat) -> Iterator[Task]:
    """Return the tasks, if their outputs can be concatenated."""
    if chosen.between is not None:
        return made
    first = list(islice(made, 2))
    if len(first) > 1:
        raise ArgumentError(
            f"a file of the format {chosen.name} holds one report, and these are several files",
            remedy="write them to a folder: -o FOLDER",
        )
    return chain(first, made)
