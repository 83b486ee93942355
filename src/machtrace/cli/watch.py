"""``machtrace watch``: what goes wrong in a process, with stacks of that time."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machtrace.cli import console
from machtrace.cli.application import ProgramCommand
from machtrace.cli.live_line import LiveLine
from machtrace.cli.options import (
    complete_folders,
    enum_option,
    lines_option,
    parse_duration,
    parse_path,
    quiet_option,
    search_option,
    target_argument,
    watched_thread_option,
)
from machtrace.errors import FileAccessError, MachtraceError
from machtrace.model.incident.facts import IncidentKind, Verdict, WatchIncident
from machtrace.model.text import counted

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.watching.thresholds import WatchOptions
    from machtrace.watching.watcher import Watcher

CANNOT_WATCH = 2
"""The exit status if the process could not be watched."""

DEFAULT_HANG_S = 0.25
_REMEDY = "--crash"
_FOREVER_S = float(1 << 32)
_MAX_PROCESSORS = 1024
"""Those of another machine, whose number is unknown."""


class WatchFormat(StrEnum):
    """Output formats of incidents."""

    TEXT = "text"
    JSONL = "jsonl"


class WatchCommand(ProgramCommand):
    """A command whose exit status is 2 also for specs that it cannot take."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except MachtraceError as error:
            console.print_error(error)
            ctx.exit(CANNOT_WATCH)


def _time(text: object) -> float:
    seconds = parse_duration(text)
    if not seconds >= 0:  # nor NaN
        raise click.BadParameter(f"{text!r} is not a duration; write 500ms, 10s or 2m")
    return seconds


@click.command(cls=WatchCommand)
@target_argument(of_running=True, metavar="SPEC | -- PROGRAM [ARGS]...")
@click.option(
    "--hang",
    type=_time,
    metavar="TIME",
    help="Report a thread that does not return to its event loop, or to its wait for work, within "
    "this time, such as 250ms.",
)
@click.option(
    "--cpu",
    multiple=True,
    metavar="SHARE/TIME",
    help="Report processor time: a share of one processor and a time, such as 80%/60s; may be "
    "repeated.",
)
@click.option(
    "--memory",
    multiple=True,
    metavar="SIZE",
    help="Report memory: 1GiB, 90% (of the limit), +100MiB/1s (a jump) or limit/5m (growth that "
    "reaches the limit in that time); may be repeated.",
)
@click.option(
    "--deadlocks/--no-deadlocks",
    default=None,
    help="Report threads that wait for one another for good, by the owners that locks record.",
)
@click.option(
    "--crash/--no-crash",
    default=None,
    help="Trace the process, too, and report the signal that ends it with all stacks. Each signal "
    "and each new thread takes longer, and no debugger can attach meanwhile.",
)
@watched_thread_option
@click.option(
    "--for",
    "duration",
    type=_time,
    default="inf",
    metavar="TIME",
    help="How long to watch: 60s, 10m or 8h. Default: until Ctrl-C, or the process exits.",
)
@click.option(
    "--until-incident",
    is_flag=True,
    help="Stop watching when an incident has ended: one that sets the exit status to 1.",
)
@click.option(
    "--poll",
    type=_time,
    default="20ms",
    show_default=True,
    metavar="TIME",
    help="The time between two polls of the process.",
)
@click.option(
    "--launch-grace",
    "grace",
    type=_time,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Time after the process's start in which a thread that was never idle is not reported.",
)
@click.option(
    *("--output", "-o", "folder"),
    type=parse_path,
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="Write a report of each incident to this folder.",
)
@enum_option("--format", "-f", "form", members=WatchFormat, help="Output format.")
@search_option
@lines_option
@quiet_option
def watch(  # noqa: PLR0913 - an option each
    *,
    spec: str | tuple[str, ...],
    hang: float | None,
    cpu: tuple[str, ...],
    memory: tuple[str, ...],
    deadlocks: bool | None,
    crash: bool | None,
    thread: str | tuple[str, ...],
    duration: float,
    until_incident: bool,
    poll: float,
    grace: float,
    folder: Path | None,
    form: WatchFormat,
    search: tuple[str, ...],
    lines: bool,
) -> int:
    """Watch a process and capture stacks while something is wrong with it.

    SPEC is {SPECS}. PROGRAM is started with ARGS and watched from its first instruction on.

    --hang, --cpu, --memory and --deadlocks are conditions; with some of them only these are on.
    With none all are: --hang 250ms, --cpu 80%/60s,50%/180s,90%/5s,
    --memory 90%,+100MiB/1s,limit/5m and --deadlocks. --crash is in addition to them.
    A gdb:// or device:// is interrupted for each poll of its threads: there --hang, of at least
    500ms, has to be given; with no condition, --crash is on there.

    Without --crash nothing is stopped while nothing is wrong, and debuggers can attach. A thread
    that waits is copied without a stop, one that runs is suspended only while it is copied.
    Watching ends on Ctrl-C or SIGTERM, after --for, or when the process exits. PROGRAM gets these
    signals instead; a second one ends watching, too. After --for or --until-incident PROGRAM
    continues, and the command waits for its end.

    The exit status is 0 if nothing happened and 1 if there were incidents. It is 2 if the process
    cannot be watched, if --crash, or --deadlocks alone, is refused, or if the output cannot be
    written. What else cannot be seen, such as stacks for want of rights, is stated on stderr.
    """
    gc.enable()  # this command may run for days
    try:
        settings = {
            **_conditions(spec, hang, cpu, memory, deadlocks, crash),
            "poll_ns": round(min(poll, _FOREVER_S) * 1e9),
            "launch_grace_ns": round(min(grace, _FOREVER_S) * 1e9),
            "threads": thread,
            "search": search,
            "lines": lines,
        }
        with console.output():
            return _watch(
                spec,
                form,
                folder,
                duration=duration,
                until_incident=until_incident,
                settings=settings,
            )
    except MachtraceError as error:
        console.print_error(error)
        return CANNOT_WATCH


