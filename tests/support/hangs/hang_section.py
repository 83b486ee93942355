"""The section of watched runs: hangs found, false reports, latency, durations and culprits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.hangs.disturbances import missing_reason
from tests.support.hangs.incidents import Incident
from tests.support.hangs.runner import Run
from tests.support.hangs.scenarios import DISTURBANCES, MAX_QUIET_MS, THRESHOLD_MS
from tests.support.hangs.scoring import Match, Score, in_ms, percentile
from tests.support.hangs.sections import Figure, Section, share, share_up, spread
from tests.support.hangs.truth import MS, Event

_SHOWN = 40
"""Misses and false reports shown; the rest are counted."""
_OWNED = ("mutex", "rwlock", "rlock", "flock", "join", "child")
_OWNERLESS = ("semaphore", "condition", "lock")
"""Hangs in waits for what has an owner, and for what records none."""


def hang_section(
    name: str,
    title: str,
    command: str,
    runs: Sequence[Run],
    skipped: Sequence[str] = (),
    *,
    margin_ms: float,
) -> Section:
    """Return the comparison of watched runs with their truth.

    Args:
        name: of the section.
        title: of the section.
        command: that measures it.
        runs: with the incidents of each.
        skipped: what could not be run, and why.
        margin_ms: the goal of the latency, beyond the threshold.
    """
    total = Score()
    rows = [
        (
            "| program | hangs | found | no hangs | false | named as loops | latency p50 / p99 /"
            " max, ms"
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
    lines = [
        (
            f"{total.hang_count} hangs, {total.quiet_count} events that are none; {total.unscored}"
            " events"
            " between 0.75 T and 1.25 T, or prolonged by the host, do not count."
        ),
        "",
        *rows,
        "",
        *_by_action(total),
        *_other_verdicts(total),
        *(f"- not run: {reason}" for reason in skipped),
        *failures(total),
        *_watcher_ends(runs),
    ]
    return Section(name, title, command, _figures(total, margin_ms), lines, _data(total))


def errors_of(matches: Iterable[Match]) -> list[float]:
    """Return the absolute errors of the durations, in milliseconds."""
    errors = (match.duration_error for match in matches)
    return [abs(in_ms(error)) for error in errors if error is not None]


def _row(name: str, score: Score) -> str:
    matches = score.matches
    return (
        f"| {name} | {score.hang_count} | {len(matches)} | {score.quiet_count} |"
        f" {score.false_events}"
        f" | {len(score.named_as_loops)} | {spread(in_ms(match.latency) for match in matches)}"
        f" | {spread(errors_of(matches))} | {sum(match.is_inside for match in matches)} |"
    )


def named(matches: Sequence[Match]) -> list[Match]:
    """Return the matches whose culprit has a name: JIT code of node has none in a file."""
    return [match for match in matches if not match.scenario.startswith("node")]


def latency_figure(matches: Sequence[Match], margin_ms: float) -> Figure:
    """Return the latency, and when the lines could be read."""
    latency = [in_ms(match.latency) for match in matches]
    delivery = [in_ms(match.delivery) for match in matches]
    text = (
        f"seen − began p50 {percentile(latency, 50):.1f} ms, p99 {percentile(latency, 99):.1f} ms;"
        f" readable p50 {percentile(delivery, 50):.1f} ms, p99 {percentile(delivery, 99):.1f} ms"
    )
    return Figure(text, bool(latency) and percentile(latency, 99) <= THRESHOLD_MS + margin_ms)


def _figures(score: Score, margin_ms: float) -> dict[str, Figure]:
    matches = score.matches
    errors = errors_of(matches)
    with_names = named(matches)
    idle = [row for row in score.false if row[1] is None or row[1].action in ("idle", "nothing")]
    short = [
        row
        for row in score.false
        if row[1] is not None
        and row[1].duration <= MAX_QUIET_MS * MS
        and not row[1].action.startswith("@")
    ]
    groups = max((len(groups) for groups in score.groups.values()), default=0)
    exact = sum(match.is_culprit for match in with_names)
    right = sum(match.is_inside for match in with_names)
    return {
        "1": latency_figure(matches, margin_ms),
        "3": Figure(
            f"{share_up(score.false_events, score.quiet_count)}; {len(idle)} while idle",
            score.false_events * 100 <= score.quiet_count and not idle,
        ),
        "4": Figure(
            f"found {share(len(matches), score.hang_count)}; {len(short)} reports of tasks ≤"
            " 0.75 T;"
            f" error of the duration p50 {percentile(errors, 50):.1f} ms, p99"
            f" {percentile(errors, 99):.1f} ms; {score.repeated} hangs reported twice",
            len(matches) >= 0.995 * score.hang_count and not short and percentile(errors, 99) <= 20,
        ),
        "5": Figure(
            f"{share(right, len(with_names))} in C and Python, {share(exact, len(with_names))} the"
            f" program's own function; at most {groups} groups",
            right >= 0.95 * len(with_names) and groups <= 3,
        ),
    }


def _data(score: Score) -> dict[str, Any]:
    """Return counts by action, for the table of rules, and the stated owners."""
    rows: dict[str, dict[str, Any]] = {
        action: {"events": count, "false": 0, "stated": {}} for action, count in score.quiet.items()
    }
    events = {(scenario, event.step, event.action) for scenario, event, _ in score.false if event}
    for _, _, action in events:
        if action in rows:
            rows[action]["false"] += 1
    for (action, stated), count in sorted(score.stated.items()):
        if action in rows:
            rows[action]["stated"][stated] = count
    owners = [
        (match.event.action, (match.incident.owner or {}).get("recorded"))
        for match in score.matches
        if match.incident.verdict == "blocked"
    ]
    return {
        "actions": rows,
        "repeated": score.repeated,
        "hangs": score.hang_count,
        "found": len(score.matches),
        "owned": [
            sum(a in _OWNED and r is True for a, r in owners),
            sum(a in _OWNED for a, _ in owners),
        ],
        "ownerless": [
            sum(a in _OWNERLESS and r is False for a, r in owners),
            sum(a in _OWNERLESS for a, _ in owners),
        ],
    }


def _by_action(score: Score) -> list[str]:
    lines = [
        (
            "| hang | hangs | found | culprit | its own function | groups | latency p50 / p99 /"
            " max,"
            " ms |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for key in sorted(score.hangs):
        matches = [match for match in score.matches if match.key == key]
        lines.append(
            f"| {key} | {score.hangs[key]} | {len(matches)}"
            f" | {sum(match.is_inside for match in matches)}"
            f" | {sum(match.is_culprit for match in matches)} | {len(score.groups[key])}"
            f" | {spread(in_ms(match.latency) for match in matches)} |"
        )
    rows = (
        "Rows of equal short tasks, indistinguishable from one task from outside:"
        f" {score.undecidable}, of which {score.undecidable_reports} were reported. They do not"
        " count."
    )
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


def failures(score: Score) -> list[str]:
    """Return lists of what was wrong."""
    lines = []
    for title, rows in (
        ("Missed", [describe(name, event, None) for name, event in score.missed]),
        ("False reports", [describe(*row) for row in score.false]),
        ("Named as loops", [describe(*row) for row in score.named_as_loops]),
        (
            "Other culprits",
            [
                describe(match.scenario, match.event, match.incident)
                for match in named(score.matches)
                if not match.is_inside
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
