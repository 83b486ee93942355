"""The lab of published binaries in full: fetch the files, run their functions, write the page.

Run it with ``make published-lab``, or with ``.venv/bin/python -m tests.published.lab``; ``--help``
lists options to run less of it. Finished parts are stored in ``--results``, and ``--resume``
continues from there. The exit status is 1 if a stack was wrong anywhere, 2 if a file could not be
fetched, and 130 if the lab was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from machtrace.model.arch import Arch
from tests.support.published.fetch import FetchError, fetch
from tests.support.published.files import (
    FETCHED,
    REPOSITORY,
    PublishedFile,
    Subject,
    published_files,
    subjects,
)
from tests.support.published.peers import SAMPLES, PeerShare, debuggers, peer_shares
from tests.support.published.report import page
from tests.support.published.result import Result
from tests.support.published.results import Part, ResultStore, Row, row_of
from tests.support.published.workers import CHUNK, Job, run_chunk

EXPLANATIONS = Path(__file__).with_name("explanations.toml")
RESULTS = REPOSITORY / "build" / "published-results.jsonl"
SEED = 12
RUNS = 16_000
"""Runs of a slice; all slices together have a million."""
PART = CHUNK
"""Runs after which a result is stored."""


def run_peers(subject: Subject, job: Job, result: Result | None) -> dict[str, PeerShare]:
    """Unwind samples with debuggers, in a process of its own.

    Args:
        subject: the row.
        job: its first part.
        result: that part's result, unless it was executed before an interruption.
    """
    if result is None:
        result = run_chunk(job)
    return peer_shares(subject, subject.file.path(), result.samples)


class Lab:
    """The parts of all rows, distributed to processes; results are stored as they come."""

    def __init__(self, wanted: list[Subject], arguments: argparse.Namespace) -> None:
        """Open the store of results."""
        self._wanted = wanted
        self._arguments = arguments
        self.store = ResultStore(arguments.results, resume=arguments.resume)

    def run(self, progress: Progress) -> None:
        """Execute what the store does not hold.

        Raises:
            KeyboardInterrupt: the user's; what is finished is in the store.
        """
        arguments = self._arguments
        missing = [
            (subject, part)
            for subject in self._wanted
            for part in self._parts()
            if not self.store.has(subject.key, part)
        ]
        total = sum(part.count for _, part in missing)
        task = progress.add_task("running", total=total)
        pool = ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn"))
        try:
            runs = {
                pool.submit(run_chunk, self._job(subject, part)): (subject, part)
                for subject, part in missing
            }
            for future in as_completed(runs):
                subject, part = runs[future]
                self._store(subject, part, future)
                progress.update(task, advance=part.count, description=subject.key)
            self._run_peers(pool, progress)
        except BaseException:
            for process in pool._processes.values():  # noqa: SLF001 (before 3.14 there is no method)
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _store(self, subject: Subject, part: Part, future: Future[Result]) -> None:
        try:
            self.store.add(subject.key, part, future.result())
        except BrokenProcessPool:
            raise
        except Exception as error:  # noqa: BLE001 (the emulator's and the harness's, whatever they are)
            # One file's row is lost, and with it the exit status, but not the others' hours.
            self.store.errors[subject.key] = f"{type(error).__name__}: {error}"

    def _run_peers(self, pool: ProcessPoolExecutor, progress: Progress) -> None:
        if self._arguments.no_peers:
            return
        missing = [
            subject
            for subject in self._wanted
            if not self.store.has_peers(subject.key) and self._is_finished(subject)
        ]
        task = progress.add_task("debuggers", total=len(missing))
        first = self._parts()[0]
        futures = {
            pool.submit(
                run_peers, subject, self._job(subject, first), self.store.sampled(subject.key)
            ): subject
            for subject in missing
        }
        for future in as_completed(futures):
            self.store.add_peers(futures[future].key, future.result())
            progress.update(task, advance=1, description=f"debuggers, {futures[future].key}")

    def _parts(self) -> list[Part]:
        seed, runs = self._arguments.seed, self._arguments.runs
        return [Part(seed, first, min(PART, runs - first)) for first in range(0, runs, PART)]

    def _job(self, subject: Subject, part: Part) -> Job:
        return Job(
            path=subject.file.path(),
            arch=Arch(subject.architecture),
            name=subject.file.name,
            seed=part.seed,
            numbers=range(part.first, part.first + part.count),
            samples=SAMPLES if part.first == 0 and not self._arguments.no_peers else 0,
        )

    def rows(self) -> list[Row]:
        """Return the rows with all of their parts, in the table's order."""
        return [
            row_of(subject, self.store.result(subject.key), self.store.peers(subject.key))
            for subject in self._wanted
            if self._is_finished(subject)
        ]

    def _is_finished(self, subject: Subject) -> bool:
        return all(self.store.has(subject.key, part) for part in self._parts())


