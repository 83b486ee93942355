"""Runs of published binaries from random states, compared with the true stacks.

The table's files are fetched and run; with paths, those files instead. ``--repeat`` prints
one run of one slice. ``make published-lab`` stores finished parts, shows the same moments to
debuggers and writes the page. The exit status is 1 if a stack was wrong anywhere, 2 if a file could
not be fetched, and 130 if the lab was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from machtrace.formats.object_file import sniff
from tests.support.published.fetch import FetchError, fetch
from tests.support.published.files import (
    DOCUMENTS,
    FETCHED,
    PublishedFile,
    Subject,
    published_files,
    subjects,
)
from tests.support.published.harness import Job, harness_of, run_job
from tests.support.published.image import ARCHITECTURES
from tests.support.published.listing import listed
from tests.support.published.peers import SAMPLES, debuggers, peer_shares
from tests.support.published.report import Row, page, row_of
from tests.support.published.results import Part, PeerShare, Result, ResultStore

EXPLANATIONS = Path(__file__).with_name("explanations.toml")
SEED = 12
RUNS = 400
_PART = 2000
"""Runs after which a result is stored."""
_MAX_REASONS = 8
_ARCHITECTURES = tuple(sorted(arch.value for arch in ARCHITECTURES))


def run_peers(job: Job, result: Result | None) -> dict[str, PeerShare]:
    """Unwind samples with debuggers, in a process of a pool.

    Args:
        job: the first part of a row.
        result: that part's result, unless it was executed before an interruption.
    """
    if result is None:
        result = run_job(job)
    return peer_shares(job.subject, result.samples)


class Lab:
    """The parts of all rows, distributed to processes; results are stored as they come."""

    def __init__(self, wanted: Sequence[Subject], arguments: argparse.Namespace) -> None:
        """Open the store of results."""
        self._wanted = wanted
        self._processes: int = arguments.jobs
        self._runs_peers: bool = arguments.peers
        end = arguments.first + arguments.runs
        self._parts = [
            Part(arguments.seed, first, min(_PART, end - first), arguments.entry)
            for first in range(arguments.first, end, _PART)
        ]
        self._sampled: dict[str, Result] = {}
        self.store = ResultStore(arguments.results)

    def run(self, progress: Progress) -> None:
        """Execute what the store does not hold.

        Raises:
            KeyboardInterrupt: the user's; what is finished is in the store.
        """
        jobs = [
            Job(subject, part, SAMPLES if self._runs_peers and part == self._parts[0] else 0)
            for subject in self._wanted
            for part in self._parts
            if not self.store.has(subject.key, part)
        ]
        task = progress.add_task("running", total=sum(job.part.count for job in jobs))
        pool = ProcessPoolExecutor(self._processes, mp_context=get_context("spawn"))
        try:
            runs = {pool.submit(run_job, job): job for job in jobs}
            for future in as_completed(runs):
                job = runs[future]
                self._store(job, future)
                progress.update(task, advance=job.part.count, description=job.subject.key)
            if self._runs_peers:
                self._run_peers(pool, progress)
        except BaseException:
            for process in pool._processes.values():  # noqa: SLF001 (before 3.14 there is no method)
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _store(self, job: Job, future: Future[Result]) -> None:
        key = job.subject.key
        try:
            result = future.result()
        except BrokenProcessPool:
            raise
        except Exception as error:  # noqa: BLE001 (the emulator's and the harness's, whatever they are)
            # One file's row is lost, and with it the exit status, but not the others' hours.
            self.store.errors[key] = f"{type(error).__name__}: {error}"
            return
        if result.samples:
            self._sampled[key] = result
        self.store.add(key, job.part, result)

    def _run_peers(self, pool: ProcessPoolExecutor, progress: Progress) -> None:
        first = self._parts[0]
        missing = [
            subject
            for subject in self._wanted
            if self._is_finished(subject) and not self.store.has_peers(subject.key, first)
        ]
        task = progress.add_task("debuggers", total=len(missing))
        futures = {
            pool.submit(
                run_peers, Job(subject, first, SAMPLES), self._sampled.get(subject.key)
            ): subject.key
            for subject in missing
        }
        for future in as_completed(futures):
            key = futures[future]
            self.store.add_peers(key, first, future.result())
            progress.update(task, advance=1, description=f"debuggers, {key}")

    def rows(self) -> list[Row]:
        """Return the rows with all of their parts, in the table's order."""
        return [
            row_of(
                subject,
                self.store.result(subject.key, self._parts),
                self.store.peers(subject.key, self._parts[0]),
            )
            for subject in self._wanted
            if self._is_finished(subject)
        ]

    def _is_finished(self, subject: Subject) -> bool:
        return all(self.store.has(subject.key, part) for part in self._parts)


