"""``machtrace watch``: what goes wrong in a process, with stacks of that time."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from machtrace.cli import console
from machtrace.cli.application import ProgramCommand
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
from machtrace.errors import MachtraceError
from machtrace.model.incident import Verdict, WatchIncident
from machtrace.model.text import counted

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.watching.watcher import Watcher

CANNOT_WATCH = 2
"""The exit status if the process could not be watched."""

DEFAULT_HANG_S = 0.25
_FOREVER_S = float(1 << 32)
_REDRAW_NS = 500_000_000
_SHOWN = 3
"""Threads in the live line."""


class WatchFormat(StrEnum):
    """Output formats of incidents."""

    TEXT = "text"
    JSONL = "jsonl"


@click.command(cls=ProgramCommand)
@target_argument(of_running=True, metavar="SPEC | -- PROGRAM [ARGS]...")
@click.option(
    "--hang",
    type=parse_duration,
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
    help="Trace the process, and report the signal that ends it with all stacks. No debugger can "
    "attach meanwhile.",
)
@watched_thread_option
@click.option(
    "--for",
    "duration",
    type=parse_duration,
    default="inf",
    metavar="TIME",
    help="How long to watch: 60s, 10m or 8h. Default: until Ctrl-C, or the process exits.",
)
@click.option("--until-incident", is_flag=True, help="Stop watching when an incident has ended.")
@click.option(
    "--poll",
    type=parse_duration,
    default="20ms",
    show_default=True,
    metavar="TIME",
    help="The time between two polls of the process.",
)
@click.option(
    "--launch-grace",
    "grace",
    type=parse_duration,
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

    --hang, --cpu, --memory, --deadlocks and --crash are conditions; with some of them only these
    are on. With none all are: --hang 250ms, --cpu 80%/60s,50%/180s,90%/5s,
    --memory 90%,+100MiB/1s,limit/5m, --deadlocks and, if the process can be traced, --crash.

    Nothing is stopped while nothing is wrong. A thread that waits is copied without a stop, one
    that runs is suspended only while it is copied. Watching ends on Ctrl-C or SIGTERM, after
    --for, or when the process exits; PROGRAM continues after --for.

    The exit status is 0 if nothing happened, 1 if there were incidents, and 2 if the process could
    not be watched as requested.
    """
    gc.enable()  # this command may run for days
    try:
        return _watch(
            spec,
            form,
            folder,
            duration=duration,
            until_incident=until_incident,
            settings={
                **_conditions(hang, cpu, memory, deadlocks, crash),
                "poll_ns": round(min(poll, _FOREVER_S) * 1e9),
                "launch_grace_ns": round(min(grace, _FOREVER_S) * 1e9),
                "threads": thread,
                "search": search,
                "lines": lines,
            },
        )
    except MachtraceError as error:
        console.print_error(error)
        return CANNOT_WATCH


