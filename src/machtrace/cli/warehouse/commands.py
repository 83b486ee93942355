"""``machtrace warehouse``: a folder with the stacks of a fleet, its names, issues and SQL."""

from __future__ import annotations

import csv
import os
import sys
from contextlib import closing
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.application import LazyCommand, lazy_group
from machtrace.cli.options import (
    DocumentFormat,
    check_search_paths,
    complete_files,
    complete_folders,
    count_type,
    format_option,
    parse_path,
    quiet_option,
    search_option,
)
from machtrace.cli.tables import write_json, write_table
from machtrace.model.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from machtrace.warehouse.ingest import BatchOutcome, LogRecord
    from machtrace.warehouse.warehouse import Warehouse

_JOBS, _RULES = f"{__package__}.jobs", f"{__package__}.rules"
_COMMANDS, _UPKEEP = __name__, f"{__package__}.upkeep"
_BATCH = 64
"""Files whose bytes are stored at once."""
_FEW, _MAX_PROCESSES = 200, 8
"""Files that one process reads; processes that share more."""


class RowFormat(StrEnum):
    """Output formats of rows."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


class FlameFormat(StrEnum):
    """Output formats of weighted stacks."""

    FOLDED = "folded"
    SPEEDSCOPE = "speedscope"
    FIREFOX = "firefox"
    PPROF = "pprof"
    SVG = "svg"
    HTML = "html"


folder_argument = click.argument(
    "folder", metavar="FOLDER", type=parse_path, shell_complete=complete_folders
)
where_option = click.option(
    "--where", metavar="SQL", default="true", help="Use only what this SQL condition selects."
)


@click.command()
@folder_argument
@click.option("--no-scrub", is_flag=True, help="Store reports as they come, without rules.")
def init(*, folder: Path, no_scrub: bool) -> None:
    """Create a warehouse in FOLDER, which is empty or does not exist.

    It has rules by which personal data is overwritten before reports are stored: scrub.toml.
    """
    from machtrace.cli.console import print_message
    from machtrace.warehouse.scrubbing.rules import write_default_rules
    from machtrace.warehouse.warehouse import Warehouse

    Warehouse.create(folder).close()
    if not no_scrub:
        write_default_rules(folder)
    print_message(
        f"{folder} is a warehouse", hint=f"add reports: machtrace warehouse add {folder} PATH"
    )


@click.command()
@folder_argument
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=parse_path,
    shell_complete=complete_files,
)
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    type=count_type(),
    help="Worker processes (default: chosen from the amount of work).",
)
@search_option
@quiet_option
@format_option()
def add(
    *,
    folder: Path,
    paths: tuple[Path, ...],
    jobs: int | None,
    search: tuple[str, ...],
    form: DocumentFormat,
) -> int:
    """Add reports, profiles and spools: files, and folders of them.

    What cannot be read is in quarantine, with the reason; its bytes are stored all the same. A
    report that is there already is not added again. With --search, frames are named by the symbols
    there. The exit status is 1 if a file could not be read.
    """
    from machtrace.cli.console import output, warn
    from machtrace.cli.progress import progress_bar

    check_search_paths(search)
    with open_warehouse(folder) as warehouse:
        files = list(_files(paths))
        before = len(warehouse.quarantined)
        with progress_bar(len(files), unit="files") as progress:
            for start in range(0, len(files), _BATCH):
                part = files[start : start + _BATCH]
                warehouse.receive([(str(path), _bytes(path)) for path in part])
                progress.advance(len(part))
        with progress_bar(len(files), unit="files") as progress:
            added = warehouse.flush(progress.advance, _runner(len(files), jobs))
        named = warehouse.name(search) if search else 0
        warehouse.regroup()
        quarantined = warehouse.quarantined[before:]
    with output():
        if form is DocumentFormat.JSON:
            rows = [{"name": row.name, "reason": row.reason} for row in quarantined]
            write_json({**added._asdict(), "named": named, "quarantined": rows})
        else:
            repeated = f", {added.repeated} were there already" if added.repeated else ""
            names = f", {counted(named, 'frame')} named" if search else ""
            sys.stdout.write(f"{counted(added.reports, 'report')} added{repeated}{names}\n")
    for row in quarantined:
        warn(f"in quarantine: {row.name}: {row.reason}")
    return 1 if quarantined else 0


@click.command()
@folder_argument
@click.argument("text", metavar="SQL")
@format_option(RowFormat)
def query(*, folder: Path, text: str, form: RowFormat) -> None:
    """Print the rows of an SQL query; - reads it from standard input.

    The views are those of the tables (reports, images, frames, nodes, stacks, occurrences, names),
    functions, stack_tops and stacks_of_reports. DESCRIBE their columns: "FROM (DESCRIBE reports)".
    A query reads the warehouse alone, and changes nothing.
    """
    from machtrace.cli.console import output
    from machtrace.warehouse.documents import cell

    with open_warehouse(folder) as warehouse:
        rows = warehouse.query(sys.stdin.read() if text == "-" else text)
    columns = rows.column_names
    cells = ([cell(value) for value in row.values()] for row in rows.to_pylist())
    with output():
        match form:
            case RowFormat.TEXT:
                texts = [["" if cell is None else str(cell) for cell in row] for row in cells]
                write_table(columns, texts)
            case RowFormat.JSON:
                write_json({"columns": columns, "rows": list(cells)})
            case RowFormat.CSV:
                writer = csv.writer(sys.stdout, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(cells)


@click.command()
@folder_argument
@where_option
@format_option()
def groups(*, folder: Path, where: str, form: DocumentFormat) -> None:
    """List the issues: reports of the same problem, the most frequent first.

    --where is a condition over the columns of the view reports, such as "build = '812'".
    """
    from machtrace.cli.console import output
    from machtrace.warehouse.documents import issue_document

    with open_warehouse(folder) as warehouse:
        issues = warehouse.issues(where)
        decisions = warehouse.decisions()
    with output():
        if form is DocumentFormat.JSON:
            rows_of = [issue_document(each, decisions.get(each.id, [])) for each in issues]
            write_json({"issues": rows_of})
            return
        rows = [
            (
                str(issue.reports),
                str(issue.devices),
                issue.kind,
                issue.title,
                ", ".join(issue.exceptions),
                decisions[issue.id][0].state.value if issue.id in decisions else "",
                issue.id,
            )
            for issue in issues
        ]
        headings = ("REPORTS", "DEVICES", "KIND", "WHERE", "EXCEPTION", "STATE", "ISSUE")
        write_table(headings, rows, right=frozenset({0, 1}), fixed=frozenset({6}))
        sys.stdout.write(f"{counted(len(issues), 'issue')}\n")


@click.command()
@folder_argument
@click.argument("issue", metavar="ISSUE")
@click.argument("state", metavar="STATE", type=click.Choice(["open", "resolved", "ignored"]))
@click.option("--note", metavar="TEXT", default="", help="The reason, or where it is tracked.")
@format_option()
def decide(*, folder: Path, issue: str, state: str, note: str, form: DocumentFormat) -> None:
    """Store a decision about an issue: open, resolved or ignored.

    It stays when symbols arrive and the issue gets another identifier; the earlier one still names
    it.
    """
    from machtrace.cli.console import output
    from machtrace.warehouse.triage import State

    with open_warehouse(folder) as warehouse:
        present = warehouse.decide(issue, State(state), note)
    with output():
        if form is DocumentFormat.JSON:
            write_json({"issue": present, "state": state, "note": note})
        else:
            sys.stdout.write(f"{present} is {state}\n")


@click.command()
@folder_argument
@where_option
@click.option(
    "--nodes",
    metavar="N",
    default=20_000,
    show_default=True,
    type=count_type(),
    help="Keep this many functions of the tree, the heaviest.",
)
@format_option(FlameFormat)
def flame(*, folder: Path, where: str, nodes: int, form: FlameFormat) -> None:
    """Write stored stacks as one weighted tree, for flame graphs and profile viewers.

    --where is a condition over the columns of the view stacks_of_reports, such as
    "role = 'crashed' AND app = 'com.example.app'".
    """
    from machtrace.cli.console import raw_output
    from machtrace.warehouse.documents import flame_document

    with open_warehouse(folder) as warehouse:
        tree = warehouse.flame(where, nodes)
    with raw_output() as stream:
        stream.write(flame_document(tree, str(folder), form.value))


@click.command()
@folder_argument
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--all", "every", is_flag=True, help="List changes that may be chance, too.")
@format_option()
def diff(*, folder: Path, before: str, after: str, every: bool, form: DocumentFormat) -> None:
    """Compare two sets of stacks, function by function, with intervals.

    BEFORE and AFTER are conditions over the columns of the view stacks_of_reports, such as
    "build = '811'" and "build = '812'". Each row is a function below its callers, with its share of
    the weight on both sides and the interval of the change that 95 % of resamples of the devices
    have.
    """
    from machtrace.cli.console import output

    with open_warehouse(folder) as warehouse:
        difference = warehouse.diff(before, after)
    changes = [change for change in difference.changes() if every or change.is_sure]
    with output():
        if form is DocumentFormat.JSON:
            sides = {"before": int(difference.before[0]), "after": int(difference.after[0])}
            rows = [
                {
                    **change.function._asdict(),
                    "before": change.before,
                    "after": change.after,
                    "interval": [change.least, change.most],
                    "is_sure": change.is_sure,
                    "callers": difference.callers(change.node),
                }
                for change in changes
            ]
            write_json({"weight": sides, "changes": rows})
            return
        texts = [
            (
                f"{change.before:.2%}",
                f"{change.after:.2%}",
                f"{change.difference:+.2%}",
                f"{change.least:+.2%} to {change.most:+.2%}",
                change.function.name,
                change.function.image,
            )
            for change in changes
        ]
        headings = ("BEFORE", "AFTER", "CHANGE", "95 %", "FUNCTION", "IMAGE")
        write_table(headings, texts, right=frozenset({0, 1, 2}))
        kind = "change" if every else "sure change"
        sys.stdout.write(
            f"{counted(len(changes), kind)}; weights {difference.before[0]:,} and "
            f"{difference.after[0]:,}\n"
        )


@click.command()
@folder_argument
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=parse_path, shell_complete=complete_files
)
@format_option()
def name(*, folder: Path, paths: tuple[Path, ...], form: DocumentFormat) -> None:
    """Name stored frames by symbols at PATH and in the store, then list missing symbols.

    Symbols may arrive long after the stacks: images, dSYMs and folders of them.
    """
    from machtrace.cli.console import output

    search = tuple(map(str, paths))
    check_search_paths(search)
    with open_warehouse(folder) as warehouse:
        named = warehouse.name(search)
        moved = warehouse.regroup() if named else {}
        wanted = warehouse.wanted()
    with output():
        if form is DocumentFormat.JSON:
            write_json(
                {"named": named, "aliases": moved, "wanted": [row._asdict() for row in wanted]}
            )
            return
        sys.stdout.write(f"{counted(named, 'frame')} named\n")
        if wanted:
            sys.stdout.write("\nsymbols that are missing:\n")
            rows = [(str(row.frames), row.name, row.arch, row.uuid) for row in wanted]
            write_table(("FRAMES", "IMAGE", "ARCH", "UUID"), rows, right=frozenset({0}))


def open_warehouse(folder: Path) -> Warehouse:
    """Open a warehouse."""
    from machtrace.warehouse.warehouse import Warehouse

    return Warehouse(folder)


def _runner(
    files: int, jobs: int | None
) -> Callable[[Iterator[list[LogRecord]]], Iterator[BatchOutcome]] | None:
    """Return what reads batches in several processes; None for one."""
    processes = jobs or (1 if files < _FEW else min(os.cpu_count() or 1, _MAX_PROCESSES))
    if processes == 1:
        return None
    from machtrace.engines.processes import run_in_processes

    return partial(_in_processes, run_in_processes, processes)


def _in_processes(
    run: Callable[..., Generator[BatchOutcome]], processes: int, batches: Iterator[list[LogRecord]]
) -> Iterator[BatchOutcome]:
    with closing(run(batches, _begin, processes)) as outcomes:
        yield from outcomes


def _begin() -> Callable[[Sequence[LogRecord]], BatchOutcome]:
    """Return the work of a process."""
    from machtrace.warehouse.ingest import read_batch

    return read_batch


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    from machtrace.errors import FileAccessError

    for path in paths:
        if not path.exists():
            raise FileAccessError(str(path), "no such file or folder")
        yield from (
            sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        )


def _bytes(path: Path) -> bytes:
    from machtrace.errors import FileAccessError

    try:
        return path.read_bytes()
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


warehouse_app = lazy_group(
    "warehouse",
    "Store the stacks of a fleet in a folder, name them, and query them.",
    {
        "init": LazyCommand(
            f"{_COMMANDS}:init", "Create a warehouse in FOLDER, which is empty or does not exist."
        ),
        "add": LazyCommand(
            f"{_COMMANDS}:add", "Add reports, profiles and spools: files, and folders of them."
        ),
        "name": LazyCommand(
            f"{_COMMANDS}:name",
            "Name stored frames by symbols at PATH and in the store, then list missing symbols.",
        ),
        "query": LazyCommand(
            f"{_COMMANDS}:query", "Print the rows of an SQL query; - reads it from standard input."
        ),
        "groups": LazyCommand(
            f"{_COMMANDS}:groups",
            "List the issues: reports of the same problem, the most frequent first.",
        ),
        "explain": LazyCommand(
            f"{_RULES}:explain",
            "Print for each frame of an issue's most frequent stack whether it counts, and why.",
        ),
        "rules": LazyCommand(
            f"{_RULES}:rules",
            "Print the grouping rules, or which issues those in FILE would merge and split.",
        ),
        "decide": LazyCommand(
            f"{_COMMANDS}:decide",
            "Store a decision about an issue: open, resolved or ignored.",
        ),
        "flame": LazyCommand(
            f"{_COMMANDS}:flame",
            "Write stored stacks as one weighted tree, for flame graphs and profile viewers.",
        ),
        "diff": LazyCommand(
            f"{_COMMANDS}:diff",
            "Compare two sets of stacks, function by function, with intervals.",
        ),
        "compact": LazyCommand(
            f"{_UPKEEP}:compact", "Join small segments into large ones, and remove what is old."
        ),
        "check": LazyCommand(
            f"{_UPKEEP}:check",
            "Read everything, and list what is damaged and what is in quarantine.",
        ),
        "run": LazyCommand(
            f"{_JOBS}:run_job", "Run JOB over the segments or spools at PLACE, on an engine."
        ),
        "delete": LazyCommand(f"{_UPKEEP}:delete", "Delete reports, and their bytes, for good."),
        "scrub": LazyCommand(
            f"{__package__}.scrub:scrub",
            "Show the rules by which personal data is overwritten before reports are stored.",
        ),
        "export": LazyCommand(
            f"{__package__}.export:export",
            "Write rows, stacks or the bytes of a report to FILE, which appears whole.",
        ),
        "retry": LazyCommand(
            f"{_UPKEEP}:retry", "Read the records in quarantine again, as after an upgrade."
        ),
    },
)
