"""The lab of hangs: ``python -m tests.lab.hangs.lab [SECTION...]``; see the folder's README.

Each section is measured and stored in ``build/hang-lab``. ``--write`` writes the page of all
stored sections. The exit status is 1 if a section could not be measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.hangs import deadlocks, peers, safety
from tests.support.hangs.page import page
from tests.support.hangs.programs import SOURCES, LabError, build, burners, missing_reason
from tests.support.hangs.runner import Run, run_alone, run_idle, run_launch, run_scenario
from tests.support.hangs.scenarios import (
    MODES,
    Scenario,
    Step,
    create_scenario,
    create_scenarios,
)
from tests.support.hangs.scoring import Score
from tests.support.hangs.sections import (
    Section,
    cost_section,
    gil_section,
    hang_section,
    pause_section,
    peer_section,
    skipped_disturbances,
)

SEED = "14"
HANGS, QUIET = 200, 1000
FOLDER = Path("build/hang-lab")
BURNERS = 12
COMMAND = "python -m tests.lab.hangs.lab"
REASONS = {
    "self": "the watcher inside the process has no command; its tests are in tests/live",
}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Lab:
    """The sections, by name."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Build the programs."""
        self._seed: str = arguments.seed
        self._hangs: int = arguments.hangs
        self._quiet: int = arguments.quiet
        self._seconds: float = arguments.seconds
        self._minutes: float = arguments.minutes
        self._only: str | None = arguments.only
        self.folder = FOLDER / "programs"
        build(self.folder.absolute())
        self.folder = self.folder.absolute()
        self.skipped = [
            f"{program}: {reason}"
            for program in MODES
            if (reason := missing_reason(program)) is not None
        ] + skipped_disturbances()
        self.programs = tuple(program for program in MODES if missing_reason(program) is None)
        self.sections: dict[str, Callable[[], Section]] = {
            "idle": self.idle,
            "loaded": self.loaded,
            "gil": self.gil,
            "peers": self.peers,
            "cost": self.cost,
            "pause": self.pause,
            "records": self.records,
            "deadlocks": self.deadlocks,
            "soak": self.soak,
        }

    def _scenarios(self, hangs: int, quiet: int) -> list[Scenario]:
        scenarios = create_scenarios(self._seed, self.programs, hangs=hangs, quiet=quiet)
        return [one for one in scenarios if self._only is None or self._only in one.name]

    def _run(self, scenarios: list[Scenario]) -> list[Run]:
        runs = []
        for scenario in scenarios:
            try:
                run = run_scenario(scenario, self.folder)
            except LabError as error:
                _say(f"{scenario.name}, seed {scenario.seed}: {error}")
                continue
            score = Score()
            score.add(scenario.name, run.events, run.incidents)
            _say(
                f"{scenario.name}, seed {scenario.seed}: {len(score.matches)} of"
                f" {score.hang_count} hangs, {score.false_events} of {score.quiet_count} false,"
                f" {run.seconds:.0f} s, exit status {run.status}"
            )
            runs.append(run)
        return runs

    def _command(self, name: str) -> str:
        return f"{COMMAND} {name} --seed {self._seed}"

    def idle(self) -> Section:
        """Measure hangs on a machine with nothing else to do."""
        runs = self._run(self._scenarios(self._hangs, self._quiet))
        if self._only is None:
            runs += [
                run_launch(program, mode, self.folder, self._seed)
                for program, mode in (("c", "epoll"), ("c", "read"), ("python", "asyncio"))
            ]
        title = "Hangs, nothing else running"
        return hang_section("idle", title, self._command("idle"), runs, self.skipped)[0]

    def loaded(self) -> Section:
        """Measure the same hangs beside burners."""
        with burners(BURNERS, self.folder):
            runs = self._run(self._scenarios(self._hangs, self._quiet))
        title = f"Hangs beside {BURNERS} burners"
        return hang_section("loaded", title, self._command("loaded"), runs, self.skipped)[0]

    def gil(self) -> Section:
        """Measure hangs with the interpreter lock held."""
        steps = tuple(
            Step(number, ("gil-burn", "gil-sleep")[number % 2], 300, 1, 60) for number in range(100)
        )
        runs = self._run([Scenario("python", "asyncio", self._seed, steps)])
        return gil_section(self._command("gil"), runs)

    def peers(self) -> Section:
        """Score peers' rules on recorded runs."""
        scores = {name: Score() for name in peers.RULES}
        events = 0
        scenarios = [
            create_scenario(program, mode, self._seed, hangs=40, quiet=60)
            for program, mode in (
                *(("c", mode) for mode in ("epoll", "epoll-30ms", "poll")),
                *(("python", mode) for mode in ("asyncio", "queue")),
            )
        ]
        for scenario in scenarios:
            recording = peers.record(scenario, self.folder, _own_functions(scenario.program))
            events += len(recording.run.events)
            for name, rule in peers.RULES.items():
                scores[name].add(scenario.name, recording.run.events, rule(recording))
            _say(f"{scenario.name}: recorded {len(recording.times)} stacks")
        return peer_section(self._command("peers"), events, scores, len(scenarios), self._seed)

    def cost(self) -> Section:
        """Measure the cost of watching idle programs."""
        modes = [("c", mode) for mode in ("epoll", "epoll-30ms", "poll")]
        modes += [("python", mode) for mode in ("asyncio", "asyncio-ticks", "queue")]
        return cost_section(
            self._command("cost"),
            [run_idle(program, mode, self.folder, self._seconds) for program, mode in modes],
        )

    def records(self) -> Section:
        """Kill watchers and programs."""
        count = min(self._hangs // 2, 100)
        watchers = safety.kill_watchers(self.folder, count, self._seed)
        with TemporaryDirectory() as reports:
            programs = safety.kill_programs(self.folder, count, self._seed, Path(reports))
        return safety.records_section(self._command("records"), watchers, programs)

    def deadlocks(self) -> Section:
        """Prove deadlocks of known programs."""
        results = deadlocks.measure(self.folder, 3, self._quiet, _say)
        return deadlocks.deadlock_section(self._command("deadlocks"), results)

    def soak(self) -> Section:
        """Watch for long."""
        minutes = self._minutes
        sizes = safety.soak(self.folder, minutes, self._seed, _say)
        command = f"{self._command('soak')} --minutes {minutes:g}"
        return safety.soak_section(command, minutes, *sizes)

    def pause(self) -> Section:
        """Measure pauses by the target's own clock."""
        waits = tuple(Step(number, "sleep", 200, 1, 60) for number in range(50))
        clocks = tuple(Step(number, "clock", 300, 1, 60) for number in range(50, 110))
        watched = self._run([Scenario("c", "epoll", self._seed, waits + clocks)])[0]
        alone = run_alone(Scenario("c", "epoll", self._seed, clocks), self.folder)
        return pause_section(
            self._command("pause"),
            [event for event in watched.events if event.action == "sleep"],
            [event for event in watched.events if event.action == "clock"],
            alone,
        )


def _own_functions(program: str) -> frozenset[str]:
    name, pattern = {
        "c": ("loop.c", r"^CULPRIT static void (\w+)\("),
        "python": ("loop.py", r"^def (\w+)\("),
    }[program]
    leaves = {f"leaf_{number}" for number in range(16)}
    return frozenset(re.findall(pattern, (SOURCES / name).read_text(), re.MULTILINE)) | leaves


def main(arguments: list[str] | None = None) -> int:
    """Measure sections, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", nargs="*", help="all but the soak, or some; none: page only")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--hangs", type=int, default=HANGS)
    parser.add_argument("--quiet", type=int, default=QUIET, help="events that are no hangs")
    parser.add_argument("--seconds", type=float, default=30, help="of each idle program")
    parser.add_argument("--minutes", type=float, default=20, help="of the soak")
    parser.add_argument("--only", metavar="TEXT", help="programs whose names contain it")
    parser.add_argument("--print", action="store_true", help="print the sections, store nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parsed = parser.parse_args(arguments)
    lab = Lab(parsed)
    every = [name for name in lab.sections if name != "soak"]
    wanted = every if "all" in parsed.section else parsed.section
    failed = False
    for name in wanted:
        if name not in lab.sections:
            parser.error(f"no section {name}: there are {', '.join(lab.sections)}")
    for name in wanted:
        try:
            section = lab.sections[name]()
        except LabError as error:
            _say(f"{name}: {error}")
            failed = True
            continue
        if parsed.print:
            sys.stdout.write("\n".join([f"# {section.title}", *section.lines, ""]))
            sys.stdout.write("".join(f"goal {n}: {text}\n" for n, text in section.figures.items()))
        else:
            section.save(FOLDER / "sections")
    if parsed.write is not None:
        parsed.write.write_text(page(FOLDER / "sections", REASONS), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