def _conditions(
    hang: float | None,
    cpu: tuple[str, ...],
    memory: tuple[str, ...],
    deadlocks: bool | None,  # noqa: FBT001 - as the options are
    crash: bool | None,  # noqa: FBT001
) -> dict[str, Any]:
    """Return the conditions that are given, or all of them."""
    from machtrace.watching.thresholds import DEFAULT_CPU, DEFAULT_MEMORY, parse_cpu, parse_memory

    if hang is None and not (cpu or memory or deadlocks or crash):
        hang, cpu, memory = DEFAULT_HANG_S, (DEFAULT_CPU,), (DEFAULT_MEMORY,)
        deadlocks = deadlocks is not False
    else:
        crash = bool(crash)
    return {
        "hang_ns": None if hang is None else round(min(hang, _FOREVER_S) * 1e9),
        "cpu": parse_cpu(",".join(cpu), processors=os.cpu_count() or 1) if cpu else (),
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
    from machtrace.model.incident_text import ended_lines, incident_lines
    from machtrace.model.text import COLOUR, PLAIN
    from machtrace.targets.child_process import StartedProgram, exit_status
    from machtrace.watching.api import watched_pid
    from machtrace.watching.jsonl import incident_line
    from machtrace.watching.reports import write_incident
    from machtrace.watching.thresholds import WatchOptions
    from machtrace.watching.watcher import Watcher

    if not isinstance(spec, str) and settings["crash"] is None:
        settings["crash"] = True
    options = WatchOptions(**settings)
    duration_ns = round(min(duration, _FOREVER_S) * 1e9)
    line = LiveLine(sys.stderr)
    style = COLOUR if console.wants_colour(sys.stdout) else PLAIN
    incidents: list[WatchIncident] = []

    seen: dict[str, Verdict | None] = {}

    def show(incident: WatchIncident) -> None:
        path = None if folder is None else write_incident(incident, folder)
        if incident.ended is not None or incident.id in seen:
            incidents.append(incident)
        if incident.ended is None and seen.get(incident.id, ...) is incident.verdict:
            return  # its samples are complete; the report has them
        lines_of = (
            ended_lines if incident.ended is not None and incident.id in seen else incident_lines
        )
        seen[incident.id] = incident.verdict
        if form is WatchFormat.JSONL:
            text = incident_line(incident, path)
        else:
            text = "\n".join([*lines_of(incident, style, path), "", ""]).lstrip("\n")
        with line.hidden():
            sys.stdout.write(text)
            sys.stdout.flush()

    ended: list[int | None] = []

    def watched(
        pid: int,
        ends: AbstractContextManager[Callable[[], bool]],
        on_start: Callable[[], None] = lambda: None,
    ) -> int:
        with ends as should_stop, Watcher(pid, options, show) as watcher:
            watcher.begin()
            on_start()
            watcher.run(
                duration_ns,
                should_stop=lambda: (
                    watcher.has_failed or should_stop() or (until_incident and bool(incidents))
                ),
                on_tick=lambda: line.show(watcher),
            )
        ended.append(watcher.wait_status)
        line.clear()
        for sentence in watcher.missing:
            console.warn(sentence)
        console.warn(_summary(watcher))
        return int(any(_counts(incident) for incident in watcher.incidents))

    if isinstance(spec, str):
        pid = watched_pid(spec)
        status = watched(pid, ended_by_signal())
        if ended[-1] is not None:
            console.warn_of_end(f"process {pid}", exit_status(ended[-1]), reports_success=True)
        return status

    with StartedProgram(spec) as program, program.passing_signals() as arrived:
        is_over = nullcontext(lambda: len(arrived) > 1)
        status = watched(program.pid, is_over, program.run)
        console.warn_of_end(spec[0], program.wait(), reports_success=True)
    return status


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


class LiveLine:
    """One line on a terminal with what the watched threads do; nothing elsewhere.

    Args:
        stream: standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = stream.isatty() and not console.is_quiet()
        self._text = ""
        self._drawn_ns = 0
        self._lock = threading.Lock()

    def show(self, watcher: Watcher) -> None:
        """Draw the line, at most twice a second."""
        now = time.monotonic_ns()
        if not self._is_shown or now - self._drawn_ns < _REDRAW_NS:
            return
        self._drawn_ns = now
        states = [f"{thread}: {state or '?'}" for thread, state in watcher.states.items()]
        more = f" and {len(states) - _SHOWN} more" if len(states) > _SHOWN else ""
        text = f"{'  '.join(states[:_SHOWN])}{more}  {counted(len(watcher.incidents), 'incident')}"
        with self._lock:
            if text != self._text:
                self._text = text
                self._draw(text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line until the end of the block, in which something else is printed."""
        with self._lock:
            if self._text:
                self._draw("")
            yield
            if self._text:
                self._draw(self._text)

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._text:
                self._draw("")
            self._text = ""

    def _draw(self, text: str) -> None:
        width = max(1, shutil.get_terminal_size().columns - 1)
        self._stream.write(f"\r\x1b[K{text[:width]}")
        self._stream.flush()
