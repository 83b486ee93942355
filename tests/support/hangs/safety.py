"""Watchers and programs that are killed, and a soak: nothing stopped, lost or growing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from machtrace import read_report
from machtrace.errors import MachtraceError
from tests.support.hangs.incidents import incidents_of
from tests.support.hangs.programs import WATCH_FLAGS, LabError, Program, Watcher
from tests.support.hangs.runner import conduct
from tests.support.hangs.scenarios import Scenario, create_scenario
from tests.support.hangs.sections import Section, machine, share
from tests.support.hangs.truth import events_of

_HANG_MS = 400
_SETTLED = 0.25
"""The share of a soak after which growth counts."""


@dataclass(frozen=True, slots=True)
class Kills:
    """The outcome of killed watchers and killed programs."""

    watchers: int = 0
    stopped: int = 0
    """Programs with a stopped or traced thread after their watcher was killed."""
    stuck: int = 0
    """Programs that did not finish their callback then."""
    programs: int = 0
    reported: int = 0
    """Programs killed in a hang whose incident was printed with an end."""
    readable: int = 0
    """Those whose report can be read."""


def kill_watchers(folder: Path, count: int, seed: str) -> Kills:
    """Kill watchers with SIGKILL at random times of a hang that they capture."""
    random = Random(f"{seed}/kills")
    stopped = stuck = 0
    for number in range(count):
        name = random.choice(("burn", "leaves", "sleep", "read", "child"))
        with Program("c", "epoll", folder) as program:
            program.wait_until_ready()
            with Watcher(program.pid) as watcher:
                watcher.wait_until_watching()
                program.send(f"1 {name} {_HANG_MS} 1\n")
                # From before the first stack until after the last one.
                time.sleep(random.uniform(0.04, 0.3))
                watcher.process.kill()
                watcher.process.wait()
            time.sleep(0.05)
            stopped += any(state in "tT" for state in _thread_states(program.pid))
            program.wait_for(1)
            program.send(f"2 nothing {number + 1} 1\n")
            try:
                program.wait_for(2)
            except LabError:
                stuck += 1
    return Kills(watchers=count, stopped=stopped, stuck=stuck)


def kill_programs(folder: Path, count: int, seed: str, reports: Path) -> Kills:
    """Kill programs with SIGKILL in a hang, and read what their watcher wrote."""
    random = Random(f"{seed}/programs")
    reported = readable = 0
    for number in range(count):
        name = random.choice(("burn", "leaves", "sleep", "read", "mutex"))
        written = reports / str(number)
        with Program("c", "epoll", folder) as program:
            program.wait_until_ready()
            with Watcher(program.pid, reports=written) as watcher:
                watcher.wait_until_watching()
                program.send(f"1 {name} 3000 1\n")
                watcher.wait_for(bool)
                time.sleep(random.uniform(0.0, 0.3))
                program.kill()
                watcher.finish()
        incidents = [each for each in incidents_of(watcher.lines) if each.reports_hang]
        reported += any(each.ended is not None for each in incidents)
        readable += any(_is_readable(each.values.get("report")) for each in incidents)
    return Kills(programs=count, reported=reported, readable=readable)


def _is_readable(path: object) -> bool:
    try:
        return path is not None and bool(read_report(Path(str(path))))
    except (MachtraceError, OSError):
        return False


def _thread_states(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield (task / "stat").read_text().rpartition(")")[2].split()[0]


def records_section(command: str, watchers: Kills, programs: Kills) -> Section:
    """Return the outcome of kills."""
    lines = [
        machine(),
        "",
        f"- {watchers.watchers} watchers killed with SIGKILL between 40 and 300 ms after the beginning"
        f" of a hang: {watchers.stopped} programs had a stopped thread, {watchers.stuck} did not"
        " continue.",
        f"- {programs.programs} programs killed with SIGKILL in a hang that had been seen:"
        f" {programs.reported} incidents were printed with their end, {programs.readable} reports can"
        " be read.",
    ]
    figures = {
        "8": f"from outside: {share(programs.readable, programs.programs)} readable after SIGKILL in a"
        f" hang; {watchers.stopped} of {watchers.watchers} killed watchers left a thread stopped"
    }
    return Section("records", "Kills", command, figures, lines)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a process at one time."""

    resident: int
    """Bytes."""
    descriptors: int
    threads: int


