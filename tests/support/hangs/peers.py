"""Rules of other monitors, modelled on the watcher's own samples and the program's truth.

Each rule is given more than its system has: the exact times at which the loop left and entered its
wait, stacks from outside, and no cost. Its incidents are compared as the watcher's are.

- ``point stack``: Tencent/matrix, scaled to this threshold. Checks each T/2; the ring of the last
  stacks, of which the one whose innermost function was seen most often in a row is reported.
- ``last stack``: KSCrash, Bugsnag, Datadog: one stack, at the threshold.
- ``ping``: Sentry's first tracker: a message to the loop each 0.05 T, unanswered for
  T; then the stack. In a Python program it needs the interpreter lock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from machtrace import read_report
from machtrace.errors import MachtraceError
from machtrace.model.report import Report
from machtrace.reports.stacks.incidents import sample_times
from tests.support.hangs.hang_section import named
from tests.support.hangs.incidents import Incident
from tests.support.hangs.programs import SOURCES
from tests.support.hangs.runner import Run
from tests.support.hangs.scenarios import THRESHOLD_MS
from tests.support.hangs.scoring import Match, Score, in_ms
from tests.support.hangs.sections import Section, share, spread
from tests.support.hangs.truth import MS, Event, is_act

T = THRESHOLD_MS * MS
_CHECK = T // 2
_PING = T // 20
_ADJOINING = 2 * MS
"""Callbacks that are closer than this follow each other without a wait of the loop."""
_KEEPS_GIL = ("gil-burn", "gil-sleep", "gil-wait")
_SUSPENDS_ALL = ("@stop", "@freeze-v1", "@freeze-v2", "@gdb")
"""Acts that stop a monitor in the process, too: its timer is late, and it reports nothing."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A watched run, and the stacks that the watcher took of its main thread."""

    run: Run
    times: Sequence[int]
    stacks: Sequence[tuple[str, ...]]
    """Names of functions, innermost first."""
    own: frozenset[str]
    """The functions of the program itself."""

    def ring(self, until: int) -> list[tuple[str, ...]]:
        """Return the stacks of the last check's time, the newest first."""
        first, end = bisect_right(self.times, until - _CHECK), bisect_right(self.times, until)
        return [self.stacks[index] for index in range(end - 1, first - 1, -1)]

    def last(self, at: int) -> tuple[str, ...]:
        """Return the last stack before a time, or else the one after it, of the same hang."""
        index = bisect_right(self.times, at)
        near = [each for each in (index - 1, index) if 0 <= each < len(self.times)]
        near = [each for each in near if abs(self.times[each] - at) <= _CHECK]
        return self.stacks[near[0]] if near else ()

    def culprit(self, stack: Sequence[str]) -> str | None:
        """Return the innermost function of the program: what crash reporters group by."""
        return next((name for name in stack if name in self.own), None)


def recording_of(run: Run) -> Recording:
    """Return the samples in a run's reports."""
    samples: dict[int, tuple[str, ...]] = {}
    for incident in run.incidents:
        try:
            report = read_report(Path(str(incident.values["report"])))
        except (KeyError, MachtraceError, OSError):
            continue
        samples.update(_samples(report))
    times = sorted(samples)
    own = _own_functions(run.scenario.program)
    return Recording(run, times, [samples[at] for at in times], own)


def _samples(report: Report) -> Iterator[tuple[int, tuple[str, ...]]]:
    columns = report.details.get("samples")
    rows = columns.get("frames") if isinstance(columns, dict) else None
    if not report.trees or not isinstance(rows, list):
        return
    nodes = report.trees[0].nodes
    physical = [index for index, node in enumerate(nodes) if not node.frame.is_inline]
    for time, row in zip(sample_times(report), rows, strict=False):
        names: list[str] = []
        index = physical[row] if isinstance(row, int) and 0 <= row < len(physical) else None
        while index is not None:
            frame = nodes[index].frame
            python = frame.details.get("python")
            names += _names(python) or ([frame.symbol.name] if frame.symbol else [])
            index = nodes[index].parent
        yield time.at_ns, tuple(_plain(name) for name in names)


def _names(python: object) -> list[str]:
    rows = python if isinstance(python, list) else []
    return [str(row["name"]) for row in rows if isinstance(row, Mapping) and "name" in row]


def _own_functions(program: str) -> frozenset[str]:
    name, pattern = {
        "c": ("loop.c", r"^CULPRIT static void (\w+)\("),
        "python": ("loop.py", r"^def (\w+)\("),
        "node": ("loop.js", r"^function (\w+)\("),
    }[program]
    leaves = {f"leaf_{number}" for number in range(16)}
    return frozenset(re.findall(pattern, (SOURCES / name).read_text(), re.MULTILINE)) | leaves


def _plain(name: str) -> str:
    return name.split("(", maxsplit=1)[0].rsplit(".", 1)[-1]


