"""Runs of scenarios, with a watcher beside them or without."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hangs.disturbances import disturb
from tests.support.hangs.incidents import Incident, Line, incidents_of
from tests.support.hangs.programs import WATCH_FLAGS, Program, Watcher
from tests.support.hangs.scenarios import BY_RUNNER, Scenario
from tests.support.hangs.truth import Class, Event, boot_ns, events_of

_TASK_MS = 50
"""A short task that is disturbed."""
_EXTRA_STEPS = 100_000
"""The numbers of commands that are part of a disturbance."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    scenario: Scenario
    events: Sequence[Event]
    incidents: Sequence[Incident] = ()
    status: int | None = None
    """The watcher's exit status."""
    errors: str = ""
    """The end of the watcher's standard error."""
    watcher_cpu_ns: int = 0
    seconds: float = 0
    cost: dict[str, float] = field(default_factory=dict)


def conduct(
    program: Program, watcher: Watcher | None, scenario: Scenario, folder: Path
) -> list[Event]:
    """Do all steps of a scenario; return the runner's own acts."""
    acts = []
    for step in scenario.steps:
        if step.action.startswith(BY_RUNNER):
            # Every second one comes while a task runs.
            if step.id % 2:
                program.send(f"{_EXTRA_STEPS + step.id} burn {_TASK_MS} 1\n")
                time.sleep(0.01)
            act = disturb(program, watcher, step, folder)
            if act is not None:
                acts.append(act)
            if step.id % 2:
                program.wait_for(_EXTRA_STEPS + step.id)
        else:
            program.send(step.line)
            program.wait_for(step.id, step.count)
        time.sleep(step.gap_ms / 1000)
    return acts


def run_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    flags: Sequence[str] = WATCH_FLAGS,
    reports: Path | None = None,
) -> Run:
    """Run a scenario with a watcher beside it, which may write reports to a folder."""
    began = time.monotonic()
    with Program(scenario.program, scenario.mode, folder) as program:
        program.wait_until_ready()
        with Watcher(program.pid, flags=flags, reports=reports) as watcher:
            watcher.wait_until_watching()
            before = watcher.cpu_ns()
            acts = conduct(program, watcher, scenario, folder)
            used = watcher.cpu_ns() - before if watcher.process.poll() is None else 0
            program.stop()
    events = events_of(scenario, program.lines, acts)
    return Run(
        scenario,
        events,
        incidents_of(watcher.lines),
        watcher.status,
        watcher.errors.decode(errors="replace"),
        used,
        time.monotonic() - began,
    )


def run_own(scenario: Scenario, folder: Path) -> Run:
    """Run a scenario in a Python program that watches itself."""
    record = folder / f"record-{scenario.mode}-{time.monotonic_ns()}"
    with Program(scenario.program, scenario.mode, folder, watches_self=record) as program:
        program.wait_until_ready()
        time.sleep(0.4)
        acts = conduct(program, None, scenario, folder)
        time.sleep(1)  # for the last incident
        program.stop()
    record.unlink(missing_ok=True)
    lines = [
        Line(int(line["arrived"]), line["incident"]) for line in program.lines if "incident" in line
    ]
    return Run(scenario, events_of(scenario, program.lines, acts), incidents_of(lines))


def run_until_reported(scenario: Scenario, folder: Path) -> Run:
    """Run a scenario whose hangs last until the watcher has printed a line about them.

    Raises:
        LabError: a hang was not reported for a minute.
    """
    with Program(scenario.program, scenario.mode, folder) as program:
        program.wait_until_ready()
        with Watcher(program.pid) as watcher:
            watcher.wait_until_watching()
            for step in scenario.steps:
                count = len(watcher.lines)
                program.send(step.line)
                if step.is_hang:
                    watcher.wait_for(lambda lines, count=count: _is_reported(lines[count:]))
                    program.release()
                program.wait_for(step.id, step.count)
                time.sleep(step.gap_ms / 1000)
            program.stop()
    return Run(
        scenario,
        events_of(scenario, program.lines, ()),
        incidents_of(watcher.lines),
        watcher.status,
        watcher.errors.decode(errors="replace"),
    )


def _is_reported(lines: Sequence[Line]) -> bool:
    return any(incident.reports_hang for incident in incidents_of(lines))


def run_launch(
    program: str, mode: str, folder: Path, seed: str, flags: Sequence[str], ms: int = 2500
) -> Run:
    """Watch a program while it launches: a long time without its loop, and no hang."""
    scenario = Scenario(program, mode, seed, ())
    with (
        Program(program, mode, folder, launch_ms=ms) as running,
        Watcher(running.pid, flags=flags) as watcher,
    ):
        running.wait_until_ready()
        time.sleep(0.3)
        running.stop()
    times = {
        key: int(line[key]) for line in running.lines for key in ("started", "ready") if key in line
    }
    launch = Event(0, "launch", times["started"], times["ready"], kind=Class.QUIET)
    return Run(
        scenario,
        [launch],
        incidents_of(watcher.lines),
        watcher.status,
        watcher.errors.decode(errors="replace"),
    )


_START_S = 6
"""Time in which a watcher reads the names of its program, once."""


def run_idle(program: str, mode: str, folder: Path, seconds: float) -> Run:
    """Watch an idle program: the cost of watching, and proof that nothing stopped it."""
    scenario = Scenario(program, mode, "idle", ())
    with Program(program, mode, folder) as running:
        running.wait_until_ready()
        with Watcher(running.pid) as watcher:
            watcher.wait_until_watching()
            time.sleep(_START_S)
            switches, cpu, began = _switches(running.pid), watcher.cpu_ns(), boot_ns()
            time.sleep(seconds)
            used, ended = watcher.cpu_ns() - cpu, boot_ns()
            stops = _switches(running.pid) - switches
            running.stop()
    event = Event(0, "idle", began, ended, kind=Class.QUIET)
    return Run(
        scenario,
        [event],
        incidents_of(watcher.lines),
        watcher.status,
        watcher.errors.decode(errors="replace"),
        used,
        seconds,
        {"switches": stops, "share": used / (ended - began), "start": cpu / 1e9},
    )


def _switches(pid: int) -> int:
    """Return the context switches of the main thread so far."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def run_alone(scenario: Scenario, folder: Path) -> list[Event]:
    """Run a scenario with nothing beside it; return its events."""
    with Program(scenario.program, scenario.mode, folder) as program:
        program.wait_until_ready()
        acts = conduct(program, None, scenario, folder)
        program.stop()
    return events_of(scenario, program.lines, acts)
