"""Deadlocks of known programs, and contended locks that are none."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from machtrace.targets.linux.locks import LinuxLocks
from machtrace.watching.deadlocks import DeadlockDetector
from machtrace.watching.lock_waits import LockSurveyor
from tests.support.hangs.programs import ROOT
from tests.support.hangs.sections import Section, machine, share

PROGRAMS = ROOT / "tests" / "live" / "programs"
_RINGS = (
    *((kind, count) for kind in ("mutex", "recursive", "rwlock", "join") for count in range(2, 9)),
    *((kind, count) for kind in ("errorcheck", "robust", "stream") for count in (2, 3)),
    *(("inherit", count) for count in (2, 4, 6)),
    *(("mixed", count) for count in (3, 6)),
    *(("self", 1), ("flock", 2), ("record", 2), ("wait", 2)),
)
_PYTHON_RINGS = (*(("rlock", count) for count in range(2, 9)), ("gil", 2))
_OWNERLESS = ("semaphore", "condition")
_POLL = 0.02
_PATIENCE = 10.0
_COUNTERS = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


@dataclass
class Deadlocks:
    """The results."""

    cycles: Counter[str] = field(default_factory=Counter)
    """Deadlocks, by kind."""
    proven: Counter[str] = field(default_factory=Counter)
    """Those whose threads were all named."""
    polls: list[int] = field(default_factory=list)
    """The polls that it took."""
    contended: int = 0
    """Polls of contended locks."""
    false: int = 0
    ownerless: int = 0
    """Waits for something that keeps no owner."""
    stated: int = 0
    """Those whose owner was stated to be unknown."""
    longest_ns: int = 0
    """The longest poll."""


@contextmanager
def _started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _watched(pid: int) -> Iterator[tuple[LockSurveyor, DeadlockDetector]]:
    source = LinuxLocks()
    try:
        yield LockSurveyor(pid, source), DeadlockDetector()
    finally:
        source.close()


def _wait_blocked(pid: int) -> None:
    """Wait until no thread has run for two polls."""
    last: object = None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        now = [
            tuple(
                row
                for row in (task / "status").read_text().splitlines()
                if row.startswith(_COUNTERS)
            )
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
        if now == last and all("S (" in rows[0] for rows in now):
            return
        last = now
        time.sleep(0.03)


def measure(folder: Path, repeats: int, contended: int, report: Callable[[str], None]) -> Deadlocks:
    """Measure rings of all kinds, contended locks and waits without an owner.

    Args:
        folder: of the compiled program and its files.
        repeats: of each ring.
        contended: polls of contended locks.
        report: called with lines of progress.
    """
    results = Deadlocks()
    locks = folder / "locks"
    subprocess.run(["gcc", "-O1", "-g", "-pthread", PROGRAMS / "locks.c", "-o", locks], check=True)
    python = (sys.executable, PROGRAMS / "python_locks.py")
    for number in range(repeats):
        for kind, count in _RINGS:
            files = (folder / f"locks-{number}-a", folder / f"locks-{number}-b")
            with _started(locks, kind, str(count), *files) as process:
                _ring(results, f"c {kind}", process.pid, count)
        for kind, count in _PYTHON_RINGS:
            with _started(*python, kind, str(count)) as process:
                _ring(results, f"python {kind}", process.pid, count)
        for kind in _OWNERLESS:
            with _started(locks, kind) as process:
                _ownerless(results, process.pid)
        with _started(*python, "lock") as process:
            _ownerless(results, process.pid)
        report(f"repeat {number}: {results.proven.total()} of {results.cycles.total()} proven")
    while results.contended < contended:
        _contend(results, locks)
    report(f"{results.false} false in {results.contended} polls of contended locks")
    return results


def _ring(results: Deadlocks, kind: str, pid: int, count: int) -> None:
    results.cycles[kind] += 1
    if kind != "python gil":  # its threads run now and then
        _wait_blocked(pid)
    with _watched(pid) as (surveyor, detector):
        deadline = time.monotonic() + _PATIENCE
        polls = 0
        while time.monotonic() < deadline:
            polls += 1
            began = time.monotonic_ns()
            cycles = detector.cycles(surveyor.survey())
            results.longest_ns = max(results.longest_ns, time.monotonic_ns() - began)
            if cycles:
                results.proven[kind] += len(cycles) == 1 and len(cycles[0].threads) == count
                results.polls.append(polls)
                return
            time.sleep(_POLL)


def _ownerless(results: Deadlocks, pid: int) -> None:
    _wait_blocked(pid)
    with _watched(pid) as (surveyor, detector):
        for _ in range(2):
            results.false += len(detector.cycles(surveyor.survey()))
        for wait in surveyor.waits().values():
            results.ownerless += 1
            owner = wait.waits_for.owner
            results.stated += owner is not None and not owner.recorded


def _contend(results: Deadlocks, locks: Path) -> None:
    with _started(locks, "ordered", "6") as process, _watched(process.pid) as (surveyor, detector):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        tasks = Path(f"/proc/{process.pid}/task")
        deadline = time.monotonic() + 1
        while len(list(tasks.iterdir())) == 1 and time.monotonic() < deadline:
            pass
        while len(list(tasks.iterdir())) > 1:
            results.contended += 1
            results.false += len(detector.cycles(surveyor.survey()))


def deadlock_section(command: str, results: Deadlocks) -> Section:
    """Return the results as a section."""
    lines = [
        f"By the library, at polls {_POLL * 1000:.0f} ms apart, of `tests/live/programs/locks.c` and"
        f" `python_locks.py`. {machine()}",
        "",
        "| ring | deadlocks | proven by owner |",
        "|---|--:|--:|",
        *(
            f"| {kind} | {count} | {results.proven[kind]} |"
            for kind, count in sorted(results.cycles.items())
        ),
        f"| **all** | {results.cycles.total()} | {results.proven.total()} |",
        "",
        f"- polls until proven: {_counted(results.polls)}; the longest poll took"
        f" {results.longest_ns / 1e6:.1f} ms",
        f"- {results.contended} polls of six threads that contend for two mutexes and a rwlock, and of"
        f" waits without an owner: {results.false} false cycles",
        f"- waits for semaphores, conditions and `threading.Lock`: {results.stated} of"
        f" {results.ownerless} state that the owner is not recorded",
    ]
    figures = {
        "10": f"{share(results.proven.total(), results.cycles.total())} proven by owner, after at most"
        f" {max(results.polls, default=0)} polls; {results.false} false in {results.contended:,};"
        f" owner not recorded: {results.stated} of {results.ownerless}"
    }
    return Section("deadlocks", "Deadlocks", command, figures, lines)


def _counted(polls: Sequence[int]) -> str:
    return ", ".join(f"{number} in {count}" for number, count in sorted(Counter(polls).items()))
