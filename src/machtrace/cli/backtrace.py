"""``machtrace backtrace``: the call stacks of a target."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from machtrace.cli.options import Spec, check_search_paths
from machtrace.cpython.runs import PythonRuns
from machtrace.images.search_path import path_names
from machtrace.model.capture import Capture
from machtrace.model.options import NameOptions, WalkOptions
from machtrace.model.snapshot import ThreadId
from machtrace.model.stack import FrameTrust
from machtrace.model.symbol import CallStack


class Format(StrEnum):
    """How stacks can be written."""

    TEXT = "text"
    LLDB = "lldb"
    NSTHREAD = "nsthread"
    BS = "bs"
    JSON = "json"


def backtrace(  # noqa: PLR0913, PLR0917 - a parameter is an option
    spec: Spec,
    thread: Annotated[
        str, typer.Option(help="Which threads: all, main, a name, an id, or #N as lldb counts.")
    ] = "all",
    format: Annotated[  # noqa: A002 - the option's name
        Format, typer.Option(help="How to write the stacks.")
    ] = Format.TEXT,
    search: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Files and folders with the program's images; may be given again."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Frames of a stack that are kept: of a deeper one both ends.")
    ] = 512,
    stack_limit: Annotated[
        int, typer.Option(min=4096, metavar="BYTES", help="Bytes copied of each stack at most.")
    ] = 16 << 20,
    names: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--names/--no-names", help="Look up the names of addresses.")
    ] = True,
    lines: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--lines/--no-lines", help="Look up source lines and inlined calls, too."),
    ] = True,
    explain: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--explain", help="Say of each frame how it was found, and what else was known."
        ),
    ] = False,
    python: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--python",
            help="Show the Python functions that run in each frame of CPython's loop (3.11 to "
            "3.14). The whole process stands still while they are read.",
        ),
    ] = False,
) -> None:
    """Print the call stack of every thread of a process, a core or an emulated program."""
    from machtrace.cli.console import output, print_errors, warn
    from machtrace.pipeline.backtraces import build_capture, snapshot, snapshot_with_python

    check_search_paths(search or ())
    if explain and format not in _TELLING:
        warn(f"--explain needs --format text or json: {format} has no place for explanations")
        raise typer.Exit(2)
    if python and not names:
        warn("--python needs names: it is by its name that CPython's loop is known")
        raise typer.Exit(2)
    if python and format not in _WITH_LINES:
        listed = ", ".join(sorted(_WITH_LINES))
        warn(f"--python needs --format {listed}: {format} has no place for Python functions")
        raise typer.Exit(2)
    runs: Mapping[ThreadId, PythonRuns] = {}
    if python:
        copied, runs = snapshot_with_python(spec, threads=thread, stack_limit=stack_limit)
    else:
        copied = snapshot(spec, threads=thread, stack_limit=stack_limit)
    result = build_capture(
        copied,
        WalkOptions(limit=limit, stack_limit=stack_limit),
        NameOptions(
            search=path_names(search or ()),
            symbolicate=names,
            lines=lines and format in _WITH_LINES,
        ),
        explain=explain,
        python=runs,
    )
    with output() as sink:
        write_report(result, format, sink)
    guessed = sum(_is_guess_at_top(stack) for stack in result.stacks)
    if guessed:
        warn(
            f"the first caller is a guess in {guessed} of {len(result.stacks)} stacks, since the "
            "code there is not at hand or says nothing; give the images' files with --search"
        )
    if format not in _TELLING:
        for complaint in _untold(result):
            warn(f"{complaint}; --format text says where")
    if result.problems:
        print_errors([problem.error for problem in result.problems])
    if copied.problems:  # else stacks are whole; it is names and lines that may be missing
        raise typer.Exit(1)


_WITH_LINES = frozenset({Format.TEXT, Format.LLDB, Format.JSON})
"""Formats that have a place for source lines."""

_TELLING = frozenset({Format.TEXT, Format.JSON})
"""Formats that say of each stack why it ends."""


_GUESSES = frozenset({FrameTrust.FRAME_POINTER, FrameTrust.LINK_REGISTER, FrameTrust.SCAN})


def _is_guess_at_top(stack: CallStack) -> bool:
    """Whether only a convention says who called the function that was about to go on."""
    first = stack.frames[:2]
    return (
        len(first) == 2  # noqa: PLR2004 - the first two
        and first[0].image is not None
        and first[0].address.trust is FrameTrust.CONTEXT
        and first[1].address.trust in _GUESSES
    )


def _untold(result: Capture) -> Iterator[str]:
    """What formats that only list frames do not say."""
    incomplete = sum(not stack.stop.is_complete for stack in result.stacks)
    if incomplete:
        yield f"{incomplete} of {len(result.stacks)} stacks are incomplete"
    disputed = sum(
        bool(frame.address.disputed_by) for stack in result.stacks for frame in stack.frames
    )
    if disputed:
        yield f"methods of unwinding disagree at {disputed} frames"


def write_report(result: Capture, form: Format, sink: TextIO) -> None:
    """Write ``result`` to ``sink``, with colours where standard output is a terminal."""
    from machtrace.cli.console import wants_colour
    from machtrace.render import bs, json_document, lldb, nsthread, text

    match form:
        case Format.TEXT:
            text.write(result, sink, colour=wants_colour(sys.stdout))
        case Format.LLDB:
            lldb.write(result, sink)
        case Format.NSTHREAD:
            nsthread.write(result, sink)
        case Format.BS:
            bs.write(result, sink)
        case Format.JSON:
            json_document.write(result, sink)
