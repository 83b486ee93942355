"""The lab in full: every program, built in every way, as one table.

Run it with ``make lab``, or with ``.venv/bin/python -m tests.lab.run``; ``--help`` lists options to
run less of it. The exit status is 1 if the best policy was wrong anywhere, and 130 if it was
interrupted; the rows so far are shown.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.support.lab.architectures import ARCHITECTURES, OPTIMISATIONS, TABLES
from tests.support.lab.builds import Build, builds
from tests.support.lab.lldb import lldb_program
from tests.support.lab.programs import PROGRAMS
from tests.support.lab.real_programs import real_programs
from tests.support.lab.report import details, page
from tests.support.lab.rows import METHODS, Row, measured

HERE = Path(__file__).parent
SOURCES = HERE / "programs"
EXPLANATIONS = HERE / "explanations.toml"
MAX_POOLS = 4
"""How often processes may be lost, to the system's want of memory or to a user's haste."""
FETCHED = HERE.parents[1] / "build" / "lab-sources"


def rows_of(build: Build, lldb: str | None) -> list[Row]:
    """Measure one build, in a process of its own."""
    with TemporaryDirectory(prefix="lab-") as directory:
        return measured(build, SOURCES, Path(directory), lldb)


def measure(
    wanted: Sequence[Build], lldb: str | None, jobs: int, progress: Progress
) -> Iterator[tuple[int, list[Row]]]:
    """The place of each build and its rows, as they come."""
    task = progress.add_task("building and walking", total=len(wanted))
    left = set(range(len(wanted)))
    for _ in range(MAX_POOLS):
        pool = ProcessPoolExecutor(jobs)
        try:
            futures: dict[Future[list[Row]], int] = {
                pool.submit(rows_of, wanted[place], lldb): place for place in sorted(left)
            }
            for future in as_completed(futures):
                place = futures[future]
                found = future.result()
                left.remove(place)
                progress.update(task, advance=1, description=str(wanted[place]))
                yield place, found
        except BrokenProcessPool:
            continue  # the system ended a process: what it had not measured is measured again
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return


def shown(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(title="Instructions with a wholly right stack, %")
    for column in ("build", "symbols", "compared", *METHODS, "registers"):
        table.add_column(column, justify="left" if column in ("build", "symbols") else "right")
    for row in rows:
        cells = [str(row.shares.get(method, "–")) for method in METHODS]
        everything = row.shares.get("everything")
        table.add_row(
            row.key,
            "stripped" if row.is_stripped else "present",
            str(everything.of) if everything else row.error,
            *cells,
            f"{row.wrong_registers} wrong, {row.lost_registers} lost",
            style=None if row.is_whole else "red",
        )
    return table


def sources_parser() -> argparse.ArgumentParser:
    """Return the parser of the options for real programs."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--sources", type=Path, default=FETCHED, help="the folder with sources of real programs"
    )
    parser.add_argument("--fetch", action="store_true", help="fetch those that are missing")
    return parser


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    sources = sources_parser()
    known, _ = sources.parse_known_args()
    PROGRAMS.update(real_programs(HERE, known.sources, fetches=known.fetch))
    parser = argparse.ArgumentParser(description=__doc__, parents=[sources])
    parser.add_argument("--program", action="append", default=[], choices=tuple(PROGRAMS))
    parser.add_argument("--optimisation", action="append", default=[], choices=(*OPTIMISATIONS,))
    parser.add_argument("--tables", action="append", default=[], choices=tuple(TABLES))
    parser.add_argument("--arch", action="append", default=[], choices=tuple(ARCHITECTURES))
    parser.add_argument("--no-lldb", action="store_true", help="leave lldb out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="builds at a time")
    parser.add_argument("--failures", type=int, default=5, help="shown of each row")
    parser.add_argument(
        "--write", type=Path, help="the page of totals; it states what was left out"
    )
    parser.add_argument("--rows", type=Path, help="a page with a row for each build")
    return parser.parse_args()


def main() -> int:
    """Measure the requested builds, print the rows, and write the requested pages."""
    arguments = parsed()
    wanted = list(
        builds(arguments.program, arguments.arch, arguments.optimisation, arguments.tables)
    )
    lldb = None if arguments.no_lldb else lldb_program()
    console = Console()
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    results: dict[int, list[Row]] = {}
    started, interrupted = time.monotonic(), False
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            results.update(measure(wanted, lldb, arguments.jobs, progress))
    except KeyboardInterrupt:
        interrupted = True
    rows = [row for place in sorted(results) for row in results[place]]
    console.print(shown(rows))
    for row in rows:
        for failure in row.failures[: arguments.failures]:
            console.print(f"{row.key}: {failure}", highlight=False, soft_wrap=True, markup=False)
    if interrupted or len(results) < len(wanted):
        console.print(f"Interrupted: {len(results)} of {len(wanted)} builds were measured.")
        return 130
    if arguments.write:
        left_out = len(list(builds((), (), (), ()))) - len(wanted)
        text = page(rows, EXPLANATIONS, time.monotonic() - started, left_out)
        arguments.write.write_text(text)
    if arguments.rows:
        arguments.rows.parent.mkdir(parents=True, exist_ok=True)
        arguments.rows.write_text(details(rows))
    return 0 if all(row.is_whole for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
