"""``machtrace sample``: where a process spends its time.

Where a profile is written to, and in which format.

Ctrl-C as a wish to end, and not to break off.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, TextIO

import typer

from machtrace.cli import console
from machtrace.cli.options import RunningSpec
from machtrace.errors import FileAccessError
from machtrace.images.search_path import path_names
from machtrace.model.options import DEFAULT_STACK_LIMIT, NameOptions, WalkOptions
from machtrace.model.profile import Profile

_STDOUT = "-"


class ProfileFormat(StrEnum):
    """How a profile can be written."""

    TEXT = "text"
    FOLDED = "folded"
    SPEEDSCOPE = "speedscope"
    FIREFOX = "firefox"
    PPROF = "pprof"
    JSON = "json"


def check_output(path: Path | None, form: ProfileFormat) -> None:
    """See, before anything is sampled, that the profile could be written there.

    Raises:
        FileAccessError: it could not.
    """
    if path is None or str(path) == _STDOUT:
        if form is ProfileFormat.PPROF:
            with console.binary_output():
                return  # a terminal is refused
        return
    why = "is a directory" if path.is_dir() else ""
    if not path.parent.is_dir():
        why = "no such directory"
    if why:
        refused = FileAccessError(str(path), why)
        refused.remedy = "give the name of a file in a folder that can be written to"
        raise refused


def write_profile(
    profile: Profile, form: ProfileFormat, path: Path | None, *, merge_threads: bool
) -> None:
    """Write ``profile`` to a file, as a whole or not at all, or to standard output.

    Raises:
        FileAccessError: it cannot be written.
    """
    to_stdout = path is None or str(path) == _STDOUT
    if to_stdout and form is ProfileFormat.PPROF:
        with console.binary_output() as bytes_sink:
            bytes_sink.write(_written(profile, form, merge_threads=merge_threads))
        return
    written = _written(profile, form, merge_threads=merge_threads)
    if to_stdout:
        with console.output() as sink:
            sink.write(written.decode())
        return
    from machtrace.atomic_write import replace_file

    replace_file(str(path), [written])


def _written(profile: Profile, form: ProfileFormat, *, merge_threads: bool) -> bytes:
    if form is ProfileFormat.PPROF:
        from machtrace.render import pprof

        return pprof.data(profile)
    text = io.StringIO()
    _writer(form, merge_threads=merge_threads)(profile, text)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _writer(form: ProfileFormat, *, merge_threads: bool) -> Callable[[Profile, TextIO], None]:
    """What writes text in that format; modules are loaded where they are needed."""
    from functools import partial

    match form:
        case ProfileFormat.FOLDED:
            from machtrace.render import folded

            return partial(folded.write, merge_threads=merge_threads)
        case ProfileFormat.SPEEDSCOPE:
            from machtrace.render import speedscope

            return speedscope.write
        case ProfileFormat.FIREFOX:
            from machtrace.render import firefox

            return firefox.write
        case ProfileFormat.JSON:
            from machtrace.render import profile_json

            return profile_json.write
        case _:
            from machtrace.render import sample_text

            return partial(sample_text.write, merge_threads=merge_threads)


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
    from machtrace.cli.console import print_errors, warn
    from machtrace.cli.options import check_search_paths
    from machtrace.cli.sample_progress import progress, summary
    from machtrace.sampling.api import duration_ns, interval_ns, running_target
    from machtrace.sampling.sampler import Sampler
    from machtrace.targets.base import select_threads

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
            walk=WalkOptions(limit=limit, stack_limit=stack_limit),
            names=NameOptions(
                search=path_names(search or ()), symbolicate=names, lines=lines, python=python
            ),
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


@contextmanager
def ended_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """What it yields says whether Ctrl-C was pressed; pressed again it interrupts, as always.

    Where SIGINT is ignored, as in what a shell runs in the background, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or before is None:
        yield lambda: False
        return
    pressed = False

    def press(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