def size_of(pid: int) -> Size:
    """Return the size of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return Size(
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208
        len(os.listdir(f"/proc/{pid}/task")),  # noqa: PTH208
    )


def soak(
    folder: Path, minutes: float, seed: str, report: Callable[[str], None]
) -> tuple[list[Size], list[Size], int, int]:
    """Watch a program that hangs again and again.

    Returns:
        the sizes of the watcher and of the program, the number of hangs, and of those that were
        reported.
    """
    watcher_sizes, program_sizes = [], []
    hangs = seen = number = 0
    end = time.monotonic() + minutes * 60
    flags = WATCH_FLAGS
    with Program("python", "asyncio", folder) as program:
        program.wait_until_ready()
        with Watcher(program.pid, flags=flags) as watcher:
            watcher.wait_until_watching()
            while time.monotonic() < end:
                scenario = _soak_scenario(seed, number)
                lines, printed = len(program.lines), len(watcher.lines)
                acts = conduct(program, watcher, scenario, folder)
                time.sleep(0.5)
                events = events_of(scenario, program.lines[lines:], acts)
                hangs += sum(event.kind.value == "hang" for event in events)
                seen += sum(
                    incident.reports_hang
                    for incident in incidents_of(watcher.lines[printed:])
                    if incident.ended is not None
                )
                watcher_sizes.append(size_of(watcher.process.pid))
                program_sizes.append(size_of(program.pid))
                report(f"round {number}: watcher {watcher_sizes[-1]}, program {program_sizes[-1]}")
                number += 1
            os.kill(watcher.process.pid, signal.SIGINT)
            watcher.finish()
            program.stop()
    return watcher_sizes, program_sizes, hangs, seen


def _soak_scenario(seed: str, number: int) -> Scenario:
    return create_scenario(
        "python", "asyncio", f"{seed}/{number}", hangs=10, quiet=20, disturbances=("@stop",)
    )


def soak_section(
    command: str,
    minutes: float,
    watcher: Sequence[Size],
    program: Sequence[Size],
    hangs: int,
    seen: int,
) -> Section:
    """Return the growth of watcher and program after a quarter of the time."""
    lines = [
        f"{minutes:g} minutes, {len(watcher)} rounds, {hangs} hangs, {seen} incidents. {machine()}",
        "",
        "| process | | first round | after a quarter | at the end | largest |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, sizes in (("watcher", watcher), ("program", program)):
        settled = sizes[int(len(sizes) * _SETTLED)]
        for title, values in (
            ("MiB", [size.resident / (1 << 20) for size in (sizes[0], settled, sizes[-1])]),
            ("descriptors", [size.descriptors for size in (sizes[0], settled, sizes[-1])]),
            ("threads", [size.threads for size in (sizes[0], settled, sizes[-1])]),
        ):
            most = {
                "MiB": max(size.resident for size in sizes) / (1 << 20),
                "descriptors": max(size.descriptors for size in sizes),
                "threads": max(size.threads for size in sizes),
            }[title]
            row = " | ".join(f"{value:.1f}".removesuffix(".0") for value in (*values, most))
            lines.append(f"| {name} | {title} | {row} |")
    settled, last = watcher[int(len(watcher) * _SETTLED)], watcher[-1]
    figures = {
        "8": f"soak of {minutes:g} minutes: {(last.resident - settled.resident) / 1024:+.0f} KiB,"
        f" {last.descriptors - settled.descriptors:+d} descriptors,"
        f" {last.threads - settled.threads:+d} threads of the watcher after the first quarter"
    }
    return Section("soak", "Soak", command, figures, lines)