def _conditions(
    spec: str | tuple[str, ...],
    hang: float | None,
    cpu: tuple[str, ...],
    memory: tuple[str, ...],
    deadlocks: bool | None,  # noqa: FBT001 - as the options are
    crash: bool | None,  # noqa: FBT001
) -> dict[str, Any]:
    """Return the conditions that are given, or all of them."""
    from machtrace.watching.target import REMOTE, interrupts
    from machtrace.watching.thresholds import DEFAULT_CPU, DEFAULT_MEMORY, parse_cpu, parse_memory

    is_remote = isinstance(spec, str) and spec.startswith(REMOTE)
    processors = _MAX_PROCESSORS if is_remote else os.cpu_count() or 1
    if hang is None and not (cpu or memory or deadlocks):
        if not (isinstance(spec, str) and interrupts(spec)):
            hang = DEFAULT_HANG_S
        cpu, memory = (DEFAULT_CPU,), (DEFAULT_MEMORY,)
        deadlocks = deadlocks is not False
    else:
        crash = bool(crash)
    return {
        "hang_ns": None if hang is None else round(min(hang, _FOREVER_S) * 1e9),
        "cpu": parse_cpu(",".join(cpu), processors=processors) if cpu else (),
        "memory": parse_memory(",".join(memory)) if memory else (),
        "deadlocks": bool(deadlocks),
        "crash": crash,
    }


def _watch(
    spec: str | tuple[str, ...],
    form: WatchFormat,
    folder: Path | None,
    *,
    duration: float,
    until_incident: bool,
    settings: dict[str, Any],
) -> int:
    from machtrace.cli.sample import ended_by_signal
    from machtrace.targets.child_process import StartedProgram, exit_status
    from machtrace.watching.api import watched_spec
    from machtrace.watching.target import can_trace
    from machtrace.watching.thresholds import WatchOptions

    if folder is not None:
        _prepare(folder)
    options = WatchOptions(**settings)
    session = _Session(form, folder, until_incident=until_incident)
    duration_ns = round(min(duration, _FOREVER_S) * 1e9)
    if isinstance(spec, str):
        target = watched_spec(spec)
        watcher = session.watch(target, options, duration_ns, ended_by_signal())
        if watcher.wait_status is not None:
            _warn_of_end(f"process {target}", exit_status(watcher.wait_status), watcher)
        elif watcher.has_ended:
            is_blind = can_trace(target) and not options.crash
            unknown = f"; how is not known without {_REMEDY}" if is_blind else ""
            console.warn(f"process {target} has ended{unknown}")
        _warn_of_kill(watcher)
        return _status(watcher)
    with StartedProgram(spec) as program, program.passing_signals() as arrived:
        is_over = nullcontext(lambda: len(arrived) > 1)
        watcher = session.watch(program.pid, options, duration_ns, is_over, program.run)
        if not program.has_ended:
            console.warn(f"watching has ended; waiting for process {program.pid} to end")
        _warn_of_end(spec[0], program.wait(), watcher)
    _warn_of_kill(watcher)
    return _status(watcher)


