"""``machtrace symbolicate``, ``convert`` and ``report``: reports in, reports or analyses out."""

from __future__ import annotations

from pathlib import Path

import click

from machtrace.cli.application import OptionalValueCommand
from machtrace.cli.options import (
    STDOUT,
    DocumentFormat,
    check_search_paths,
    complete_files,
    complete_words,
    count_type,
    format_option,
    idle_option,
    merge_threads_option,
    parse_name,
    parse_path,
    quiet_option,
    reports_argument,
    search_option,
    unique_option,
)
from machtrace.reports.writers import FORMATS, UNIQUE_FORMATS

_FORMATS = ", ".join(FORMATS)

_TOP = 10
"""Functions that are listed unless ``--top`` is given."""


def _report_format(
    _context: click.Context, _parameter: click.Parameter, name: str | None
) -> str | None:
    if name is not None and name not in FORMATS:
        raise click.BadParameter(f"{name!r} is not one of {_FORMATS}")
    return name


@click.command()
@reports_argument
@search_option
@click.option(
    "--output",
    "-o",
    metavar="OUT",
    type=parse_path,
    shell_complete=complete_files,
    help="Output file, or a directory for several reports; '-' for stdout.",
)
@click.option(
    "--format",
    "-f",
    "form",
    metavar="FORMAT",
    callback=_report_format,
    shell_complete=complete_words(*FORMATS),
    help=f"Output format: {_FORMATS} (default: from OUT's suffix; else, of one file, its own if "
    "that can be written; else apple).",
)
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    type=count_type(),
    help="Worker processes (default: chosen from the amount of work).",
)
@quiet_option
def symbolicate(
    *,
    files: tuple[str, ...],
    search: tuple[str, ...],
    output: Path | None,
    form: str | None,
    jobs: int | None,
) -> int:
    """Add function names, source lines and inlined calls to reports.

    Each FILE is a report of any kind, or a folder or archive of them; '-' is stdin. Frames without
    symbols stay as the report has them; their images are listed on stderr, with UUIDs. The exit
    status is 1 if a file could not be read.
    """
    from machtrace.cli.reports.run import run
    from machtrace.reports.batches import BatchOptions
    from machtrace.reports.writers import format_of_suffix

    check_search_paths(search)
    is_file = output is None or not output.is_dir()
    if form is None and output is not None and is_file:
        form = format_of_suffix(output.name)
    options = BatchOptions(
        format=form or "apple",
        search=search,
        keeps_form=form is None and len(files) == 1 and is_file,
    )
    return run(files, options, output, jobs)


@click.command(cls=OptionalValueCommand)
@click.argument("source", metavar="FILE", type=parse_name, shell_complete=complete_files)
@click.argument("target", metavar="[OUT]", required=False, shell_complete=complete_files)
@click.option(
    "--output",
    "-o",
    metavar="OUT",
    type=parse_path,
    shell_complete=complete_files,
    help="The same as the argument OUT.",
)
@click.option(
    "--format",
    "-f",
    "form",
    metavar="FORMAT",
    callback=_report_format,
    shell_complete=complete_words(*FORMATS),
    help=f"Output format: {_FORMATS} (default: from OUT's suffix, else apple; with --unique text).",
)
@unique_option
@merge_threads_option
@idle_option
@quiet_option
def convert(
    *,
    source: str,
    target: str | None,
    output: Path | None,
    form: str | None,
    unique: bool,
    by_name: bool | None,
    idle: bool,
) -> int:
    """Write a report in another format, with the names that it has.

    FILE is a report of any kind, or a folder or archive of them; '-' is stdin. OUT is a file, or a
    folder for several reports; '-' is stdout.
    """
    from machtrace.cli.reports.run import format_of, run
    from machtrace.reports.batches import BatchOptions

    if target is not None and output is not None:
        raise click.UsageError("--output is the argument OUT: pass one of them")
    target = str(output or parse_path(STDOUT if target is None else target))
    chosen = form or ("text" if unique and target == STDOUT else format_of(target))
    if unique and chosen not in UNIQUE_FORMATS:
        names = ", ".join(UNIQUE_FORMATS)
        raise click.UsageError(f"--unique requires --format {names}, not {chosen}")
    options = BatchOptions(
        format=chosen, wants_names=False, unique=unique, idle=idle, by_name=by_name
    )
    return run([source], options, None if target == STDOUT else Path(target), None)


@click.command()
@reports_argument
@click.option(
    "--top",
    metavar="N",
    type=count_type(),
    help="List the N functions in which most stacks end, and which are in most stacks.",
)
@click.option(
    "--groups", is_flag=True, help="Group reports of the same problem, by the app's frames."
)
@click.option(
    "--explain", is_flag=True, help="With the groups, show which frames counted, and why."
)
@click.option("--waits", is_flag=True, help="Show which thread waits for which, and deadlocks.")
@click.option(
    "--diff",
    metavar="OTHER",
    multiple=True,
    type=parse_name,
    shell_complete=complete_files,
    help="Show the differences from these reports; may be repeated.",
)
@search_option
@format_option()
@quiet_option
def report(
    *,
    files: tuple[str, ...],
    top: int | None,
    groups: bool,
    explain: bool,
    waits: bool,
    diff: tuple[str, ...],
    search: tuple[str, ...],
    form: DocumentFormat,
) -> int:
    """Analyse reports: groups of the same problem, hot functions, waits and deadlocks.

    Each FILE is a report of any kind, or a folder or archive of them; '-' is stdin. Without options
    that select parts, everything but differences is shown. machtrace convert --format html writes
    one page with everything.
    """
    from machtrace.cli.reports.analysis import Wanted, run

    check_search_paths(search)
    everything = not (top or groups or explain or waits or diff)
    wanted = Wanted(
        top=top or (_TOP if everything or diff else None),
        groups=groups or explain or everything,
        explain=explain,
        waits=waits or everything,
        before=diff,
        search=search,
        is_json=form is DocumentFormat.JSON,
    )
    return run(files, wanted)
