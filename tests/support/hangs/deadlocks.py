"""Deadlocks of known programs, seen by the command; and contended locks that are none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machtrace.targets.linux.locks import LinuxLocks
from machtrace.watching.locks.deadlocks import DeadlockDetector
from machtrace.watching.locks.waits import LockSurveyor
from tests.support.hangs.programs import ROOT, Watcher
from tests.support.hangs.scenarios import THRESHOLD_MS
from tests.support.hangs.scoring import percentile
from tests.support.hangs.sections import Figure, Section, share, spread

PROGRAMS = ROOT / "tests" / "live" / "programs"
_RINGS = (
    *((kind, count) for kind in ("mutex", "recursive", "rwlock", "join") for count in range(2, 9)),
    *((kind, count) for kind in ("errorcheck", "robust", "stream") for count in (2, 3)),
    *(("inherit", count) for count in (2, 4, 6)),
    *(("mixed", count) for count in (3, 6)),
    *(("self", 1), ("flock", 2), ("record", 2), ("wait", 2)),
)
_PYTHON_RINGS = (*(("rlock", count) for count in range(2, 9)), ("gil", 2))
_OWNERLESS = (*(("c", kind) for kind in ("semaphore", "condition")), ("python", "lock"))
_FLAGS = ("--deadlocks", "--format", "jsonl")
_POLL_MS = 20
_LIMIT_MS = THRESHOLD_MS + 2 * _POLL_MS
_PATIENCE = 10.0
_AT_ONCE = 2
_COUNTERS = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


@dataclass(frozen=True, slots=True)
class Ring:
    """A deadlock, and what was reported of it."""

    kind: str
    threads: int
    is_proven: bool
    """Whether all threads were named, each with the next one as the recorded owner."""
    latency_ms: float
    """From the time at which the last thread waited until it was seen."""


@dataclass
class Deadlocks:
    """The results."""

    rings: list[Ring] = field(default_factory=list)
    contended: int = 0
    """Surveys of contended locks in which a thread waited."""
    false: int = 0
    ownerless: int = 0
    """Waits for something that keeps no owner."""
    stated: int = 0
    """Those whose owner was stated to be unknown."""


@contextmanager
def _started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LOCKS_GATE": "1"},
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


def measure(folder: Path, contended: int, report: Callable[[str], None]) -> Deadlocks:
    """Measure rings of all kinds, contended locks and waits without an owner.

    Args:
        folder: of the compiled program and its files.
        contended: surveys of contended locks.
        report: called with lines of progress.
    """
    results = Deadlocks()
    locks = folder / "locks"
    subprocess.run(["gcc", "-O1", "-g", "-pthread", PROGRAMS / "locks.c", "-o", locks], check=True)
    programs: dict[str, tuple[str | Path, ...]] = {
        "c": (locks,),
        "python": (sys.executable, PROGRAMS / "python_locks.py"),
    }
    rings = [("c", *ring) for ring in _RINGS] + [("python", *ring) for ring in _PYTHON_RINGS]

    def ring(program: str, kind: str, count: int) -> Ring:
        files = [folder / f"locks-{kind}-{end}" for end in "ab"] if program == "c" else []
        with _started(*programs[program], kind, str(count), *files) as process:
            return _ring(f"{program} {kind}", process, count)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in pool.map(lambda one: ring(*one), rings):
            results.rings.append(each)
    report(f"{sum(each.is_proven for each in results.rings)} of {len(rings)} rings proven")
    for program, kind in _OWNERLESS:
        with _started(*programs[program], kind) as process:
            _ownerless(results, process)
    while results.contended < contended:
        _contend(results, locks)
    report(f"{results.false} false in {results.contended} surveys of contended locks")
    return results


def _pass_gate(process: subprocess.Popen[str]) -> int:
    """Let the last thread wait; return when."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def _ring(kind: str, process: subprocess.Popen[str], count: int) -> Ring:
    with Watcher(process.pid, flags=_FLAGS) as watcher:
        watcher.wait_until_watching()
        closed = _pass_gate(process)
        deadline = time.monotonic() + _PATIENCE
        while not watcher.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    for line in watcher.lines:
        if line.values["kind"] == "deadlock":
            cycle = line.values["cycle"]
            is_proven = len(cycle) == count and _is_ring(cycle)
            return Ring(kind, count, is_proven, (line.values["seen_ns"] - closed) / 1e6)
    return Ring(kind, count, is_proven=False, latency_ms=float("nan"))