def shown(rows: list[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(title="Compared stacks that were exact, %")
    columns = ("file", "built with", "runs", "dropped", "compared", "exact", "lldb", "gdb")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for row in rows:
        result = row.result
        table.add_row(
            row.key,
            row.compilers,
            f"{result.runs:,}",
            f"{sum(result.dropped.values()):,}",
            f"{result.compared:,}",
            row.exact_share,
            *(str(row.peers.get(peer, "–")) for peer in ("lldb", "gdb")),
            style=None if row.is_whole else "red",
        )
    return table


def parsed(files: tuple[PublishedFile, ...]) -> argparse.Namespace:
    """Parse the command line."""
    names = tuple(dict.fromkeys(file.name for file in files))
    architectures = tuple(dict.fromkeys(one for file in files for one in file.architectures))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", action="append", default=[], choices=names)
    parser.add_argument("--arch", action="append", default=[], choices=architectures)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each slice")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--no-peers", action="store_true", help="leave debuggers out")
    parser.add_argument("--fetch-only", action="store_true", help="run nothing")
    parser.add_argument("--no-fetch", action="store_true", help="use the files that are fetched")
    parser.add_argument("--resume", action="store_true", help="continue from the stored results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the stored results")
    parser.add_argument("--failures", type=int, default=5, help="shown of each row")
    parser.add_argument("--write", type=Path, help="the page")
    return parser.parse_args()


def main() -> int:
    """Fetch the requested files, run them, print the rows, and write the requested page."""
    every = published_files()
    arguments = parsed(every)
    files = tuple(
        file
        for file in every
        if not arguments.file or file.name in arguments.file
        if not arguments.arch or set(arguments.arch) & set(file.architectures)
    )
    console = Console()
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    interrupted = False
    failures: list[FetchError] = []
    rows: list[Row] = []
    errors: dict[str, str] = {}
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            if not arguments.no_fetch:
                failures = _fetch(files, progress)
            if not arguments.fetch_only:
                lab = Lab(_wanted(files, arguments), arguments)
                try:
                    lab.run(progress)
                finally:
                    rows, errors = lab.rows(), lab.store.errors
    except (KeyboardInterrupt, BrokenProcessPool):  # the system may end a process for its memory
        interrupted = True
    _print(console, rows, errors, failures, arguments.failures)
    if interrupted:
        console.print("Interrupted: --resume continues.")
        return 130
    if arguments.write:
        missing = [file for file in files if not file.path().exists()]
        arguments.write.write_text(
            page(rows, EXPLANATIONS, arguments.seed, debuggers(), missing, errors)
        )
    if any(not file.path().exists() for file in files):
        return 2
    return 0 if all(row.is_whole for row in rows) and not errors else 1


def _wanted(files: tuple[PublishedFile, ...], arguments: argparse.Namespace) -> list[Subject]:
    return [
        subject
        for subject in subjects(tuple(file for file in files if file.path().exists()))
        if not arguments.arch or subject.architecture in arguments.arch
    ]


def _print(
    console: Console,
    rows: list[Row],
    errors: Mapping[str, str],
    unfetched: list[FetchError],
    most: int,
) -> None:
    if rows:
        console.print(shown(rows))
    lines = [f"{row.key}: {failure}" for row in rows for failure in row.failures[:most]]
    lines += [f"{key}: not measured: {error}" for key, error in errors.items()]
    lines += [f"not fetched: {problem}" for problem in unfetched]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _fetch(files: tuple[PublishedFile, ...], progress: Progress) -> list[FetchError]:
    archives = len({file.archive for file in files})
    task = progress.add_task("fetching", total=archives)
    done = -1

    def show(name: str) -> None:
        nonlocal done
        done += 1
        progress.update(task, completed=done, description=f"fetching {name}")

    failures = fetch(files, FETCHED, show)
    progress.update(task, description="fetched")
    return failures


if __name__ == "__main__":
    sys.exit(main())
