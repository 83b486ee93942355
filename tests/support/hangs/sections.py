"""Sections of the page: what was measured, as text, with the figures of the goals."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.hangs.disturbances import missing_reason
from tests.support.hangs.incidents import Incident
from tests.support.hangs.runner import Run
from tests.support.hangs.scenarios import DISTURBANCES, THRESHOLD_MS
from tests.support.hangs.scoring import Match, Score, in_ms, percentile
from tests.support.hangs.truth import MS, Event

_SHOWN = 40
"""Misses and false reports shown; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement."""

    name: str
    title: str
    command: str
    figures: Mapping[str, str] = field(default_factory=dict)
    """The figures that were reached, by the goal's number."""
    lines: Sequence[str] = ()

    def save(self, folder: Path) -> None:
        """Store it, so that the page can be written again."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def load_section(folder: Path, name: str) -> Section | None:
    """Return a stored section, or None if it was not measured."""
    path = folder / f"{name}.json"
    return Section(**json.loads(path.read_text())) if path.exists() else None


def share(count: int, total: int) -> str:
    """Return a percentage, rounded against the watcher's favour: 100 means all."""
    if total == 0:
        return "none"
    return f"{count * 10000 // total / 100:.2f} % ({count:,} of {total:,})"


def share_up(count: int, total: int) -> str:
    """Return a percentage that is to be low, rounded up."""
    if total == 0:
        return "none"
    return f"{-(-count * 10000 // total) / 100:.2f} % ({count:,} of {total:,})"


def machine() -> str:
    """Return the machine and its load, in a sentence."""
    load = os.getloadavg()[0]
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    kernel = os.uname()
    return (
        f"{day} UTC, {kernel.sysname} {kernel.release}, {os.cpu_count()} processors,"
        f" load average {load:.1f} at the end."
    )


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return (
        f"{percentile(ordered, 50):.1f} / {percentile(ordered, 99):.1f} / {percentile(ordered, 100):.1f}"
        if ordered
        else "–"
    )