def _is_ring(cycle: Sequence[Mapping[str, Any]]) -> bool:
    following = [*cycle[1:], cycle[0]]
    owners = [(each["waits_for"] or {}).get("owner") or {} for each in cycle]
    return all(
        # A process that is waited for owns its end as a whole.
        owner.get("recorded") and owner.get("thread") in (None, each["id"])
        for owner, each in zip(owners, following, strict=True)
    )


def _ownerless(results: Deadlocks, process: subprocess.Popen[str]) -> None:
    if process.args[-1] == "lock":  # type: ignore[index]  # a list
        _pass_gate(process)
    _wait_blocked(process.pid)
    with _watched(process.pid) as (surveyor, detector):
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
            results.false += len(detector.cycles(surveyor.survey()))
            results.contended += bool(surveyor.waits())


def deadlock_section(
    command: str, results: Deadlocks, hangs: Mapping[str, Sequence[int]]
) -> Section:
    """Return the results as a section.

    Args:
        command: that measures it.
        results: of this section.
        hangs: the stated owners in the hangs of another section.
    """
    kinds = sorted({ring.kind for ring in results.rings})
    rings = {kind: [ring for ring in results.rings if ring.kind == kind] for kind in kinds}
    latency = [ring.latency_ms for ring in results.rings if ring.is_proven]
    lines = [
        "`machtrace watch PID --deadlocks` with `tests/live/programs/locks.c` and `python_locks.py`,"
        " whose last thread states when it begins to wait.",
        "",
        "| ring | threads | deadlocks | proven by owner | from closing until seen, ms (p50 / p99 /"
        " max) |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {kind} | {_counts(rows)} | {len(rows)} | {sum(ring.is_proven for ring in rows)}"
            f" | {spread(ring.latency_ms for ring in rows if ring.is_proven)} |"
            for kind, rows in rings.items()
        ),
        "",
        f"- {results.contended:,} surveys of six threads that contend for two mutexes and a rwlock, in"
        f" each of which one waited: {results.false} false cycles",
        f"- waits for semaphores, conditions and `threading.Lock`: {results.stated} of"
        f" {results.ownerless} state that the owner is not recorded",
    ]
    if hangs:
        lines.append(
            f"- the same in the hangs of the section `idle`: {_of(hangs['ownerless'])}; of waits for"
            f" something with an owner, {_of(hangs['owned'])} state it"
        )
    proven = sum(ring.is_proven for ring in results.rings)
    text = (
        f"{share(proven, len(results.rings))} proven by owner, seen after p50"
        f" {percentile(latency, 50):.0f} ms, at most {max(latency, default=0):.0f} ms (T + 2 polls ="
        f" {_LIMIT_MS} ms); {results.false} false in {results.contended:,}; owner not recorded:"
        f" {results.stated} of {results.ownerless}"
    )
    is_reached = (
        proven == len(results.rings)
        and max(latency, default=0) <= _LIMIT_MS
        and not results.false
        and results.contended >= 1000
        and results.stated == results.ownerless
    )
    return Section("deadlocks", "Deadlocks", command, {"10": Figure(text, is_reached)}, lines)


def _counts(rings: Sequence[Ring]) -> str:
    numbers = sorted(ring.threads for ring in rings)
    return f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _of(counts: Sequence[int]) -> str:
    return f"{counts[0]} of {counts[1]}"
