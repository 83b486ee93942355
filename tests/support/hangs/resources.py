"""Threads that use processor time or memory, with their own clocks as the truth."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.support.hangs.incidents import Incident, incidents_of
from tests.support.hangs.programs import LabError, Watcher
from tests.support.hangs.scoring import percentile
from tests.support.hangs.sections import Figure, Section, share, spread

_LONG, _SHORT, _QUICK = "80%/60s", "90%/5s", "50%/1s"
_LIMITS = {_LONG: 62.0, _SHORT: 6.0}
"""Seconds from the beginning in which a threshold is to be seen."""
_JUMP = "+100MiB/1s"
_JUMP_MS = 200
_JUMP_WITHIN_NS = 900_000_000
_POINTS = 2.0
_GROWTHS = ((150, 150, 0), (300, 30, 100), (120, 30, 50), (220, 110, 200))
"""MiB, MiB of a step, and milliseconds of a step."""
_AT_ONCE = 3
_NOISE = 20, 60
"""Thousandths of a processor that another thread uses: two programs leave little of two."""


@dataclass(frozen=True, slots=True)
class Case:
    """One use of a resource, and what was reported of it."""

    threshold: str
    truth: Mapping[str, Any]
    incident: Incident | None

    @property
    def has_right_thread(self) -> bool:
        """Whether the incident names the thread."""
        return self.incident is not None and self.incident.thread.get("id") == self.truth["thread"]

    @property
    def has_function(self) -> bool:
        """Whether the culprit is the function of the thread."""
        return self.incident is not None and self.incident.culprit == self.truth["what"]

    @property
    def latency_s(self) -> float:
        """From the beginning, or from the hundredth MiB, until it was seen; NaN if it was not."""
        if self.incident is None:
            return float("nan")
        return float(self.incident.seen - (self.truth["crossed"] or self.truth["began"])) / 1e9

    @property
    def used(self) -> float:
        """The share of a processor, in percent."""
        return 100 * float(self.truth["cpu"] / (self.truth["ended"] - self.truth["began"]))

    @property
    def is_valid(self) -> bool:
        """Whether the host gave the thread the time that it wanted."""
        if self.threshold == _JUMP:  # it may take longer than the window
            return bool(self.truth["crossed"] - self.truth["began"] < _JUMP_WITHIN_NS)
        return self.used > float(self.threshold.partition("%")[0])

    @property
    def error(self) -> float | None:
        """The reported share of the hot thread in the process's time less the true one, in points."""
        evidence = {} if self.incident is None else self.incident.evidence
        stated = evidence.get("hot_thread_share_percent")
        return None if stated is None else float(stated) - 100 * float(self.truth["share"])

    @property
    def level_error(self) -> float | None:
        """The reported processor time of the window less the true one, in points."""
        evidence = {} if self.incident is None else self.incident.evidence
        if "window_ns" not in evidence:
            return None
        part = min(1.0, 1e9 * self.latency_s / float(evidence["window_ns"]))
        used = self.used / float(self.truth["share"])
        return float(evidence["processor_percent"]) - used * part


@contextmanager
def _program(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Mapping[str, Any]]]]:
    lines: list[Mapping[str, Any]] = []
    with subprocess.Popen(
        [folder / "resources"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        output = process.stdout
        assert output is not None
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, output)))
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            reader.join()


def _run(
    folder: Path, flags: Sequence[str], orders: Sequence[str], seconds: float
) -> tuple[list[Mapping[str, Any]], list[Incident]]:
    """Watch a program; return the truth of its orders, and the incidents."""
    with _program(folder) as (process, lines):
        assert process.stdin is not None
        with Watcher(process.pid, flags=(*flags, "--format", "jsonl")) as watcher:
            watcher.wait_until_watching()
            time.sleep(0.3)
            for order in orders:
                process.stdin.write(f"{order}\n")
            deadline = time.monotonic() + seconds + 30
            while len(ended := [line for line in lines if "ended" in line]) < len(orders):
                if time.monotonic() > deadline:
                    raise LabError(f"{orders[0]} did not end")
                time.sleep(0.02)
            time.sleep(0.3 if watcher.lines else 1.3)
            process.kill()
        return ended, incidents_of(watcher.lines)


def measure_cpu(folder: Path, random: Random, threshold: str, ms: int) -> Case:
    """Burn in one thread, with a little noise in another one."""
    hot, noise = random.sample(range(4), 2)
    permille = {_LONG: 880, _SHORT: 970}.get(threshold) or random.randint(600, 850)
    orders = [f"burn {hot} {permille} {ms}", f"burn {noise} {random.randint(*_NOISE)} {ms}"]
    (first, second), incidents = _run(folder, ("--cpu", threshold), orders, ms / 1000)
    truth, other = (first, second) if first["cpu"] > second["cpu"] else (second, first)
    truth = {**truth, "share": truth["cpu"] / (truth["cpu"] + other["cpu"])}
    return Case(
        threshold, truth, next((incident for incident in incidents if incident.kind == "cpu"), None)
    )


