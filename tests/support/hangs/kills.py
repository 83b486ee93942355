"""Watchers and programs that are killed: nothing stopped or unreadable is left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from machtrace import read_report
from machtrace.errors import MachtraceError
from machtrace.watching.own.record import read_record
from tests.support.hangs.incidents import incidents_of
from tests.support.hangs.programs import LabError, Program, Watcher
from tests.support.hangs.sections import Figure, Section, share

_HANG_MS = 400
_AT_ONCE = 4
"""Nothing here depends on the load."""
_PATIENCE = 10.0
"""Seconds after which a stopped thread counts as left so."""
_MAIN = ("burn", "leaves", "sleep", "read")


def kill_one(program: Program, random: Random) -> Counter[str]:
    """Watch a program, and kill the watcher at a random time of a hang that it captures."""
    name = random.choice((*_MAIN, "child"))
    step = random.getrandbits(30) * 2
    with Watcher(program.pid) as watcher:
        watcher.wait_until_watching()
        program.send(f"{step} {name} {_HANG_MS} 1\n")
        # From before the first stack until after the last one.
        time.sleep(random.uniform(0.04, 0.3))
        watcher.process.kill()
        watcher.process.wait()
    outcome = Counter(watchers=1, stopped=_stays_stopped(program.pid), stuck=0)
    try:
        program.wait_for(step)
        program.send(f"{step + 1} nothing 1 1\n")
        program.wait_for(step + 1)
    except LabError:
        outcome["stuck"] += 1
    return outcome


def _stays_stopped(pid: int) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while any(state in "tT" for state in _thread_states(pid)):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return False


def kill_watcher(folder: Path, random: Random) -> Counter[str]:
    """Kill a watcher of a new program."""
    with Program("c", "epoll", folder) as program:
        program.wait_until_ready()
        return kill_one(program, random)


def kill_program(folder: Path, random: Random) -> Counter[str]:
    """Kill a program with SIGKILL in a hang, and read what its watcher wrote."""
    name = random.choice((*_MAIN, "mutex"))
    reports = folder / f"reports-{random.getrandbits(48):x}"
    with Program("c", "epoll", folder) as program:
        program.wait_until_ready()
        with Watcher(program.pid, reports=reports) as watcher:
            watcher.wait_until_watching()
            program.send(f"1 {name} 3000 1\n")
            watcher.wait_for(bool)
            time.sleep(random.uniform(0.0, 0.3))
            program.kill()
            watcher.finish()
    incidents = [each for each in incidents_of(watcher.lines) if each.reports_hang]
    return Counter(
        programs=1,
        reported=any(incident.ended is not None for incident in incidents),
        readable=any(_is_readable(incident.values.get("report")) for incident in incidents),
    )


def kill_own(folder: Path, random: Random) -> Counter[str]:
    """Kill a program that watches itself in a hang, and read its mapped record."""
    name, culprit = random.choice(
        (
            ("sleep", "sleep_in_callback"),
            ("burn", "burn_in_one"),
            ("gil-burn", "call_keep_gil"),
            ("gil-sleep", "call_sleep_with_gil"),
        )
    )
    record = folder / f"record-{random.getrandbits(48):x}"
    with Program("python", "asyncio", folder, watches_self=record) as program:
        program.wait_until_ready()
        time.sleep(0.2)
        program.send(f"1 {name} 30000 1\n")
        time.sleep(random.uniform(0.4, 0.8))
        program.kill()
    try:
        incidents = read_record(record)
    except MachtraceError:
        incidents = ()
    functions = {
        incident.culprit.function for incident in incidents if incident.culprit is not None
    }
    return Counter(own=1, own_readable=bool(incidents), own_named=culprit in functions)


def _is_readable(path: object) -> bool:
    try:
        return path is not None and bool(read_report(Path(str(path))))
    except (MachtraceError, OSError):
        return False


def _thread_states(pid: int) -> Iterator[str]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield (task / "stat").read_text().rpartition(")")[2].split()[0]


def kills_section(
    command: str, folder: Path, count: int, seed: str, report: Callable[[str], None]
) -> Section:
    """Kill watchers and programs, and return the outcome."""
    total: Counter[str] = Counter()
    for act in (kill_watcher, kill_program, kill_own):
        randoms = [Random(f"{seed}/{act.__name__}/{number}") for number in range(count)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for outcome in pool.map(lambda random, act=act: act(folder, random), randoms):
                total.update(outcome)
        report(", ".join(f"{name} {number}" for name, number in total.items()))
    lines = [
        (
            f"- {total['watchers']} watchers killed with SIGKILL between 40 and 300 ms after the"
            " beginning"
            f" of a hang: {total['stopped']} programs had a stopped thread, {total['stuck']} did"
            " not"
            " continue."
        ),
        (
            f"- {total['programs']} programs killed with SIGKILL in a hang that had been seen:"
            f" {total['reported']} incidents were printed with their end, {total['readable']}"
            " reports can"
            " be read."
        ),
        (
            f"- {total['own']} programs that watch themselves killed 0.4 to 0.8 s after the"
            " beginning of a"
            f" hang, half of them with the interpreter lock held in C: {total['own_readable']}"
            " records"
            f" have the incident, {total['own_named']} with the culprit."
        ),
    ]
    text = (
        f"SIGKILL in a hang: self: {share(total['own_readable'], total['own'])} records"
        " readable; from"
        f" outside: {share(total['readable'], total['programs'])} reports; {total['stopped']} of"
        f" {total['watchers']} killed watchers left a thread stopped"
    )
    is_reached = (
        total["own_readable"] == total["own"] >= 100
        and total["readable"] == total["programs"]
        and not total["stopped"] + total["stuck"]
    )
    return Section("kills", "Kills", command, {"8": Figure(text, is_reached)}, lines)
