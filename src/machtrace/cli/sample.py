"""``machtrace sample``: where a process spends its time."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from machtrace.cli import console
from machtrace.cli.application import ProgramCommand
from machtrace.cli.options import (
    STDOUT,
    format_option,
    idle_option,
    limit_option,
    lines_option,
    merge_threads_option,
    name_options,
    names_option,
    output_option,
    parse_duration,
    parse_rate,
    python_option,
    quiet_option,
    sampled_thread_option,
    scan_option,
    search_option,
    stack_limit_option,
    target_argument,
)
from machtrace.cli.progress import Progress, progress_bar
from machtrace.errors import FileAccessError
from machtrace.model.options import PythonView, WalkOptions
from machtrace.model.profile import Profile, SamplingEnd
from machtrace.model.text import counted

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.sampling.sampler import SamplingProgress
    from machtrace.targets.base import Target
    from machtrace.targets.child_process import StartedProgram


class ProfileFormat(StrEnum):
    """Output formats of profiles."""

    TEXT = "text"
    FOLDED = "folded"
    SPEEDSCOPE = "speedscope"
    FIREFOX = "firefox"
    PPROF = "pprof"
    JSON = "json"
    HTML = "html"
    SVG = "svg"


def check_output(path: Path | None, form: ProfileFormat) -> None:
    """Check, before anything is sampled, that the profile can be written.

    Raises:
        FileAccessError: it cannot.
    """
    if path is None or str(path) == STDOUT:
        if form is ProfileFormat.PPROF:
            with console.binary_output():
                return  # a terminal is refused
        return
    why = "is a directory" if path.is_dir() else ""
    if not path.parent.is_dir():
        why = "no such directory"
    if why:
        refused = FileAccessError(str(path), why)
        refused.remedy = "name a file in a writable folder"
        raise refused


def write_profile(profile: Profile, form: ProfileFormat, path: Path | None) -> None:
    """Write ``profile`` to a file, completely or not at all, or to standard output.

    Raises:
        FileAccessError: the output cannot be written.
    """
    to_stdout = path is None or str(path) == STDOUT
    if to_stdout and form is ProfileFormat.PPROF:
        with console.binary_output() as bytes_sink:
            bytes_sink.write(_written(profile, form))
        return
    written = _written(profile, form)
    if to_stdout:
        with console.output() as sink:
            sink.write(written.decode())
        return
    from machtrace.atomic_write import replace_file

    replace_file(str(path), [written])


def _written(profile: Profile, form: ProfileFormat) -> bytes:
    from machtrace.reports.files import stacks_bytes

    return stacks_bytes(profile, form.value)


def _form_of(form: ProfileFormat | None, path: Path | None) -> ProfileFormat:
    """Return the requested format, else that of the output's suffix, else text."""
    if form is not None or path is None:
        return form or ProfileFormat.TEXT
    from machtrace.reports.writers import format_of_suffix

    name = (format_of_suffix(path.name) or "").removeprefix("profile-")
    return ProfileFormat(name) if name in set(ProfileFormat) else ProfileFormat.TEXT