def shown(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(title="Runs whose every compared stack is exact, %")
    peers = sorted({peer for row in rows for peer in row.peers})
    columns = ("runs", "dropped", "compared", "exact", "wrong", "registers", "runs/s", *peers)
    table.add_column("file")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        result = row.result
        table.add_row(
            row.key,
            f"{result.runs:,}",
            f"{result.dropped.total():,}",
            f"{result.compared:,}",
            row.exact_share,
            f"{len(result.wrong)} ({result.unclaimed} as guesses)",
            f"{len(result.wrong_registers)}",
            f"{result.runs / result.seconds:.0f}" if result.seconds else "",
            *(str(row.peers.get(peer, "–")) for peer in peers),
            style=None if row.is_whole else "red",
        )
    return table


def details(row: Row, most: int) -> Iterator[str]:
    """Yield why runs of a row ended, and its first failures."""
    result = row.result
    yield f"{row.key}: {result.stacks} stacks, {result.instructions} instructions"
    for title, counts in (("ended", result.ended), ("starts refused", result.refused)):
        reasons = counts.most_common(_MAX_REASONS)
        yield f"  {title}: " + "; ".join(f"{count} {reason}" for reason, count in reasons)
    for failure in row.failures[:most]:
        yield f"  {failure}"
        yield from (f"      {line}" for line in failure.code)
    for number, function, register in result.wrong_registers[:most]:
        yield f"  run {number}, {function}: {register} of the caller is wrong"


def parsed(files: Sequence[PublishedFile]) -> argparse.Namespace:
    """Parse the command line."""
    names = tuple(dict.fromkeys(file.name for file in files))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, help="files in place of the table's")
    parser.add_argument("--file", action="append", default=[], choices=names, metavar="NAME")
    parser.add_argument("--arch", action="append", default=[], choices=_ARCHITECTURES)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each slice")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--entry", type=lambda text: int(text, 0), help="begin all runs here")
    parser.add_argument("--repeat", type=int, metavar="NUMBER", help="print this run of one slice")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--peers", action="store_true", help="run debuggers, too")
    parser.add_argument("--fetch-only", action="store_true", help="run nothing")
    parser.add_argument("--no-fetch", action="store_true", help="use the files that are fetched")
    parser.add_argument("--results", type=Path, help="store parts here, and continue from there")
    parser.add_argument("--failures", type=int, default=5, help="shown of each row")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page")
    arguments = parser.parse_args()
    if arguments.path and (arguments.write or arguments.file):
        parser.error("--file and --write are for the files of the table")
    return arguments


def main() -> int:
    """Fetch the requested files, run them, print the rows, and write the requested page."""
    every = published_files()
    arguments = parsed(every)
    files = tuple(
        file
        for file in every
        if not arguments.path
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
    errors: Mapping[str, str] = {}
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            if not arguments.no_fetch:
                failures = _fetch((*files, *_documents(arguments)), progress)
            if not arguments.fetch_only and arguments.repeat is None:
                lab = Lab(_wanted(files, arguments), arguments)
                try:
                    lab.run(progress)
                finally:
                    rows, errors = lab.rows(), lab.store.errors
    except (KeyboardInterrupt, BrokenProcessPool):  # the system may end a process for its memory
        interrupted = True
    if rows:
        console.print(shown(rows))
    lines = [line for row in rows for line in details(row, arguments.failures)]
    lines += [f"{key}: not measured: {error}" for key, error in errors.items()]
    lines += [f"not fetched: {problem}" for problem in failures]
    if arguments.repeat is not None:
        subject = next(iter(_wanted(files, arguments)))
        harness = harness_of(subject, arguments.seed, arguments.entry)
        lines += listed(harness, harness.run(arguments.repeat))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if interrupted:
        console.print("Interrupted: what is finished is in --results, if that was passed.")
        return 130
    missing = [file for file in files if not file.path().exists()]
    if arguments.write:
        arguments.write.write_text(
            page(rows, EXPLANATIONS, arguments.seed, debuggers(), missing, errors)
        )
    if missing:
        return 2
    return 0 if all(row.is_whole for row in rows) and not errors else 1


def _documents(arguments: argparse.Namespace) -> tuple[PublishedFile, ...]:
    """Return what is fetched besides; nothing if some of the files are selected."""
    is_whole = arguments.fetch_only and not (arguments.path or arguments.file or arguments.arch)
    return published_files(DOCUMENTS) if is_whole else ()


def _wanted(files: tuple[PublishedFile, ...], arguments: argparse.Namespace) -> list[Subject]:
    slices = [*subjects(files), *(slice_ for path in arguments.path for slice_ in _slices(path))]
    return [
        subject
        for subject in slices
        if subject.path.exists()
        if not arguments.arch or subject.architecture in arguments.arch
    ]


def _slices(path: Path) -> list[Subject]:
    """Return what can be run of a file that is not in the table."""
    return [
        Subject(path.name, part.arch_name, path)
        for part in sniff(path.read_bytes(), path.name)
        if part.arch_name in _ARCHITECTURES
    ]


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
