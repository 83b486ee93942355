"""Rules of other monitors, modelled on recorded stacks and the program's truth.

Each rule is given more than its system has: the exact times at which the loop left and entered its
wait, and stacks with names from outside. Its incidents are compared as the watcher's are.

- ``point stack``: Tencent/matrix, scaled to this threshold. Checks each T/2; the ring of the last
  stacks, of which the one whose innermost function was seen most often in a row is reported.
- ``last stack``: KSCrash, Bugsnag, Datadog: one stack, at the threshold.
- ``ping``: Sentry's first tracker: a message to the loop each 0.05 T, unanswered for
  T; then the stack. In a Python program it needs the interpreter lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.support.hangs.incidents import Incident
from tests.support.hangs.programs import ROOT, Program
from tests.support.hangs.recorder import INTERVAL
from tests.support.hangs.runner import Run, conduct
from tests.support.hangs.scenarios import THRESHOLD_MS, Scenario
from tests.support.hangs.truth import MS, Event, events_of, is_act

T = THRESHOLD_MS * MS
_CHECK = T // 2
_PING = T // 20
_RING = int(T / (INTERVAL * 1e9))
_ADJOINING = 2 * MS
"""Callbacks that are closer than this follow each other without a wait of the loop."""
_KEEPS_GIL = ("gil-burn", "gil-sleep", "gil-wait")
_SUSPENDS_ALL = ("@stop", "@freeze-v1", "@freeze-v2", "@gdb")
"""Acts that stop a monitor in the process, too: its timer is late, and it reports nothing."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A run without a watcher, and the stacks of its main thread."""

    run: Run
    times: Sequence[int]
    stacks: Sequence[tuple[str, ...]]
    own: frozenset[str]
    """The functions of the program itself."""

    def last(self, at: int, count: int = 1) -> list[tuple[str, ...]]:
        """Return the last stacks before a time, the newest first."""
        end = bisect_right(self.times, at)
        return [self.stacks[index] for index in range(end - 1, max(-1, end - 1 - count), -1)]

    def culprit(self, stack: Sequence[str]) -> str | None:
        """Return the innermost function of the program: what crash reporters group by."""
        return next((name for name in stack if name in self.own), None)


def record(scenario: Scenario, folder: Path, own: frozenset[str]) -> Recording:
    """Run a scenario with the recorder beside it."""
    began = time.monotonic()
    with Program(scenario.program, scenario.mode, folder) as program:
        program.wait_until_ready()
        recorder = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.hangs.recorder"),
                *(str(program.pid), scenario.program),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=(folder / "stacks.jsonl").open("wb"),
        )
        time.sleep(1.5)
        acts = conduct(program, None, scenario, folder)
        recorder.communicate()
        program.stop()
    run = Run(scenario, events_of(scenario, program.lines, acts), seconds=time.monotonic() - began)
    with (folder / "stacks.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return Recording(
        run, [row[0] for row in rows], [tuple(_plain(name) for name in row[1]) for row in rows], own
    )


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
        ring = recording.last(seen, _RING)
        stack = _point_stack(ring)
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
        stack = next(iter(recording.last(seen)), ())
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
        stack = next(iter(recording.last(seen)), ())
        incidents.append(_incident(event.step, sent, seen, event.ended, recording.culprit(stack)))
    return incidents


RULES = {"point stack (matrix)": point_stack, "last stack at T": last_stack, "ping": ping}
