"""The rules against false reports: a case with truth for each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from machtrace.model.arch import Arch
from machtrace.model.incident.facts import WatchIncident
from machtrace.model.polls import ThreadPoll
from machtrace.targets.linux.watched import WatchedProcess
from machtrace.watching.hangs.classifier import Ended, HangClassifier, LearnWait, Seen
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.wait_roles import NamedWait, WaitRole
from machtrace.watching.thresholds import WatchOptions
from machtrace.watching.watcher import Watcher
from tests.support.hangs.programs import WATCH_FLAGS, Program
from tests.support.hangs.runner import run_launch, run_scenario
from tests.support.hangs.scenarios import THRESHOLD_MS, Scenario, Step
from tests.support.hangs.scoring import Score, in_ms
from tests.support.hangs.sections import Section
from tests.support.hangs.truth import MS

_POLL_NS = 20 * MS
_HOUR_NS = 3_600_000 * MS
_GRACE = (*WATCH_FLAGS, "--launch-grace", "30s")
_LIMIT = 3
_LONG_MS = 3000


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    case: str
    outcome: str
    stated: str
    holds: bool | None
    """None: it cannot be tried here."""


_OF_RUNS = (
    ("idle stacks", ("nothing", "worker"), "the loop's wait, while other threads run"),
    ("own tick late", ("@late-watcher",), "the watcher stopped by SIGSTOP"),
    ("stopped", ("@stop",), "SIGSTOP, half of them in a task"),
    ("frozen", ("@freeze-v1", "@freeze-v2"), "control groups of both versions, frozen"),
    ("debugger", ("@gdb",), "gdb attached, half of them in a task"),
    ("starvation", ("@burners", "@quota"), "12 burners; 5 % of a processor by quota"),
    ("nested and modal loops", ("modal", "modal-idle"), "loops in a callback that serve events"),
    ("many short tasks", ("short-tasks",), "20 to 40 tasks of 3 to 8 ms in a row"),
    ("short garbage collections", ("gc",), "collections of up to 0.75 T"),
)
"""Rules whose cases are part of the scenarios: the name, the actions, and a description."""


def rules_section(command: str, folder: Path, seed: str, runs: Mapping[str, Any]) -> Section:
    """Try the rules that no scenario has, and return the table of all.

    Args:
        command: that does so.
        folder: of the compiled programs.
        seed: of the scenarios.
        runs: counts by action of the sections that ran, by their titles.
    """
    rows = [
        *(_of_runs(*rule, runs=runs) for rule in _OF_RUNS),
        _launch(folder, seed),
        _system_sleep(folder),
        _daily_limit(folder),
        *_one_report(folder, seed),
        _garbage(folder, seed),
        Rule(
            "background",
            "Linux has no processes in the background that are slowed down",
            "not a thing here",
            "–",
            None,
        ),
    ]
    marks = {True: "yes", False: "**no**", None: "–"}
    lines = [
        (
            "Each rule of the specification, with a case whose truth is known. Of the cases in"
            " scenarios,"
            f" the counts are those of {', '.join(runs) or 'no section: none ran'}."
        ),
        "",
        "| rule | case | outcome | stated by incidents | holds |",
        "|---|---|---|---|---|",
        *(f"| {r.name} | {r.case} | {r.outcome} | {r.stated} | {marks[r.holds]} |" for r in rows),
    ]
    return Section("rules", "Rules against false reports", command, {}, lines)


def _of_runs(name: str, actions: Sequence[str], case: str, *, runs: Mapping[str, Any]) -> Rule:
    events = false = 0
    stated: Counter[str] = Counter()
    for data in runs.values():
        for action in actions:
            row = data["actions"].get(action, {"events": 0, "false": 0, "stated": {}})
            events += row["events"]
            false += row["false"]
            stated.update(row["stated"])
    text = ", ".join(f"{each} {count}" for each, count in stated.most_common()) or "–"
    outcome = f"{false} of {events} reported as a hang"
    return Rule(name, case, outcome, text, false * 100 <= events if events else None)


def _launch(folder: Path, seed: str) -> Rule:
    programs = (("c", "epoll"), ("c", "read"), ("python", "asyncio"))
    reported = [
        sum(
            incident.reports_hang
            for program, mode in programs
            for incident in run_launch(program, mode, folder, seed, flags).incidents
        )
        for flags in (WATCH_FLAGS, _GRACE)
    ]
    return Rule(
        "launch grace",
        "three launches of 2.5 s, `--launch-grace 30s`",
        f"{reported[1]} reported; {reported[0]} without the option",
        "–",
        reported[1] == 0,
    )


def _recorded(folder: Path, seconds: float) -> list[ThreadPoll]:
    """Return polls of a program that is idle, has short tasks, and hangs once for 300 ms."""
    steps = [f"{number} burn 40 1\n" for number in range(5)] + ["5 sleep 300 1\n"]
    polls = []
    with Program("c", "epoll", folder) as program:
        program.wait_until_ready()
        with WatchedProcess(program.pid) as target:
            start = time.monotonic_ns()
            while (now := time.monotonic_ns()) < start + seconds * 1e9:
                if steps and now - start > (6 - len(steps)) * 300 * MS:
                    program.send(steps.pop(0))
                polls.append(target.poll_thread(program.pid, with_status=True))
                time.sleep(_POLL_NS / 1e9)
    return polls


def _replay(polls: Sequence[ThreadPoll]) -> list[Seen | Ended]:
    places = Counter(poll.call.place for poll in polls if poll.call is not None)
    ((idle, _),) = places.most_common(1)
    waits = RootWaits(Arch.X86_64)
    waits.add(idle, NamedWait(WaitRole.ROOT, "main"))
    classifier = HangClassifier(THRESHOLD_MS * MS, _POLL_NS, waits)
    seen: list[Seen | Ended] = []
    for poll in polls:
        events = list(classifier.add(poll))
        for event in events:
            if isinstance(event, LearnWait):
                events += classifier.learnt(event.place, NamedWait(WaitRole.OTHER, "task"))
            elif isinstance(event, Seen) or (isinstance(event, Ended) and event.was_seen):
                seen.append(event)
    return [each for each in seen if each.absence.verdict.is_hang]


def _system_sleep(folder: Path) -> Rule:
    """Let the system sleep for an hour at each of many recorded polls."""
    polls = _recorded(folder, 3)
    wrong = stated = 0
    before = [type(event) for event in _replay(polls)]
    for index in range(1, len(polls)):
        asleep = [
            poll if number < index else poll._replace(boot_ns=poll.boot_ns + _HOUR_NS)
            for number, poll in enumerate(polls)
        ]
        events = _replay(asleep)
        last = events[-1].absence if events else None
        is_right = [type(event) for event in events] == before and (
            last is None or abs(last.duration_ns - 300 * MS) < 2 * _POLL_NS
        )
        wrong += not is_right
        stated += last is not None and any(rule.name == "system-sleep" for rule in last.rules)
    return Rule(
        "system sleep",
        f"{len(polls)} polls recorded of a program with a hang of 300 ms (this machine cannot"
        " sleep):"
        " an hour of sleep between each two",
        f"{wrong} of {len(polls) - 1} change the one hang or its duration",
        f"system-sleep {stated}",
        wrong == 0 and len(before) > 0,
    )


def _daily_limit(folder: Path) -> Rule:
    incidents: list[WatchIncident] = []
    options = WatchOptions(hang_ns=THRESHOLD_MS * MS, daily_limit=_LIMIT, deadlocks=False)
    with Program("c", "epoll", folder) as program:
        program.wait_until_ready()
        is_over = threading.Event()
        with Watcher(program.pid, options, incidents.append) as watcher:
            thread = threading.Thread(
                target=watcher.run,
                args=(60_000 * MS,),
                kwargs={"should_stop": is_over.is_set},
            )
            thread.start()
            time.sleep(0.5)
            for number in range(2 * _LIMIT):
                program.send(f"{number} sleep 200 1\n")
                program.wait_for(number)
                time.sleep(0.1)
            is_over.set()
            thread.join()
    count = len({incident.id for incident in incidents})
    return Rule(
        "daily limit",
        f"{2 * _LIMIT} hangs with a limit of {_LIMIT}",
        f"{count} reported",
        "–",
        count == _LIMIT,
    )


def _one_report(folder: Path, seed: str) -> list[Rule]:
    steps = tuple(
        Step(number, name, _LONG_MS, 1, 100) for number, name in enumerate(("sleep", "burn"))
    )
    run = run_scenario(Scenario("c", "epoll", seed, steps), folder)
    score = Score()
    score.add("c epoll", run.events, run.incidents)
    errors = {match.event.action: abs(in_ms(match.duration_error or 0)) for match in score.matches}
    is_single = len(score.matches) == len(steps) and not score.repeated and not score.false
    is_exact = all(error <= _POLL_NS / MS for error in errors.values())
    return [
        Rule(
            "one report of a hang",
            f"{len(steps)} hangs of {_LONG_MS} ms, blocked and busy",
            f"{len(score.matches) + score.repeated} reports of {len(steps)} hangs",
            "–",
            is_single,
        ),
        Rule(
            "capture time taken out",
            "the same: the error of the duration",
            ", ".join(f"{name} {error:.1f} ms" for name, error in errors.items()) or "none",
            "–",
            is_single and is_exact,
        ),
    ]


def _garbage(folder: Path, seed: str) -> Rule:
    steps = tuple(Step(number, "gc", 1200, 1, 100) for number in range(3))
    run = run_scenario(Scenario("python", "asyncio", seed, steps), folder)
    collections = [event for event in run.events if event.duration > 125 * MS]
    named = [
        incident
        for incident in run.incidents
        if incident.reports_hang
        and ("garbage-collection" in incident.rules or "gc" in (incident.native or ""))
    ]
    return Rule(
        "garbage collection named",
        f"{len(collections)} collections of more than 1.25 T by CPython",
        f"{len(named)} reported as collections",
        ", ".join(sorted({f"native {each.native}" for each in named})) or "–",
        len(named) == len(collections) if collections else None,
    )