def hang_section(
    name: str, title: str, command: str, runs: Sequence[Run], skipped: Sequence[str]
) -> tuple[Section, Score]:
    """Return the comparison of watched runs with their truth."""
    total = Score()
    rows = [
        (
            "| program | hangs | found | no hangs | false | named as loops | latency p50 / p99 / max, ms"
            " | error of duration p50 / p99 / max, ms | culprit |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for run in runs:
        score = Score()
        for scores in (score, total):
            scores.add(run.scenario.name, run.events, run.incidents)
        rows.append(_row(run.scenario.name, score))
    rows.append(_row("**all**", total))
    seeds = sorted({run.scenario.seed for run in runs})
    lines = [
        f"Seed {', '.join(seeds)}; {total.hang_count} hangs, {total.quiet_count} events that are none;"
        f" {total.unscored} events between 0.75 T and 1.25 T, or prolonged by the host, do not count."
        f" {machine()}",
        "",
        *rows,
        "",
        *_by_action(total),
        *_other_verdicts(total),
        *(f"- not run: {reason}" for reason in skipped),
        *_failures(total),
        *_watcher_ends(runs),
    ]
    return Section(name, title, command, _figures(total), lines), total


def _errors(matches: Iterable[Match]) -> list[float]:
    errors = (match.duration_error for match in matches)
    return [abs(in_ms(error)) for error in errors if error is not None]


def _row(name: str, score: Score) -> str:
    matches = score.matches
    return (
        f"| {name} | {score.hang_count} | {len(matches)} | {score.quiet_count} | {score.false_events}"
        f" | {len(score.named_as_loops)} | {_spread(in_ms(match.latency) for match in matches)}"
        f" | {_spread(_errors(matches))} | {sum(_is_right(match) for match in matches)} |"
    )


def _is_right(match: Match) -> bool:
    return match.is_inside


def _named(matches: Sequence[Match]) -> list[Match]:
    """Return the matches whose culprit has a name: JIT code of node has none in a file."""
    return [match for match in matches if not match.scenario.startswith("node")]


def _figures(score: Score) -> dict[str, str]:
    matches = score.matches
    latency = [in_ms(match.latency) for match in matches]
    delivery = [in_ms(match.delivery) for match in matches]
    errors = _errors(matches)
    named = _named(matches)
    idle = [row for row in score.false if row[1] is None or row[1].action in ("idle", "nothing")]
    short = [row for row in score.false if row[1] is not None]
    groups = max((len(groups) for name, groups in score.groups.items()), default=0)
    exact = sum(match.is_culprit for match in named)
    return {
        "1": (
            f"p50 {percentile(latency, 50):.1f} ms, p99 {percentile(latency, 99):.1f} ms"
            f" (T = {THRESHOLD_MS} ms); the line could be read at p99 {percentile(delivery, 99):.1f} ms"
        ),
        "3": f"{share_up(score.false_events, score.quiet_count)}; {len(idle)} while idle",
        "4": (
            f"found {share(len(matches), score.hang_count)}; {len(short)} reports of tasks ≤ 0.75 T"
            f" and other events; error of the duration p50 {percentile(errors, 50):.1f} ms,"
            f" p99 {percentile(errors, 99):.1f} ms"
        ),
        "5": (
            f"{share(sum(map(_is_right, named)), len(named))} in C and Python,"
            f" {share(exact, len(named))} the program's own function; at most {groups} groups"
        ),
    }


def _by_action(score: Score) -> list[str]:
    lines = [
        "| hang | hangs | found | culprit | its own function | groups | latency p50 / p99 / max, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for key in sorted(score.hangs):
        matches = [
            match
            for match in score.matches
            if f"{match.scenario.split(maxsplit=1)[0]} {match.event.action}" == key
        ]
        lines.append(
            f"| {key} | {score.hangs[key]} | {len(matches)} | {sum(map(_is_right, matches))}"
            f" | {sum(match.is_culprit for match in matches)} | {len(score.groups[key])}"
            f" | {_spread(in_ms(match.latency) for match in matches)} |"
        )
    rows = f"Rows of equal short tasks, indistinguishable from one task from outside: {score.undecidable}, of which {score.undecidable_reports} were reported. They do not count."
    quiet = ", ".join(f"{name} {count}" for name, count in sorted(score.quiet.items()))
    return [*lines, "", f"No hangs: {quiet}.", "", rows, ""]


def _other_verdicts(score: Score) -> list[str]:
    if not score.other_verdicts:
        return []
    rows = ", ".join(
        f"{verdict} in {action} {count}"
        for (action, verdict), count in sorted(score.other_verdicts.items())
    )
    return [f"Incidents that blame nobody: {rows}.", ""]


def describe(scenario: str, event: Event | None, incident: Incident | None) -> str:
    """Return a line about a miss or a false report."""
    parts = [scenario]
    if event is not None:
        parts.append(
            f"step {event.step} {event.action}, {in_ms(event.duration):.0f} ms"
            f" ({in_ms(event.cpu):.0f} ms of processor)"
        )
    if incident is not None:
        reported = (incident.ended or incident.seen) - incident.began
        parts.append(
            f"reported {incident.verdict}, {incident.certainty}, {in_ms(reported):.0f} ms,"
            f" culprit {incident.culprit}, rules {', '.join(incident.rules) or 'none'}"
        )
    return "; ".join(parts)


def _failures(score: Score) -> list[str]:
    lines = []
    for title, rows in (
        ("Missed", [describe(name, event, None) for name, event in score.missed]),
        ("False reports", [describe(*row) for row in score.false]),
        ("Named as loops", [describe(*row) for row in score.named_as_loops]),
        (
            "Other culprits",
            [
                describe(match.scenario, match.event, match.incident)
                for match in _named(score.matches)
                if not _is_right(match)
            ],
        ),
    ):
        if rows:
            lines += ["", f"{title}:", "", *(f"- {row}" for row in rows[:_SHOWN])]
            if len(rows) > _SHOWN:
                lines.append(f"- and {len(rows) - _SHOWN} more")
    return lines


def _watcher_ends(runs: Sequence[Run]) -> list[str]:
    bad = [
        f"- {run.scenario.name}: exit status {run.status}: {run.errors.strip()[-300:]}"
        for run in runs
        if run.status not in (0, 1)
    ]
    return ["", "Watchers that failed:", "", *bad] if bad else []


def skipped_disturbances() -> list[str]:
    """Return what cannot be done on this machine, with the reason."""
    reasons = ((name, missing_reason(name)) for name in DISTURBANCES)
    return [f"{name}: {reason}" for name, reason in reasons if reason]


def peer_section(
    command: str, events: int, scores: Mapping[str, Score], runs: int, seed: str
) -> Section:
    """Return the peers' rules, compared with the same truth as the watcher."""
    lines = [
        f"Seed {seed}, {runs} runs with a recorder that takes the main thread's stack each 20 ms,"
        f" {events} events. {machine()}",
        "",
        "| rule | hangs | found | no hangs | false | latency p50 / p99 / max, ms | culprit"
        " | `leaves` | `a-then-more-b` |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, score in scores.items():
        named = score.matches
        lines.append(
            f"| {name} | {score.hang_count} | {len(named)} | {score.quiet_count}"
            f" | {score.false_events} | {_spread(in_ms(match.latency) for match in named)}"
            f" | {share(sum(map(_is_right, named)), len(named))}"
            f" | {_of_action(named, 'leaves')} | {_of_action(named, 'a-then-more-b')} |"
        )
    lines += [
        "",
        "The rules know from the program itself when its loop left and entered its wait, which none of"
        " these systems knows of another process; their latency is that of the model.",
    ]
    return Section("peers", "Rules of other monitors", command, {}, lines)


def _of_action(matches: Sequence[Match], action: str) -> str:
    chosen = [match for match in matches if match.event.action == action]
    return f"{sum(map(_is_right, chosen))} of {len(chosen)}"


def cost_section(command: str, runs: Sequence[Run]) -> Section:
    """Return the cost of watching idle programs."""
    lines = [
        machine(),
        "",
        "| program | seconds | watcher's processor time, % of a core | switches of the main thread"
        " | incidents |",
        "|---|--:|--:|--:|--:|",
    ]
    for run in runs:
        lines.append(
            f"| {run.scenario.name} | {run.seconds:.0f} | {run.cost['share'] * 100:.3f}"
            f" | {run.cost['switches']:.0f} | {len(run.incidents)} |"
        )
    worst = max(run.cost["share"] for run in runs)
    still = [run for run in runs if run.scenario.mode in ("epoll", "poll", "asyncio")]
    stops = sum(run.cost["switches"] for run in still)
    lines += [
        "",
        "A thread that waits without a timeout and is neither stopped nor signalled does not switch:"
        " its counters prove that nothing was stopped.",
    ]
    incidents = sum(len(run.incidents) for run in runs)
    figures = {
        "6": f"at most {worst * 100:.3f} % of a core at 50 Hz; {stops:.0f} switches of idle main threads"
        f" in {sum(run.seconds for run in still):.0f} s; {incidents} incidents"
    }
    return Section("cost", "Cost of watching", command, figures, lines)


def pause_section(
    command: str, blocked: Sequence[Event], watched: Sequence[Event], alone: Sequence[Event]
) -> Section:
    """Return the pauses that watching caused in the target, by its own clock.

    Args:
        command: the command that measures it.
        blocked: waits of the main thread; each is one switch if nothing stopped the thread.
        watched: loops of the main thread that read the clock, with a watcher.
        alone: the same without one.
    """
    extra = [event.switches - 1 for event in blocked if event.switches is not None]
    pauses = [gap / 1000 for event in watched for gap, stops in _gaps(event) if stops]
    preempted = [gap / 1000 for event in alone for gap, _ in _gaps(event)]
    preempted_watched = [
        gap / 1000 for event in watched for gap, stops in _gaps(event) if not stops
    ]
    lines = [
        machine(),
        "",
        f"Blocked: {len(extra)} waits with an incident each; {sum(extra)} switches beyond the one of the"
        " wait itself. A stop would be a further switch.",
        "",
        "Running: the target reads its clock all the time and counts its voluntary switches at each gap"
        " of 20 µs or more: a stop is one, a preemption is not.",
        "",
        "| gaps | number | p50 / p99 / max, µs |",
        "|---|--:|--:|",
        f"| stops by the watcher | {len(pauses)} | {_spread(pauses)} |",
        f"| preemptions beside the watcher | {len(preempted_watched)} | {_spread(preempted_watched)} |",
        f"| preemptions without a watcher | {len(preempted)} | {_spread(preempted)} |",
    ]
    figures = {
        "7": f"blocked: {sum(extra)} stops in {len(extra)} hangs; running: median"
        f" {percentile(pauses, 50):.0f} µs, p99 {percentile(pauses, 99):.0f} µs of {len(pauses)} stops"
    }
    return Section("pause", "Pause at the trigger", command, figures, lines)


def _gaps(event: Event) -> list[tuple[int, int]]:
    rows = event.more.get("gaps")
    return [(int(row[0]), int(row[1])) for row in rows] if isinstance(rows, list) else []


def gil_section(command: str, runs: Sequence[Run]) -> Section:
    """Return hangs with the interpreter lock held in C, seen from outside."""
    score = Score()
    for run in runs:
        score.add(run.scenario.name, run.events, run.incidents)
    late = [match for match in score.matches if match.latency > (THRESHOLD_MS + 25) * MS]
    with_both = [match for match in score.matches if match.is_culprit and match.incident.native]
    latency = [in_ms(match.latency) for match in score.matches]
    lines = [
        machine(),
        "",
        f"{score.hang_count} calls of 300 ms, half computing and half asleep, with the interpreter lock"
        f" held: {len(score.matches)} found, {len(score.matches) - len(late)} of them within T + 25 ms;"
        f" latency p50 / p99 / max {_spread(latency)} ms; {len(with_both)} with the Python function and"
        " the native one.",
        *_failures(score),
    ]
    in_time = len(score.matches) - len(late)
    figures = {
        "2": f"{len(score.matches)} of {score.hang_count} found, {in_time} within T + 25 ms,"
        f" {len(with_both)} with native and Python function"
    }
    return Section("gil", "Interpreter lock held in C", command, figures, lines)
