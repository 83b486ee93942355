"""Runs of published binaries from random states, compared with the true stacks.

``python -m tests.published.run`` runs the fetched files of ``files.toml``; with paths, those files.
``--repeat NUMBER`` prints one run of one file. Results are appended to a file of JSON lines, one
for each slice. The exit status is 1 if any compared stack was not exact, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from machtrace.model.arch import Arch
from tests.support.published.files import published_files, subjects
from tests.support.published.listing import listed
from tests.support.published.result import Result
from tests.support.published.workers import Job, harness_of, run_jobs

BUILD = Path(__file__).parents[2] / "build"
RESULTS = BUILD / "published-runs.jsonl"
_MOST_REASONS = 8


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs of the command line."""
    numbers = range(arguments.first, arguments.first + arguments.runs)
    arch = Arch(arguments.arch) if arguments.arch else None
    if arguments.file:
        return [
            Job(path, arch, path.name, arguments.seed, numbers, entry=arguments.entry)
            for path in arguments.file
        ]
    return [
        Job(
            subject.file.path(),
            Arch(subject.architecture),
            subject.file.name,
            arguments.seed,
            numbers,
        )
        for subject in subjects(published_files())
        if subject.file.is_fetched() and arguments.arch in (None, subject.architecture)
    ]


def run(jobs: Sequence[Job], processes: int, console: Console) -> tuple[dict[int, Result], bool]:
    """Execute the jobs; return the results by job, and whether all finished."""
    results: dict[int, Result] = {}
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=sum(len(job.numbers) for job in jobs))
        try:
            for number, result in run_jobs(jobs, processes):
                results[number] = results[number] + result if number in results else result
                total = results[number]
                text = f"{total.file} {total.arch}: {total.share} exact, {len(total.wrong)} wrong"
                progress.update(task, advance=result.runs, description=text)
        except KeyboardInterrupt:
            return results, False
    return results, True


def shown(results: Sequence[Result]) -> Table:
    """Return the results as a table for the terminal."""
    table = Table(title="Runs whose every compared stack is exact")
    for column in ("file", "arch", "runs", "dropped", "compared", "exact", "wrong", "registers"):
        table.add_column(column, justify="left" if column in ("file", "arch") else "right")
    table.add_column("runs/s", justify="right")
    for result in results:
        table.add_row(
            result.file,
            result.arch,
            str(result.runs),
            str(result.dropped.total()),
            str(result.compared),
            result.share,
            f"{len(result.wrong)} ({result.unclaimed} as guesses)",
            str(len(result.wrong_registers)),
            f"{result.runs / result.seconds:.0f}" if result.seconds else "",
            style="red" if result.wrong or result.wrong_registers else None,
        )
    return table


def print_details(result: Result, console: Console, most: int) -> None:
    """Print why runs ended, and the first mismatches."""
    lines = [
        f"{result.file} {result.arch}: {result.stacks} stacks, {result.instructions} instructions"
    ]
    for title, counts in (
        ("ended", result.ended),
        ("dropped", result.dropped),
        ("starts refused", result.refused),
    ):
        reasons = counts.most_common(_MOST_REASONS)
        lines.append(f"  {title}: " + "; ".join(f"{count} {reason}" for reason, count in reasons))
    for mismatch in result.wrong[:most]:
        certainty = "claimed" if mismatch.claims else "a guess"
        lines.append(
            f"  run {mismatch.run}, step {mismatch.step}, {mismatch.function}: frame"
            f" {mismatch.frame} is wrong ({certainty}), after {mismatch.caller}; {mismatch.stop}"
        )
    for number, function, register in result.wrong_registers[:most]:
        lines.append(f"  run {number}, {function}: {register} of the caller is wrong")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="*", type=Path, help="Mach-O or ELF files")
    parser.add_argument("--arch", help="the slice of fat files, or of the table's files")
    parser.add_argument("--runs", type=int, default=3000, help="for each file")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--entry", type=lambda text: int(text, 0), help="begin all runs here")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--repeat", type=int, help="print this run, of one file")
    parser.add_argument("--failures", type=int, default=5, help="shown of each file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file of JSON lines")
    return parser.parse_args()


def main() -> int:
    """Execute the requested runs, print the results and append them to the file."""
    arguments = parsed()
    console = Console()
    jobs = jobs_of(arguments)
    if arguments.repeat is not None:
        for job in jobs[:1]:
            harness = harness_of(job)
            for line in listed(harness, harness.run(arguments.repeat)):
                console.print(line, highlight=False, soft_wrap=True, markup=False)
        return 0
    results, is_whole = run(jobs, arguments.jobs, console)
    rows = [results[number] for number in sorted(results)]
    console.print(shown(rows))
    for row in rows:
        print_details(row, console, arguments.failures)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    with arguments.results.open("a") as file:
        for row in rows:
            file.write(json.dumps(row.to_json()) + "\n")
    if not is_whole:
        console.print("Interrupted.")
        return 130
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
