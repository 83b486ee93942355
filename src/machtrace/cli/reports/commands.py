"""``machtrace symbolicate`` and ``machtrace convert``: reports in, reports out.

``machtrace report``: what many reports have in common, who waits for whom, what changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FILES_HELP = "Reports of any kind, folders and archives of them; - is standard input."


def symbolicate(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help=_FILES_HELP)],
    *,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search", "-s", metavar="PATH", help="A dSYM, an image, or a folder to look in."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A file; of several reports a folder; - is here."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str, typer.Option("--format", "-f", help="apple, ips, json and more: see convert --help.")
    ] = "apple",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; as many as pay when not given.")
    ] = None,
) -> None:
    """Give the frames of reports their names, source lines and inlined calls.

    Frames of which no symbols are found stay as the report has them; the images that symbols were
    missing for are listed on standard error, with their UUIDs. The status is 1 where a file could
    not be read.
    """
    from machtrace.cli.reports.run import check_format, run
    from machtrace.reports.batches import BatchOptions

    check_format(format)
    options = BatchOptions(format=format, search=tuple(search or ()))
    raise typer.Exit(run(files, options, output, jobs))


def convert(
    source: Annotated[str, typer.Argument(metavar="FILE", help=_FILES_HELP)],
    target: Annotated[
        str, typer.Argument(metavar="OUT", help="A file, or a folder; - is standard output.")
    ] = "-",
    *,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option("--format", "-f", help="apple, ips, json, …; else by the name of OUT."),
    ] = None,
) -> None:
    """Write a report in another format, with the names that it has."""
    from machtrace.cli.reports.run import check_format, format_of, run
    from machtrace.reports.batches import BatchOptions

    if format is not None:
        check_format(format)
    options = BatchOptions(format=format or format_of(target), wants_names=False)
    raise typer.Exit(run([source], options, None if target == "-" else Path(target), None))


_REPORTS_HELP = "Reports of any kind, folders and archives of them; - is standard input."


def report(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help=_REPORTS_HELP)],
    *,
    top: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The N functions that most stacks end in, and are in."
        ),
    ] = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Reports of the same problem, by the app's frames.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With the groups: which frames counted, and why.")
    ] = False,
    waits: Annotated[
        bool, typer.Option("--waits", help="Which thread waits for which, and deadlocks.")
    ] = False,
    diff: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OTHER", help="What is different from these reports; may be given repeatedly."
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search", "-s", metavar="PATH", help="Name frames first: a dSYM, image or folder."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str, typer.Option("--format", "-f", help="text, or json.")
    ] = "text",
) -> None:
    """Say what reports have in common: groups of them, their functions, their threads' waits.

    Without an option that says what, all but the differences is said. One page with everything is
    what machtrace convert --format html writes.
    """
    from machtrace.cli.reports.analysis import Wanted, run
    from machtrace.cli.reports.run import check_format

    check_format(format, ("text", "json"))
    everything = not (top or groups or explain or waits or diff)
    wanted = Wanted(
        top=top or (_TOP if everything or diff else None),
        groups=groups or explain or everything,
        explain=explain,
        waits=waits or everything,
        before=tuple(diff or ()),
        search=tuple(search or ()),
        is_json=format == "json",
    )
    raise typer.Exit(run(files, wanted))


_TOP = 10
