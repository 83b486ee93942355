"""``machtrace backtrace``: the call stacks of a target."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from machtrace.model.report import Report


class Format(StrEnum):
    """How stacks can be written."""

    TEXT = "text"
    LLDB = "lldb"
    NSTHREAD = "nsthread"
    BS = "bs"
    JSON = "json"


def backtrace(
    spec: Annotated[
        str, typer.Argument(help="A process id, the path of a core file, or emulated:demo.")
    ],
    thread: Annotated[
        str, typer.Option(help="Which threads: all, main, a name, an id, or #N as lldb counts.")
    ] = "all",
    format: Annotated[  # noqa: A002 - the option's name
        Format, typer.Option(help="How to write the stacks.")
    ] = Format.TEXT,
    search: Annotated[
        list[Path] | None,
        typer.Option(help="Files and folders with the program's images; may be given again."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Frames of a stack at most.")] = 512,
    names: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--names/--no-names", help="Look up the names of addresses.")
    ] = True,
) -> None:
    """Print the call stack of every thread of a process, a core or an emulated program."""
    from machtrace.capture.pipeline import report
    from machtrace.capture.selection import select_threads
    from machtrace.cli.console import complain_of_all
    from machtrace.target.open import open_target

    with open_target(spec) as target:
        chosen = select_threads(target.threads(), thread)
        snapshot = target.snapshot(chosen)
        result = report(snapshot, limit=limit, symbolicate=names, search=search or ())
        write_report(result, format)
    if result.problems:
        complain_of_all([problem.error for problem in result.problems])
        raise typer.Exit(1)


def write_report(result: Report, form: Format) -> None:
    """Write ``result`` to standard output."""
    from machtrace.cli.console import wants_colour
    from machtrace.report import bs, json_document, lldb, nsthread, text

    match form:
        case Format.TEXT:
            text.write(result, sys.stdout, colour=wants_colour(sys.stdout))
        case Format.LLDB:
            lldb.write(result, sys.stdout)
        case Format.NSTHREAD:
            nsthread.write(result, sys.stdout)
        case Format.BS:
            bs.write(result, sys.stdout)
        case Format.JSON:
            json_document.write(result, sys.stdout)
