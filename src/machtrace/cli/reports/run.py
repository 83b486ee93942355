"""Running batches of reports, and saying what became of them.

Files are read when their batch is made up, and forgotten when it is written: any number of them
takes the memory of a few batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path

import typer

from machtrace.reports.batches import BatchOptions
from machtrace.cli.console import binary_output, print_error, output
from machtrace.reports.report_input import standard_input
from machtrace.cli.reports.report_outcomes import outcomes
from machtrace.cli.reports.progress import ReportProgress, report_progress
from machtrace.cli.reports.report_summary import RunSummary
from machtrace.cli.reports.outputs import Task, tasks
from machtrace.errors import ArgumentError
from machtrace.reports.formats import FORMATS, ReportFormat, report_format
from machtrace.reports.inputs import count_files, report_inputs
from machtrace.reports.joining import FileJoiner
from machtrace.reports.packed_inputs import ReportInput
from machtrace.render.printable import printable


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


def check_format(name: str, names: Iterable[str] = FORMATS) -> None:
    """End with status 2, as for other options that are none, where no format is called ``name``."""
    if name not in names:
        print_error(
            ArgumentError(
                f"no format is called {printable(name)!r}",
                remedy=f"choose one of: {', '.join(names)}",
            )
        )
        raise typer.Exit(2)


def run(files: Sequence[str], options: BatchOptions, target: Path | None, jobs: int | None) -> int:
    """Read, name and write ``files``; the exit status.

    Raises:
        ArgumentError: there is no such format, or it needs files of its own and has none.
        FileAccessError: the folder cannot be made, or standard output takes nothing.
    """
    chosen = report_format(options.format)
    target = None if target == Path("-") else target
    if target is None and not chosen.is_text:
        with binary_output():  # refuses a terminal
            pass
    is_shown = target is None and sys.stdout.isatty()
    summary = RunSummary(options, files)
    with ExitStack() as stack:
        progress = stack.enter_context(report_progress(_count(files, target), hidden=is_shown))
        made = tasks(_inputs(files, target), target, chosen.suffix, files)
        if target is None:
            made = _checked(made, chosen)
        results = stack.enter_context(closing(outcomes(made, options, jobs)))
        printer = _Printer(chosen, progress, is_shown=is_shown)
        for outcome in results:
            summary.add(outcome)
            printer.write([one.output for one in outcome.items if one.output is not None])
            progress.advance(len(outcome.items))
        printer.end()
    return summary.tell()


def _count(files: Sequence[str], target: Path | None) -> int:
    """How many files there are; only asked where somebody sees it."""
    if not sys.stderr.isatty():
        return 0
    return sum(1 if file == "-" else count_files(file, without=target) for file in files)


def _inputs(files: Sequence[str], target: Path | None) -> Iterator[ReportInput]:
    for file in dict.fromkeys(files):
        if file == "-":
            yield from standard_input()
        else:
            yield from report_inputs(file, without=target)


def _checked(made: Iterator[Task], chosen: ReportFormat) -> Iterator[Task]:
    """The tasks, where all of them can be written one after another."""
    if chosen.between is not None:
        return made
    first = list(islice(made, 2))
    if len(first) > 1:
        raise ArgumentError(
            f"a file of the format {chosen.name} is of one report, and these are several files",
            remedy="give a folder to write to: -o FOLDER",
        )
    return chain(first, made)


class _Printer:
    """Standard output, batch by batch."""

    def __init__(self, chosen: ReportFormat, progress: ReportProgress, *, is_shown: bool) -> None:
        self._joined = FileJoiner(chosen)
        self._progress = progress
        self._is_shown = is_shown

    def write(self, outputs: Sequence[bytes]) -> None:
        """What was made of some files."""
        if outputs:
            self._put(b"".join(self._joined.add(one) for one in outputs))

    def end(self) -> None:
        """What comes after the last."""
        last = self._joined.end()
        if last:
            self._put(last)

    def _put(self, data: bytes) -> None:
        if self._is_shown:
            with output() as sink:
                sink.write(data.decode("utf-8", "backslashreplace"))
        else:
            with binary_output() as binary:
                binary.write(data)
