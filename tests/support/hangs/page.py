"""The page ``docs/watch-accuracy.md``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.hangs.sections import Section, load_section

ORDER = (
    *("idle", "loaded", "peers", "rules", "gil", "self", "self-loaded", "cost", "pause"),
    *("kills", "resources", "deadlocks", "cycles", "soak"),
)
"""The names of all sections, in the page's order."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, the figure to beat, and the sections with the figures that were reached."""

    number: str
    subject: str
    wanted: str
    anchor: str
    sections: tuple[str, ...]


GOALS = (
    Goal(
        "1",
        "Latency",
        "T = 100 ms: p99 ≤ T + 25 ms idle, ≤ T + 50 ms with 12 burners",
        "Firefox BHR 128 + 32 ms; KSCrash 250 ms; Sentry 1.2 × 2 s; matrix 2–3 s; window server ~20 s;"
        " a Python thread 100–114 ms, 600 ms with the GIL held",
        ("idle", "loaded", "self", "self-loaded"),
    ),
    Goal(
        "2",
        "GIL held in C for 300 ms",
        "100 of 100 within T + 25 ms, native and Python frames",
        "a Python watchdog thread: 0 of 3; headroom #3178: 24 unseen",
        ("gil", "self"),
    ),
    Goal(
        "3",
        "False reports",
        "≤ 1 % of what is no hang, 0 while idle; rules against noise: the table below",
        "46.6 % (c11), ~79 of 79 (sentry #8899), 6 of 6 sleeps (hermes), 6 of 7 starved (KiroCrew),"
        " 90 of 100 without an app frame (Prowl)",
        ("idle", "loaded", "self"),
    ),
    Goal(
        "4",
        "Recall",
        "≥ 99.5 % of hangs ≥ 1.25 T, 0 of ≤ 0.75 T; error of the duration ≤ 20 ms",
        "matrix: none below 2 s; Sentry V2: ±400 ms at 2 s; Datadog: 2.5 % of T",
        ("idle", "loaded"),
    ),
    Goal(
        "5",
        "Culprit",
        "named in ≥ 95 %, ≤ 3 groups per culprit",
        "last stack and matrix's point stack: the table below; burrow: 81 groups for one hang",
        ("idle", "loaded"),
    ),
    Goal(
        "6",
        "Cost of watching",
        "≤ 0.05 % of a core at 50 Hz, no stop and no signal while nothing is wrong",
        "matrix +3 % of the processor; MTHawkeye 353 + 157 µs a poll; floor 2.3 µs a poll (0.012 %)",
        ("cost",),
    ),
    Goal(
        "7",
        "Pause at the trigger",
        "blocked 0 µs; running ≤ 200 µs median, ≤ 1 ms p99",
        "py-spy --native 35.1 ms; pystack 147 ms; gdb 446 ms; KSCrash: the whole report's write",
        ("pause",),
    ),
    Goal(
        "8",
        "Safety",
        "10,000 cycles without a crash; SIGKILL in a hang: readable record 100 of 100",
        "faulthandler 1 of 1 and 6 of 13 (underworld3); KSCrash's 40 bytes",
        ("cycles", "kills", "soak"),
    ),
    Goal(
        "9",
        "Processor and memory",
        "hot thread 100 %, share ± 2 points, 80 %/60 s in ≤ 62 s, 90 %/5 s in ≤ 6 s; jump ≤ 200 ms,"
        " thread ≥ 95 %",
        "KSCrash polls each 5 s, no thread; ProcDump: lifetime mean; KOOM 15 s × 3; matrix 5 s; HUATUO"
        " 10 s",
        ("resources",),
    ),
    Goal(
        "10",
        "Deadlocks",
        "100 % of cycles by owner, 0 false in 1,000, within T + 2 polls",
        "KSCrash's ping exits the app; ByteDance reads mutexes only",
        ("deadlocks",),
    ),
)

_TITLES = {
    "idle": "idle",
    "loaded": "12 burners",
    "gil": "from outside",
    "self": "inside the process",
    "self-loaded": "inside the process, 12 burners",
    "soak": "soak",
    "cycles": "cycles",
}
_MARKS = {True: "yes", False: "**no**", None: "–"}


def page(folder: Path) -> str:
    """Return the page of all stored sections."""
    sections = {name: load_section(folder, name) for name in ORDER}
    lines = [
        "# Accuracy of watching",
        "",
        "Programs in C, Python and node follow scenarios and state when each callback began and ended.",
        "`machtrace watch PID --hang 100ms --format jsonl` watches them from outside; its lines are",
        "compared with what the programs stated. A hang lasts 1.25 T or more, T being the threshold;",
        "tasks of up to 0.75 T, rows of short tasks, nested loops, stops, frozen groups, quotas,",
        "debuggers, burners and a late watcher are no hangs. `make hang-lab` measures and writes this",
        "page, `make hang-soak` its last sections; a scenario is determined by the seed, the program and",
        "the mode of its loop. Each section has the command that measures it again.",
        "",
        "## Goals",
        "",
        "| | goal | figure to beat | figure that was reached | reached | command | anchors |",
        "|--:|---|---|---|---|---|---|",
    ]
    for goal in GOALS:
        rows = [_reached(goal, name, sections[name]) for name in goal.sections]
        lines.append(
            f"| {goal.number} | {goal.subject} | {goal.wanted} |"
            f" {'<br>'.join(text for text, _, _ in rows)} |"
            f" {'<br>'.join(mark for _, mark, _ in rows)} |"
            f" {'<br>'.join(command for _, _, command in rows)} | {goal.anchor} |"
        )
    lines += ["", "Commands begin with `python -m tests.lab.hangs.lab`.", ""]
    for section in sections.values():
        if section is not None:
            lines += [
                f"## {section.title}",
                "",
                f"`{section.command}`: {section.stamp}.",
                "",
                *section.lines,
                "",
            ]
    return "\n".join(lines)


def _reached(goal: Goal, name: str, section: Section | None) -> tuple[str, str, str]:
    title = f"{_TITLES[name]}: " if name in _TITLES and len(goal.sections) > 1 else ""
    command = f"`{name}`"
    if section is None or goal.number not in section.figures:
        return f"{title}not measured yet", "–", command
    figure = section.figures[goal.number]
    return f"{title}{figure.text}", _MARKS[figure.is_reached], command
