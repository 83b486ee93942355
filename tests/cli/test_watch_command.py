"""``machtrace watch`` over a scripted watcher: when it stops, what it requests, and its status."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import pytest

from machtrace.model.incident.facts import (
    IncidentKind,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WatchedThread,
    WatcherCost,
    WatchIncident,
)
from machtrace.watching import watcher as watcher_module
from tests.support.command_line import run_command


class Shown(NamedTuple):
    """One publication of an incident."""

    id: str
    verdict: Verdict | None = None
    has_ended: bool = False
    kind: IncidentKind = IncidentKind.HANG
    certainty: VerdictCertainty = VerdictCertainty.CERTAIN

    @property
    def incident(self) -> WatchIncident:
        """It, with what the command reads."""
        return WatchIncident(
            id=self.id,
            kind=self.kind,
            certainty=self.certainty,
            began=TimeRange(1, 1),
            seen_ns=2,
            ended=TimeRange(3, 3) if self.has_ended else None,
            pid=1,
            verdict=self.verdict,
            thread=WatchedThread(1, "main", is_main=True),
        )


class ScriptedWatcher:
    """Publishes what its script has, until it should stop."""

    script: Sequence[Shown] = ()
    last: ScriptedWatcher

    def __init__(
        self, spec: int, options: Any, on_incident: Callable[[WatchIncident], None]
    ) -> None:
        self.spec, self.options, self.on_incident = spec, options, on_incident
        self.shown: dict[str, WatchIncident] = {}
        self.published = 0
        self.missing: tuple[str, ...] = ()
        self.has_failed = self.has_ended = self.killed_for_memory = False
        self.wait_status: int | None = None
        self.cost = WatcherCost(1, 0, 0, 0, 0, 0)
        ScriptedWatcher.last = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        """Attach nothing."""

    @property
    def incidents(self) -> tuple[WatchIncident, ...]:
        """Those that were published, as they were last."""
        return tuple(self.shown.values())

    def run(self, _duration_ns: int, *, should_stop: Callable[[], bool], **_: object) -> None:
        """Publish the script."""
        for each in self.script:
            if should_stop():
                return
            incident = each.incident
            self.shown[incident.id] = incident
            self.published += 1
            self.on_incident(incident)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, ScriptedWatcher]]:
    def run(*words: str, script: Sequence[Shown] = ()) -> tuple[Any, ScriptedWatcher]:
        monkeypatch.setattr(ScriptedWatcher, "script", script)
        monkeypatch.setattr(watcher_module, "Watcher", ScriptedWatcher)
        done = run_command("watch", "1", *words)
        return done, ScriptedWatcher.last

    return run


BUSY, BLOCKED, STARVED, IDLE = Verdict.BUSY, Verdict.BLOCKED, Verdict.STARVED, Verdict.IDLE
LAST = Shown("last", BUSY, has_ended=True)
CPU, MEMORY = IncidentKind.CPU, IncidentKind.MEMORY


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([Shown("a", STARVED), Shown("a", STARVED, has_ended=True)], id="starved"),
        pytest.param([Shown("a", BLOCKED), Shown("a", IDLE, has_ended=True)], id="withdrawn"),
        pytest.param([Shown("a", STARVED), Shown("a", IDLE, has_ended=True)], id="starved, idle"),
        pytest.param([Shown("a", STARVED), Shown("a", BUSY)], id="lasts as a hang"),
        pytest.param(
            [Shown("a", verdict, has_ended=True) for verdict in Verdict if not verdict.is_hang],
            id="all that are no hang",
        ),
        pytest.param([Shown("a", kind=CPU), Shown("b", kind=MEMORY)], id="samples to come"),
    ],
)
def test_until_incident_waits_for_one_that_counts(watch, script: Sequence[Shown]) -> None:
    after = Shown("not shown", BUSY)
    done, watcher = watch("--until-incident", script=[*script, LAST, after])
    assert watcher.published == len(script) + 1
    assert done.returncode == 1


@pytest.mark.parametrize(
    "script",
    [
        [Shown("a", BUSY), Shown("a", BUSY, has_ended=True)],
        [Shown("a", STARVED), Shown("a", BUSY), Shown("a", BUSY, has_ended=True)],
        [Shown("a", BLOCKED, has_ended=True, certainty=VerdictCertainty.LIKELY)],
        [Shown("a", STARVED, has_ended=True), Shown("b", BLOCKED, has_ended=True)],
        [Shown("a", kind=CPU), Shown("a", kind=CPU)],
        [Shown("a", kind=MEMORY), Shown("a", kind=MEMORY)],
        [Shown("a", kind=IncidentKind.DEADLOCK)],
        [Shown("a", kind=IncidentKind.CRASH), Shown("a", has_ended=True, kind=IncidentKind.CRASH)],
    ],
)
def test_until_incident_ends_with_one_that_counts(watch, script: Sequence[Shown]) -> None:
    words = ("--until-incident", "--format", "jsonl")
    done, watcher = watch(*words, script=[*script, Shown("not shown", BUSY, has_ended=True)])
    assert watcher.published == len(script)
    assert done.returncode == 1
    ids = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert "not shown" not in ids


def test_what_is_no_hang_does_not_count(watch) -> None:
    script = [Shown("a", BLOCKED), Shown("a", IDLE, has_ended=True), Shown("b", STARVED)]
    done, watcher = watch("--until-incident", script=script)
    assert (done.returncode, watcher.published) == (0, len(script))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (True, True, None)),
        (("--crash",), (True, True, True)),
        (("--no-crash",), (True, True, False)),
        (("--deadlocks",), (False, True, False)),
        (("--hang", "1s", "--crash"), (True, False, True)),
    ],
)
def test_crashes_are_traced_only_on_request_beside_the_conditions(
    watch, words: Sequence[str], expected: tuple[bool, bool, bool | None]
) -> None:
    _, watcher = watch(*words)
    options = watcher.options
    assert (options.hang_ns is not None, options.deadlocks, options.crash) == expected


@pytest.mark.parametrize(
    ("words", "status", "lines"),
    [
        ((), 11, ["was ended by SIGSEGV", "no stacks of the crash were captured", "--crash"]),
        (("--crash",), 11, ["was ended by SIGSEGV"]),
        ((), 9, ["was ended by SIGKILL"]),
        ((), 3 << 8, ["exited with status 3"]),
        ((), 139 << 8, []),
        ((), None, ["process 1 has ended; how is not known without --crash"]),
    ],
)
def test_the_end_of_a_process_is_stated_as_far_as_it_is_known(
    watch, monkeypatch, words: Sequence[str], status: int | None, lines: Sequence[str]
) -> None:
    def run(self: ScriptedWatcher, *_: object, **__: object) -> None:
        self.has_ended, self.wait_status = True, status

    monkeypatch.setattr(ScriptedWatcher, "run", run)
    done, _ = watch(*words)
    assert all(line in done.stderr for line in lines)
    assert ("--crash" in done.stderr) == any("--crash" in line for line in lines)