def measure_memory(folder: Path, random: Random) -> Case:
    """Touch memory in one thread, with a little noise in another one."""
    hot, noise = random.sample(range(4), 2)
    size, step, ms = random.choice(_GROWTHS)
    orders = [f"grow {hot} {size} {step} {ms}", f"burn {noise} 200 1500"]
    ended, incidents = _run(folder, ("--memory", _JUMP), orders, 2)
    truth = next(line for line in ended if line["what"] == "grow")
    return Case(
        _JUMP, truth, next((incident for incident in incidents if incident.kind == "memory"), None)
    )


def measure(
    folder: Path, seed: str, quick: int, jumps: int, report: Callable[[str], None]
) -> list[Case]:
    """Measure one long window, while as many short ones as fit into it, and jumps.

    Args:
        folder: of the compiled programs.
        seed: of the random numbers.
        quick: windows of a second; half as many are of five seconds.
        jumps: of memory.
        report: called with lines of progress.
    """
    random = Random(f"{seed}/resources")
    cases = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        long = pool.submit(measure_cpu, folder, Random(f"{seed}/long"), _LONG, 64_000)
        for threshold, ms, count in ((_SHORT, 6500, quick // 2), (_QUICK, 2500, quick)):
            for _ in range(count):
                cases.append(measure_cpu(folder, random, threshold, ms))
                report(_line(cases[-1]))
        cases.append(long.result())
        report(_line(cases[-1]))
        randoms = [Random(f"{seed}/jump/{number}") for number in range(jumps)]
        cases += pool.map(lambda each: measure_memory(folder, each), randoms)
        report(f"{jumps} jumps, {sum(case.has_right_thread for case in cases[-jumps:])} right")
    return cases


def _line(case: Case) -> str:
    return (
        f"{case.threshold}: {case.used:.1f} %, seen after {case.latency_s:.2f} s, thread"
        f" {'right' if case.has_right_thread else 'wrong'}, error {case.error}"
    )


def resource_section(command: str, cases: Sequence[Case]) -> Section:
    """Return the cases as a section."""
    lines = [
        "| threshold | cases | seen | thread | function | from the beginning until seen, s (p50 / p99 /"
        " max) | error of the hot thread's share, points | error of the processor time, points |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for threshold in (_LONG, _SHORT, _QUICK, _JUMP):
        lines.append(_row(threshold, [each for each in cases if each.threshold == threshold]))
    lines += [
        "",
        "Of a jump, the time is from the hundredth MiB on, which the program states. Where the host"
        " gave a thread less than the threshold, the case does not count:"
        f" {sum(not case.is_valid for case in cases)}.",
    ]
    cpu = [case for case in cases if case.threshold != _JUMP and case.is_valid]
    jumps = [case for case in cases if case.threshold == _JUMP and case.is_valid]
    errors = [abs(case.error) for case in cpu if case.error is not None]
    right, right_jumps = (sum(case.has_right_thread for case in rows) for rows in (cpu, jumps))
    delays = [1000 * case.latency_s for case in jumps if case.incident]
    seen = {
        threshold: max((case.latency_s for case in cpu if case.threshold == threshold), default=0.0)
        for threshold in _LIMITS
    }
    text = (
        f"hot thread {share(right, len(cpu))}, share ± {max(errors, default=0):.1f} points;"
        f" 80 %/60 s after at most {seen[_LONG]:.1f} s, 90 %/5 s {seen[_SHORT]:.1f} s; jumps"
        f" {len(delays)} of {len(jumps)} seen, p50 {percentile(delays, 50):.0f} ms, p99"
        f" {percentile(delays, 99):.0f} ms, thread {share(right_jumps, len(jumps))}"
    )
    is_reached = (
        right == len(cpu) == len(errors)
        and max(errors, default=0) <= _POINTS
        and all(0 < seen[threshold] <= limit for threshold, limit in _LIMITS.items())
        and len(delays) == len(jumps)
        and percentile(delays, 99) <= _JUMP_MS
        and right_jumps >= 0.95 * len(jumps)
    )
    figures = {"9": Figure(text, is_reached)}
    return Section("resources", "Processor time and memory", command, figures, lines)


def _row(threshold: str, cases: Sequence[Case]) -> str:
    valid = [case for case in cases if case.is_valid]
    errors = [abs(case.error) for case in valid if case.error is not None]
    levels = [abs(case.level_error) for case in valid if case.level_error is not None]
    return (
        f"| {threshold} | {len(valid)} | {sum(case.incident is not None for case in valid)}"
        f" | {sum(case.has_right_thread for case in valid)}"
        f" | {sum(case.has_function for case in valid)}"
        f" | {_seconds([case.latency_s for case in valid if case.incident])} | {spread(errors)}"
        f" | {spread(levels)} |"
    )


def _seconds(values: Sequence[float]) -> str:
    return " / ".join(f"{percentile(values, each):.3f}" for each in (50, 99, 100))