def _busy_times(events: Sequence[Event]) -> Iterator[tuple[Event, int, int]]:
    """Yield the times in which the loop did not wait, and the longest callback of each."""
    current: list[Event] = []
    for event in events:
        if is_act(event):
            continue
        if current and event.began - current[-1].ended > _ADJOINING:
            yield (
                max(current, key=lambda event: event.duration),
                current[0].began,
                current[-1].ended,
            )
            current = []
        current.append(event)
    if current:
        yield max(current, key=lambda event: event.duration), current[0].began, current[-1].ended


def _incident(number: int, began: int, seen: int, ended: int, culprit: str | None) -> Incident:
    return Incident(
        f"{number}", "hang", "busy", "likely", began, seen, ended, seen, ended - began, culprit
    )


def _is_suspended(recording: Recording, began: int, ended: int) -> bool:
    return any(
        event.action in _SUSPENDS_ALL and event.overlap(began, ended) > 0
        for event in recording.run.events
    )


def point_stack(recording: Recording) -> list[Incident]:
    """Return what matrix's rule reports."""
    phase = Random(recording.run.scenario.seed).randrange(_CHECK)
    incidents = []
    for event, began, ended in _busy_times(recording.run.events):
        seen = began + T
        seen += (phase - seen) % _CHECK
        if seen >= ended or _is_suspended(recording, began, ended):
            continue
        stack = _point_stack(recording.ring(seen))
        incidents.append(_incident(event.step, began, seen, ended, recording.culprit(stack)))
    return incidents


def _point_stack(ring: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the stack whose innermost frame had the most equal ones in a row before it."""
    best: tuple[str, ...] = ()
    most = -1
    repeats = 0
    before: str | None = None
    for stack in reversed(ring):
        innermost = stack[0] if stack else None
        repeats = repeats + 1 if innermost == before else 0
        before = innermost
        if repeats >= most:
            best, most = stack, repeats
    return best


def last_stack(recording: Recording) -> list[Incident]:
    """Return what one stack at the threshold reports."""
    incidents = []
    for event, began, ended in _busy_times(recording.run.events):
        seen = began + T
        if seen >= ended or _is_suspended(recording, began, ended):
            continue
        stack = recording.last(seen)
        incidents.append(_incident(event.step, began, seen, ended, recording.culprit(stack)))
    return incidents


def ping(recording: Recording) -> list[Incident]:
    """Return what a thread reports that sends messages to the loop."""
    is_python = recording.run.scenario.program == "python"
    phase = Random(recording.run.scenario.seed).randrange(_PING)
    incidents = []
    for event in recording.run.events:
        if is_act(event) or _is_suspended(recording, event.began, event.ended):
            continue
        sent = event.began + (phase - event.began) % _PING
        seen = sent + T
        if seen >= event.ended:
            continue
        if is_python and event.action in _KEEPS_GIL:
            continue  # it runs again when the hang is over, and the answer is there
        if event.action == "short-tasks":
            continue  # the message is answered between two of them
        stack = recording.last(seen)
        incidents.append(_incident(event.step, sent, seen, event.ended, recording.culprit(stack)))
    return incidents


RULES = {"point stack (matrix)": point_stack, "last stack at T": last_stack, "ping": ping}


def peer_section(command: str, runs: Sequence[Run]) -> Section:
    """Return the peers' rules beside the watcher, on the same events and samples."""
    scores = {name: Score() for name in ("machtrace", *RULES)}
    recordings = [recording_of(run) for run in runs]
    for recording in recordings:
        run = recording.run
        scores["machtrace"].add(run.scenario.name, run.events, run.incidents)
        for name, rule in RULES.items():
            scores[name].add(run.scenario.name, run.events, rule(recording))
    lines = [
        (
            f"The runs of the section above: {sum(len(each.times) for each in recordings):,} stacks"
            " that"
            " `machtrace watch` took, to which each rule is applied."
        ),
        "",
        (
            "| rule | hangs | found | no hangs | false | latency p50 / p99 / max, ms | culprit"
            " in C and"
            " Python | `leaves` | `a-then-b` | `a-then-more-b` |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, score in scores.items():
        matches = named(score.matches)
        lines.append(
            f"| {name} | {score.hang_count} | {len(score.matches)} | {score.quiet_count}"
            f" | {score.false_events} | {spread(in_ms(match.latency) for match in score.matches)}"
            f" | {share(sum(match.is_inside for match in matches), len(matches))} |"
            + " |".join(
                _of_action(matches, each) for each in ("leaves", "a-then-b", "a-then-more-b")
            )
            + " |"
        )
    lines += [
        "",
        (
            "The rules know from the program itself when its loop left and entered its wait, which"
            " none of"
            " these systems knows of another process; their latency is that of the model. Where the"
            " watcher took no stack, a rule has no culprit."
        ),
    ]
    return Section("peers", "Rules of other monitors", command, {}, lines)


def _of_action(matches: Sequence[Match], action: str) -> str:
    chosen = [match for match in matches if match.event.action == action]
    return f" {sum(match.is_inside for match in chosen)} of {len(chosen)}"