class _Session:
    """The output of one watch.

    Args:
        form: of incidents.
        folder: of reports; None for none.
        until_incident: whether the watch ends after the first one.
    """

    def __init__(self, form: WatchFormat, folder: Path | None, *, until_incident: bool) -> None:
        from machtrace.model.text import COLOUR, PLAIN

        self._form = form
        self._folder = folder
        self._until_incident = until_incident
        self._line = LiveLine(sys.stderr)
        self._style = COLOUR if console.wants_colour(sys.stdout) else PLAIN
        self._seen: dict[str, Verdict | None] = {}
        self._is_complete = False
        self._is_unread = False
        """Whether the reader of the output, such as ``head``, has left."""
        self._warned: set[str] = set()

    def watch(
        self,
        target: int | str,
        options: WatchOptions,
        duration_ns: int,
        ends: AbstractContextManager[Callable[[], bool]],
        on_start: Callable[[], None] = lambda: None,
    ) -> Watcher:
        """Watch a process; return the watcher, which is closed."""
        from machtrace.watching.watcher import Watcher

        with ends as should_stop:
            watcher = Watcher(target, options, self._show)
            try:
                with watcher:
                    watcher.begin()
                    on_start()
                    watcher.run(
                        duration_ns,
                        should_stop=lambda: (
                            watcher.has_failed
                            or should_stop()
                            or self._is_unread
                            or (self._until_incident and self._is_complete)
                        ),
                        on_tick=lambda: self._tick(watcher),
                    )
                    self._warn_of_missing(watcher)
            except BrokenPipeError:  # its reader, such as head, has enough
                console.drop_output()
        self._line.clear()
        console.warn(_summary(watcher))
        return watcher

    def _show(self, incident: WatchIncident) -> None:
        from machtrace.model.incident.facts import STILL_OPEN
        from machtrace.model.incident.text import ended_lines, incident_lines
        from machtrace.watching.jsonl import incident_line
        from machtrace.watching.reports import write_incident

        path = None
        try:
            path = None if self._folder is None else write_incident(incident, self._folder)
        except MachtraceError as error:
            with self._line.hidden():
                console.print_error(error)
        has_ended = incident.ended is not None or STILL_OPEN in incident.missing
        is_new = incident.id not in self._seen
        if _counts(incident):
            self._is_complete |= has_ended or _is_complete(incident, is_new=is_new)
        if not has_ended and self._seen.get(incident.id, ...) is incident.verdict:
            return  # its samples are complete; the report has them
        self._seen[incident.id] = incident.verdict
        if self._form is WatchFormat.JSONL:
            text = incident_line(incident, path)
        else:
            lines_of = ended_lines if has_ended and not is_new else incident_lines
            text = "\n".join([*lines_of(incident, self._style, path), "", ""]).lstrip("\n")
        with self._line.hidden():
            sys.stdout.write(text)
            sys.stdout.flush()

    def _tick(self, watcher: Watcher) -> None:
        if self._line.is_due():
            self._is_unread = console.is_unread(sys.stdout)
            self._warn_of_missing(watcher)
            self._line.show(watcher)

    def _warn_of_missing(self, watcher: Watcher) -> None:
        for sentence in watcher.missing:
            if sentence not in self._warned:
                self._warned.add(sentence)
                with self._line.hidden():
                    console.warn(sentence)


def _prepare(folder: Path) -> None:
    """Create the folder of reports.

    Raises:
        FileAccessError: it cannot be written to.
    """
    reason = "permission denied"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "it is a file" if is_file else (error.strerror or "not writable").lower()
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return
    refused = FileAccessError(str(folder), reason)
    refused.remedy = "pass a folder that can be written to"
    raise refused


def _warn_of_end(name: str, status: int, watcher: Watcher) -> None:
    """Print how the process ended, and how to get the stacks of a crash."""
    from machtrace.model.cause import linux_cause

    console.warn_of_end(name, status, reports_success=True)
    if watcher.options.crash or watcher.wait_status is None:
        return
    if (
        os.WIFSIGNALED(watcher.wait_status)
        and linux_cause(os.WTERMSIG(watcher.wait_status)).is_fatal
    ):
        console.warn(f"no stacks of the crash were captured; watch with {_REMEDY}")


def _warn_of_kill(watcher: Watcher) -> None:
    if watcher.killed_for_memory:
        console.warn("the kernel killed a process of its control group for want of memory")


def _status(watcher: Watcher) -> int:
    return int(any(_counts(incident) for incident in watcher.incidents))


def _is_complete(incident: WatchIncident, *, is_new: bool) -> bool:
    """Whether an incident that lasts has all that its report will have but its end."""
    if incident.kind is IncidentKind.DEADLOCK:
        return True  # it lasts for good
    # Those of processor time and memory are shown again with all of their samples.
    return incident.kind in (IncidentKind.CPU, IncidentKind.MEMORY) and not is_new


def _counts(incident: WatchIncident) -> bool:
    return incident.verdict is None or incident.verdict.is_hang


def _summary(watcher: Watcher) -> str:
    cost, incidents = watcher.cost, watcher.incidents
    others = sum(not _counts(incident) for incident in incidents)
    more = f", {others} more that were not the program's doing" if others else ""
    return (
        f"{counted(len(incidents) - others, 'incident')}{more}; {counted(cost.polls, 'poll')}, "
        f"{cost.late_polls:,} late; {counted(cost.stops, 'stop')}, the longest "
        f"{cost.stopped_ns / 1e6:.2f} ms; {cost.cpu_ns / 1e9:.2f} s of processor time"
    )