@click.command(cls=ProgramCommand)
@target_argument(of_running=True, metavar="SPEC | -- PROGRAM [ARGS]...")
@click.option(
    "--hz",
    "--rate",
    "-r",
    type=parse_rate,
    default=99,
    show_default=True,
    metavar="RATE",
    help="Samples per second.",
)
@click.option(
    "--duration",
    "-d",
    type=parse_duration,
    metavar="TIME",
    help="How long to sample: 500ms, 10s or 2m; 'inf' until Ctrl-C. A bare number counts seconds. "
    "Default: 10s, or until PROGRAM ends.",
)
@sampled_thread_option
@format_option(ProfileFormat, of_suffix=True)
@output_option
@search_option
@limit_option
@stack_limit_option
@scan_option
@names_option
@lines_option
@python_option
@quiet_option
@merge_threads_option
@idle_option
@click.option(
    "--gil",
    is_flag=True,
    help="Include only samples of threads that hold Python's interpreter lock; requires --python.",
)
def sample(  # noqa: PLR0913 - an option each
    *,
    spec: str | tuple[str, ...],
    hz: float,
    duration: float | None,
    thread: str | tuple[str, ...],
    form: ProfileFormat | None,
    output: Path | None,
    search: tuple[str, ...],
    limit: int,
    stack_limit: int,
    scan: bool,
    names: bool,
    lines: bool,
    python: PythonView,
    by_name: bool | None,
    idle: bool,
    gil: bool,
) -> int:
    """Sample a running process to show where it spends its time.

    SPEC is {SPECS}. PROGRAM is started with ARGS and sampled from its first instruction on.

    Each thread is suspended only while it is copied. Sampling ends early on Ctrl-C or SIGTERM, or
    when the process exits; the samples taken until then are written. The exit status is 1 if a
    part of the process could not be read.

    Signals are passed on to PROGRAM; the second one ends sampling, too. When --duration is over,
    the samples are written and PROGRAM continues. The exit status is that of PROGRAM: 128 and the
    number of a signal that ended it; 127 or 126 if it does not exist or cannot be executed; 125 if
    sampling failed.
    """
    from machtrace.sampling.api import (
        chosen_threads,
        duration_ns,
        interval_ns,
        running_target,
    )
    from machtrace.sampling.sampler import FOREVER_NS, Sampler

    naming = name_options(search=search, names=names, lines=lines, python=python)
    is_program = not isinstance(spec, str)
    if duration is None:
        duration = math.inf if is_program else 10
    interval, length = interval_ns(hz), duration_ns(duration)
    if gil and not python:
        raise click.UsageError("--gil requires --python, with which the lock is read")
    form = _form_of(form, output)

    def sampled(
        target: Target,
        ends: AbstractContextManager[Callable[[], bool]],
        on_start: Callable[[], None] | None = None,
    ) -> int:
        sampler = Sampler(
            target,
            interval_ns=interval,
            threads=chosen_threads(target, thread, naming),
            walk=WalkOptions(limit=limit, stack_limit=stack_limit, scan=scan),
            names=naming,
            idle=idle,
            gil=gil,
        )
        total = None if length >= FOREVER_NS else length
        # A bar would be drawn over what a program writes to the terminal.
        bar = progress_bar(total, unit="ns", note="sampling", every=_REDRAW_SECONDS)
        with ends as should_stop, nullcontext(Progress()) if is_program else bar as drawn:
            run = sampler.run(
                length, should_stop=should_stop, on_tick=_shown_on(drawn), on_start=on_start
            )
        profile = sampler.profile(run)
        shown = profile if by_name is None else profile.with_merged_threads(by_name=by_name)
        write_profile(shown, form, output)
        console.warn(_summary(profile, sampler.samples))
        console.print_errors([problem.error for problem in profile.problems])
        # Other problems are names and lines that may be missing; the stacks are whole.
        return 1 if sampler.problems else 0

    if isinstance(spec, str):
        check_output(output, form)
        with running_target(spec) as target:
            return sampled(target, ended_by_signal())

    def sample_program(program: StartedProgram, signals: list[int]) -> None:
        check_output(output, form)
        with running_target(program.pid) as target:
            sampled(target, nullcontext(lambda: len(signals) > 1), program.run)
        if not program.has_ended:
            console.warn(f"waiting for process {program.pid} to end")

    return console.run_program(spec, sample_program)


_REDRAW_SECONDS = 0.1
"""Drawing takes time that the next tick may need."""

_ENDS = {
    SamplingEnd.DURATION: "",
    SamplingEnd.INTERRUPTED: ", then interrupted",
    SamplingEnd.PROCESS_ENDED: ", until the process exited",
    SamplingEnd.THREADS_ENDED: ", until its threads exited",
    SamplingEnd.TARGET_LOST: ", until the target could not be read any more",
    SamplingEnd.FULL: ", until memory for samples was full",
}


def _shown_on(bar: Progress) -> Callable[[SamplingProgress], None]:
    elapsed = 0

    def show(now: SamplingProgress) -> None:
        nonlocal elapsed
        rate = now.ticks * 1e9 / now.elapsed_ns
        bar.show(label=f"{rate:.1f} Hz  {now.lost} lost  {_stopped(now.stopped_share)}")
        bar.advance(now.elapsed_ns - elapsed)
        elapsed = now.elapsed_ns

    return show


def _stopped(share: float | None) -> str:
    """Return how much of the time threads were suspended."""
    return "stopped for ? of the time" if share is None else f"stopped {share:.2%} of the time"


def _summary(profile: Profile, taken: int) -> str:
    run, samples, threads = profile.run, len(profile.samples), len(profile.threads)
    wanted = 1e9 / run.interval_ns
    idle = f"; {taken - samples:,} idle left out" if samples < taken else ""
    stopped = "" if profile.stopped_share is None else f"; {_stopped(profile.stopped_share)}"
    return (
        f"{counted(samples, 'sample')} of {counted(threads, 'thread')} in "
        f"{run.duration_ns / 1e9:.2f} s{_ENDS[run.end]}{idle}; {run.rate:.1f} of {wanted:g} Hz, "
        f"{run.lost} lost{stopped}"
    )


_END_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C; timeout(1), systemd and container runtimes; a closed terminal."""


@contextmanager
def ended_by_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a signal requested the end; a second one acts at once.

    Signals that are ignored, as SIGINT in background jobs of a shell, stay ignored.
    """
    before = {number: signal.getsignal(number) for number in _END_SIGNALS}
    caught = [number for number, action in before.items() if action not in (signal.SIG_IGN, None)]
    is_requested = False

    def restore() -> None:
        for number in caught:
            signal.signal(number, before[number])

    def request(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_requested
        is_requested = True
        restore()

    for number in caught:
        signal.signal(number, request)
    try:
        yield lambda: is_requested
    finally:
        restore()
