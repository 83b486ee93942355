"""``machtrace sample``: where a process spends its time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from machtrace.cli.sample_output import ProfileFormat, check_output, write_profile
from machtrace.cli.options import RunningSpec
from machtrace.targets.base import DEFAULT_STACK_LIMIT


def sample(  # noqa: PLR0913, PLR0917 - a parameter is an option
    spec: RunningSpec,
    hz: Annotated[float, typer.Option(help="Samples a second.")] = 99,
    duration: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="For how long; inf is until Ctrl-C is pressed."),
    ] = 10,
    thread: Annotated[
        str, typer.Option(help="Which threads: all, main, a name, an id, or #N as lldb counts.")
    ] = "all",
    format: Annotated[  # noqa: A002 - the option's name
        ProfileFormat, typer.Option(help="How to write the profile.")
    ] = ProfileFormat.TEXT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; standard output otherwise."
        ),
    ] = None,
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
    ] = DEFAULT_STACK_LIMIT,
    names: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--names/--no-names", help="Look up the names of addresses.")
    ] = True,
    lines: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--lines/--no-lines", help="Look up source lines and inlined calls, too."),
    ] = True,
    python: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--python", help="Show the Python functions that CPython's loop runs."),
    ] = False,
    merge_threads: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--merge-threads", help="Put all threads together: in text and folded."),
    ] = False,
) -> None:
    """Sample a process that runs: where its threads spend their time.

    All threads are copied many times a second, each stopped only for that moment. Ctrl-C ends it
    early, and the end of the process does; what was taken until then is written. The status is 1
    where a part of the process could not be read.
    """
    from machtrace.sampling.sampler import Sampler
    from machtrace.sampling.api import duration_ns, interval_ns, running_target
    from machtrace.targets.selection import select_threads
    from machtrace.cli.console import print_errors, warn
    from machtrace.cli.interruption import ended_by_ctrl_c
    from machtrace.cli.places import check_search_paths
    from machtrace.cli.sample_progress import progress, summary

    if python and not names:
        warn("--python needs names: it is by its name that CPython's loop is known")
        raise typer.Exit(2)
    interval, length = interval_ns(hz), duration_ns(duration)
    check_search_paths(search or ())
    check_output(output, format)
    with running_target(spec) as target:
        sampler = Sampler(
            target,
            interval_ns=interval,
            threads=select_threads(target.threads(), thread),
            search=search or (),
            limit=limit,
            stack_limit=stack_limit,
            symbolicate=names,
            lines=lines,
            python=python,
        )
        with ended_by_ctrl_c() as should_stop, progress(length) as on_tick:
            run = sampler.run(length, should_stop=should_stop, on_tick=on_tick)
    profile = sampler.profile(run)
    write_profile(profile, format, output, merge_threads=merge_threads)
    warn(summary(profile))
    if profile.problems:
        print_errors([problem.error for problem in profile.problems])
    if sampler.problems:  # else it is names and lines that may be missing
        raise typer.Exit(1)
