"""Sections of the watcher's cost: while nothing happens, and at the trigger."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.hangs.hang_section import failures
from tests.support.hangs.runner import Run
from tests.support.hangs.scenarios import THRESHOLD_MS
from tests.support.hangs.scoring import Score, in_ms, percentile
from tests.support.hangs.sections import Figure, Section, spread
from tests.support.hangs.truth import Event

_WITHOUT_TIMEOUT = ("epoll", "poll", "asyncio")
"""Modes whose idle threads never switch by themselves."""


def cost_section(command: str, runs: Sequence[Run]) -> Section:
    """Return the cost of watching idle programs."""
    lines = [
        (
            "| program | seconds | watcher's processor time, % of a core | switches of the main"
            " thread"
            " | incidents | its start, s |"
        ),
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        (
            f"| {run.scenario.name} | {run.seconds:.0f} | {run.cost['share'] * 100:.3f}"
            f" | {run.cost['switches']:.0f} | {len(run.incidents)}"
            f" | {run.cost['start']:.2f} |"
        )
        for run in runs
    ]
    shares = [run.cost["share"] * 100 for run in runs]
    still = [run for run in runs if run.scenario.mode in _WITHOUT_TIMEOUT]
    stops = sum(run.cost["switches"] for run in still)
    lines += [
        "",
        (
            "All are watched at the same time. A thread that waits without a timeout and is neither"
            " stopped nor signalled does not switch: its counters prove that nothing was stopped."
            " The watcher's start, once, until the names of the program were read, is in the last"
            " column, in seconds of processor time, and not in the share."
        ),
        "",
        (
            "The floor of this machine: a C program that only sleeps for 20 ms, again and again,"
            " used 0.17 % of a core with nothing else running, 35 µs for each time that it woke;"
            " with 40 ms 0.07 %. By default (hangs of 250 ms) idle threads are polled every 40 ms."
        ),
    ]
    incidents = sum(len(run.incidents) for run in runs)
    text = (
        f"{percentile(shares, 50):.3f} % of a core at 50 Hz (median), at most {max(shares):.3f} %;"
        f" {stops:.0f} switches of idle main threads in {sum(run.seconds for run in still):.0f} s;"
        f" {incidents} incidents"
    )
    is_reached = max(shares) <= 0.05 and not stops and not incidents
    return Section("cost", "Cost of watching", command, {"6": Figure(text, is_reached)}, lines)


def pause_section(command: str, watched: Run, alone: Sequence[Event]) -> Section:
    """Return the pauses that watching caused in the target, by its own clock.

    Args:
        command: that measures it.
        watched: waits (``sleep``), each of which is one switch if nothing stopped the thread, and
            loops that read the clock (``clock``).
        alone: the same events without a watcher.
    """
    waits = [event for event in watched.events if event.action == "sleep"]
    extra = [event.switches - 1 for event in waits if event.switches is not None]
    late = [_overshoot(event) for event in waits]
    late_alone = [_overshoot(event) for event in alone if event.action == "sleep"]
    gaps = [gap for event in watched.events for gap in _gaps(event)]
    pauses = [ns / 1000 for ns, stops in gaps if stops]
    preempted = [ns / 1000 for ns, stops in gaps if not stops]
    preempted_alone = [ns / 1000 for event in alone for ns, _ in _gaps(event)]
    hangs = sum(event.action == "clock" for event in watched.events)
    lines = [
        (
            f"Blocked: {len(extra)} waits of known length, an incident each. A stop would be a"
            " further"
            f" switch: there were {sum(extra)}. By the target's clock they ended late by, in µs"
            " (p50"
            " / p99 /"
            f" max): {spread(late)} with the watcher, {spread(late_alone)} without it."
        ),
        "",
        (
            "Running: the target reads its clock all the time and counts its voluntary switches at"
            " each gap"
            " of 20 µs or more: a stop is one, a preemption is not."
        ),
        "",
        "| gaps | number | p50 / p99 / max, µs |",
        "|---|--:|--:|",
        f"| stops by the watcher | {len(pauses)} | {spread(pauses)} |",
        f"| preemptions beside the watcher | {len(preempted)} | {spread(preempted)} |",
        f"| preemptions without a watcher | {len(preempted_alone)} | {spread(preempted_alone)} |",
        "",
        f"All stops of a hang together are {sum(pauses) / 1000 / max(1, hangs):.2f} ms of it.",
    ]
    text = (
        f"blocked: {sum(extra)} stops in {len(extra)} hangs; running: median"
        f" {percentile(pauses, 50):.0f} µs, p99 {percentile(pauses, 99):.0f} µs of {len(pauses)}"
        " stops"
        f" in {hangs} hangs"
    )
    is_reached = not sum(extra) and percentile(pauses, 50) <= 200 and percentile(pauses, 99) <= 1000
    return Section("pause", "Pause at the trigger", command, {"7": Figure(text, is_reached)}, lines)


def _overshoot(event: Event) -> float:
    """Return by how much a wait of whole milliseconds was too long, in microseconds."""
    planned = event.more.get("planned")
    return event.duration / 1000 - (planned if isinstance(planned, int) else 0) * 1000


def _gaps(event: Event) -> list[tuple[int, int]]:
    rows = event.more.get("gaps")
    return [(int(row[0]), int(row[1])) for row in rows] if isinstance(rows, list) else []


def gil_figure(score: Score, margin_ms: float = 25) -> Figure:
    """Return what was reached of calls that hold the interpreter lock in C."""
    in_time = [match for match in score.matches if in_ms(match.latency) <= THRESHOLD_MS + margin_ms]
    both = [match for match in score.matches if match.is_culprit and match.incident.native]
    text = (
        f"{len(score.matches)} of {score.hang_count} found, {len(in_time)} within T +"
        f" {margin_ms:g} ms,"
        f" {len(both)} with native and Python function"
    )
    return Figure(text, len(in_time) == len(both) == score.hang_count)


def gil_section(command: str, runs: Sequence[Run]) -> Section:
    """Return hangs with the interpreter lock held in C, seen from outside."""
    score = Score()
    for run in runs:
        score.add(run.scenario.name, run.events, run.incidents)
    lines = [
        (
            f"{score.hang_count} calls of 300 ms, half computing and half asleep, with the"
            " interpreter lock"
            " held; seen − began p50 / p99 / max"
            f" {spread(in_ms(match.latency) for match in score.matches)}"
            " ms."
        ),
        *failures(score),
    ]
    return Section("gil", "Interpreter lock held in C", command, {"2": gil_figure(score)}, lines)
