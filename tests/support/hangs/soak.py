"""A soak: a watcher for long, and watchers that are killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.hangs.incidents import incidents_of
from tests.support.hangs.kills import kill_one
from tests.support.hangs.programs import ROOT, Program, Watcher
from tests.support.hangs.runner import conduct
from tests.support.hangs.scenarios import create_scenario
from tests.support.hangs.sections import Figure, Section
from tests.support.hangs.truth import events_of

_SETTLED = 0.25
"""The share of a soak after which growth counts."""
_GROWTH = 1 << 20
"""Bytes that the watcher may grow by after that."""


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


@dataclass
class Soak:
    """The course of a soak."""

    watcher: list[Size] = field(default_factory=list)
    """The watcher after each round."""
    program: list[Size] = field(default_factory=list)
    """The program that it watches."""
    own: list[Size] = field(default_factory=list)
    """A program that watches itself."""
    hangs: int = 0
    seen: int = 0
    """Incidents of the watcher that have ended."""
    kills: Counter[str] = field(default_factory=Counter)


def soak(folder: Path, minutes: float, seed: str, report: Callable[[str], None]) -> Soak:
    """Watch programs that hang again and again, one round at least.

    A watcher and a program that watches itself run all the time; in each round a watcher of a third
    program is killed.
    """
    course, random = Soak(), Random(seed)
    end = time.monotonic() + minutes * 60
    with ExitStack() as stack:
        program = stack.enter_context(Program("python", "asyncio", folder))
        own = stack.enter_context(
            Program("python", "asyncio", folder, watches_self=folder / "soak-record")
        )
        victim = stack.enter_context(Program("c", "epoll", folder))
        for each in (program, own, victim):
            each.wait_until_ready()
        watcher = stack.enter_context(Watcher(program.pid))
        watcher.wait_until_watching()
        while not course.watcher or time.monotonic() < end:
            number = len(course.watcher)
            scenario = create_scenario(
                "python", "asyncio", f"{seed}/{number}", hangs=10, quiet=20, disturbances=("@stop",)
            )
            lines, printed = len(program.lines), len(watcher.lines)
            acts = conduct(program, watcher, scenario, folder)
            conduct(own, None, scenario, folder)
            course.kills.update(kill_one(victim, random))
            events = events_of(scenario, program.lines[lines:], acts)
            course.hangs += sum(event.kind.value == "hang" for event in events)
            course.seen += sum(
                incident.reports_hang and incident.ended is not None
                for incident in incidents_of(watcher.lines[printed:])
            )
            course.watcher.append(size_of(watcher.process.pid))
            course.program.append(size_of(program.pid))
            course.own.append(size_of(own.pid))
            report(f"round {number}: watcher {course.watcher[-1]}, self {course.own[-1]}")
        os.kill(watcher.process.pid, signal.SIGINT)
        watcher.finish()
    return course


def soak_section(command: str, minutes: float, course: Soak) -> Section:
    """Return the growth of watcher and programs after a quarter of the time."""
    lines = [
        (
            f"{minutes:g} minutes, {len(course.watcher)} rounds, {course.hangs} hangs,"
            f" {course.seen}"
            f" incidents; {course.kills['watchers']} watchers of another program killed with"
            " SIGKILL at"
            f" random times: {course.kills['stopped']} left a thread stopped,"
            f" {course.kills['stuck']} a"
            " program that did not continue."
        ),
        "",
        "| process | | first round | after a quarter | at the end | largest |",
        "|---|---|--:|--:|--:|--:|",
    ]
    rows = {
        "watcher": course.watcher,
        "watched program": course.program,
        "program that watches itself": course.own,
    }
    for name, sizes in rows.items():
        lines += [
            _row(name, "MiB", [size.resident / (1 << 20) for size in sizes]),
            _row(name, "descriptors", [size.descriptors for size in sizes]),
            _row(name, "threads", [size.threads for size in sizes]),
        ]
    grown = [_growth(sizes) for sizes in (course.watcher, course.own)]
    texts = [
        f"{title} {memory / 1024:+.0f} KiB, {files:+d} descriptors, {threads:+d} threads"
        for title, (memory, files, threads) in zip(("watcher", "self"), grown, strict=True)
    ]
    bad = course.kills["stopped"] + course.kills["stuck"]
    text = (
        f"{minutes:g} minutes: {'; '.join(texts)} after the first quarter; {bad} of"
        f" {course.kills['watchers']} killed watchers left a thread stopped"
    )
    is_reached = not bad and all(
        memory <= _GROWTH and files <= 0 and threads <= 0 for memory, files, threads in grown
    )
    return Section("soak", "Soak", command, {"8": Figure(text, is_reached)}, lines)


def _growth(sizes: Sequence[Size]) -> tuple[int, int, int]:
    settled, last = sizes[int(len(sizes) * _SETTLED)], sizes[-1]
    return (
        last.resident - settled.resident,
        last.descriptors - settled.descriptors,
        last.threads - settled.threads,
    )


def _row(name: str, title: str, values: Sequence[float]) -> str:
    shown = (values[0], values[int(len(values) * _SETTLED)], values[-1], max(values))
    cells = " | ".join(f"{value:.1f}".removesuffix(".0") for value in shown)
    return f"| {name} | {title} | {cells} |"


def cycles_section(command: str, folder: Path, count: int, burners: int) -> Section:
    """Arm and disarm the watchdog of a process under load; see ``watchdog_torture.py``."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.live.watchdog_torture"),
            *("--cycles", str(count), "--burners", str(burners)),
            *("--record", str(folder / "cycles-record")),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    counts = json.loads(process.stdout.splitlines()[-1]) if process.stdout else {}
    done = counts.get("cycles", 0)
    shown = ", ".join(f"{name} {number}" for name, number in counts.items() if name != "load")
    lines = [
        (
            f"{burners} burning threads, threads that come and go, dlopen, fork, and the"
            " interpreter"
            " lock"
            f" held in C, in one process: {shown or 'nothing was counted'}."
        ),
        "",
        (
            "Meanwhile:"
            f" {', '.join(f'{name} {number}' for name, number in counts.get('load', {}).items())}."
        ),
    ]
    text = (
        f"{done:,} of {count:,} cycles of arm, capture and disarm, exit status"
        f" {process.returncode},"
        f" {counts.get('wrong', 0)} wrong records"
    )
    is_reached = done >= 10_000 and process.returncode == 0
    return Section("cycles", "Watchdogs", command, {"8": Figure(text, is_reached)}, lines)
