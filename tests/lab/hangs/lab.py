"""The lab of hangs: ``python -m tests.lab.hangs.lab [SECTION...]``; see the folder's README.

Each section is measured and stored in ``build/hang-lab``, also if a later one is interrupted.
``--write`` writes the page of all stored sections after each. The exit status is 1 if a section
could not be measured, and 130 after an interruption.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.support.hangs import deadlocks, resources
from tests.support.hangs.costs import cost_section, gil_figure, gil_section, pause_section
from tests.support.hangs.hang_section import hang_section, skipped_disturbances
from tests.support.hangs.kills import kills_section
from tests.support.hangs.page import page
from tests.support.hangs.peers import peer_section
from tests.support.hangs.programs import LabError, build, burners, missing_reason
from tests.support.hangs.rules import rules_section
from tests.support.hangs.runner import Run, run_alone, run_idle, run_own, run_scenario
from tests.support.hangs.scenarios import (
    DISTURBANCES,
    LOADED_DISTURBANCES,
    MODES,
    Scenario,
    Step,
    create_scenario,
    create_scenarios,
)
from tests.support.hangs.scoring import Score
from tests.support.hangs.sections import Section, Stamp, load_section
from tests.support.hangs.soak import cycles_section, soak, soak_section

SEED = "14"
HANGS, QUIET = 220, 1050
"""More than 200 and 1,000: some events do not count, as the host prolongs them."""
FOLDER = Path("build/hang-lab")
SECTIONS = FOLDER / "sections"
BURNERS = 12
COMMAND = "python -m tests.lab.hangs.lab"
_AT_ONCE = 4
"""Programs beside the burners; alone, one at a time."""
_GIL_STEPS = tuple(
    Step(number, ("gil-burn", "gil-sleep")[number % 2], 300, 1, 60) for number in range(100)
)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
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
        self._cycles: int = arguments.cycles
        self._only: str | None = arguments.only
        self.folder = (FOLDER / "programs").absolute()
        build(self.folder)
        self.skipped = [
            f"{program}: {reason}"
            for program in MODES
            if (reason := missing_reason(program)) is not None
        ] + skipped_disturbances()
        self.programs = tuple(program for program in MODES if missing_reason(program) is None)
        self.sections: dict[str, Callable[[], Sequence[Section]]] = {
            "idle": self.idle,
            "loaded": self.loaded,
            "rules": self.rules,
            "gil": self.gil,
            "self": self.own,
            "self-loaded": self.own_loaded,
            "cost": self.cost,
            "pause": self.pause,
            "kills": self.kills,
            "resources": self.resources,
            "deadlocks": self.deadlocks,
            "cycles": self.cycles,
            "soak": self.soak,
        }

    def _command(self, name: str) -> str:
        return f"{COMMAND} {name} --seed {self._seed}"

    def _scenarios(self, acts: tuple[str, ...] = DISTURBANCES) -> list[Scenario]:
        scenarios = create_scenarios(
            self._seed, self.programs, hangs=self._hangs, quiet=self._quiet, disturbances=acts
        )
        return [
            scenario for scenario in scenarios if self._only is None or self._only in scenario.name
        ]

    def _run(
        self,
        scenarios: Sequence[Scenario],
        measure: Callable[[Scenario], Run],
        at_once: int = 1,
    ) -> list[Run]:
        runs: list[Run] = []

        def run(scenario: Scenario) -> Run | None:
            try:
                done = measure(scenario)
            except LabError as error:
                _say(f"{scenario.name}, seed {scenario.seed}: {error}")
                return None
            score = Score()
            score.add(scenario.name, done.events, done.incidents)
            _say(
                f"{scenario.name}, seed {scenario.seed}: {len(score.matches)} of"
                f" {score.hang_count} hangs, {score.false_events} of {score.quiet_count} false,"
                f" {done.seconds:.0f} s, exit status {done.status}"
            )
            return done

        with ThreadPoolExecutor(at_once) as pool:
            runs += [done for done in pool.map(run, scenarios) if done is not None]
        if not runs:
            raise LabError("no program could be run")
        return runs

    def _watched(self, scenario: Scenario) -> Run:
        return run_scenario(scenario, self.folder)

    def _reported(self, scenario: Scenario) -> Run:
        reports = self.folder / "reports" / scenario.name.replace(" ", "-")
        return run_scenario(scenario, self.folder, reports=reports)

    def _own(self, scenario: Scenario) -> Run:
        return run_own(scenario, self.folder)

    def idle(self) -> Sequence[Section]:
        """Measure hangs on a machine with nothing else to do, and peers' rules on the samples."""
        runs = self._run(self._scenarios(), self._reported)
        title = "Hangs, nothing else running"
        command = self._command("idle")
        return (
            hang_section("idle", title, command, runs, self.skipped, margin_ms=25),
            peer_section(command, runs),
        )

    def loaded(self) -> Sequence[Section]:
        """Measure the same hangs beside burners."""
        with burners(BURNERS, self.folder):
            runs = self._run(self._scenarios(LOADED_DISTURBANCES), self._watched, _AT_ONCE)
        title = f"Hangs beside {BURNERS} burners, {_AT_ONCE} programs at a time"
        command = self._command("loaded")
        return [hang_section("loaded", title, command, runs, self.skipped, margin_ms=50)]

    def rules(self) -> Sequence[Section]:
        """Try the rules against false reports."""
        sections = (load_section(SECTIONS, name) for name in ("idle", "loaded"))
        runs = {f"`{section.name}`": section.data for section in sections if section is not None}
        return [rules_section(self._command("rules"), self.folder, self._seed, runs)]

    def gil(self) -> Sequence[Section]:
        """Measure hangs with the interpreter lock held."""
        runs = self._run([Scenario("python", "asyncio", self._seed, _GIL_STEPS)], self._watched)
        return [gil_section(self._command("gil"), runs)]

    def own(self) -> Sequence[Section]:
        """Measure programs that watch themselves."""
        scenarios = self._own_scenarios(("asyncio", "selector"), self._hangs // 4, DISTURBANCES)
        runs = self._run(scenarios, self._own)
        runs += self._run([Scenario("python", "asyncio", self._seed, _GIL_STEPS)], self._own)
        section = hang_section(
            "self", "Programs that watch themselves", self._command("self"), runs, margin_ms=25
        )
        score = Score()
        score.add("python asyncio", runs[-1].events, runs[-1].incidents)
        return [replace(section, figures={**section.figures, "2": gil_figure(score)})]

    def own_loaded(self) -> Sequence[Section]:
        """Measure the same beside burners."""
        scenarios = self._own_scenarios(("asyncio", "queue"), self._hangs // 5, LOADED_DISTURBANCES)
        with burners(BURNERS, self.folder):
            runs = self._run(scenarios, self._own, _AT_ONCE)
        title = f"Programs that watch themselves beside {BURNERS} burners"
        command = self._command("self-loaded")
        return [hang_section("self-loaded", title, command, runs, margin_ms=50)]

    def _own_scenarios(
        self, modes: Sequence[str], hangs: int, acts: Sequence[str]
    ) -> list[Scenario]:
        each = hangs // len(modes)
        acts = tuple(name for name in acts if name != "@late-watcher")
        return [
            create_scenario(
                "python", mode, self._seed, hangs=each, quiet=2 * each, disturbances=acts
            )
            for mode in modes
        ]

    def cost(self) -> Sequence[Section]:
        """Measure the cost of watching idle programs, all at the same time."""
        modes = [("c", mode) for mode in ("epoll", "epoll-30ms", "poll")]
        modes += [("python", mode) for mode in ("asyncio", "asyncio-ticks", "queue")]
        with ThreadPoolExecutor(len(modes)) as pool:
            runs = pool.map(lambda one: run_idle(*one, self.folder, self._seconds), modes)
            return [cost_section(f"{self._command('cost')} --seconds {self._seconds:g}", [*runs])]

    def pause(self) -> Sequence[Section]:
        """Measure pauses by the target's own clock."""
        steps = tuple(
            Step(number, ("sleep", "clock")[number % 2], 250, 1, 60) for number in range(80)
        )
        scenario = Scenario("c", "epoll", self._seed, steps)
        (watched,) = self._run([scenario], self._watched)
        alone = run_alone(replace(scenario, steps=steps[:40]), self.folder)
        return [pause_section(self._command("pause"), watched, alone)]

    def kills(self) -> Sequence[Section]:
        """Kill watchers and programs."""
        count = min(self._hangs // 2, 100)
        return [kills_section(self._command("kills"), self.folder, count, self._seed, _say)]

    def resources(self) -> Sequence[Section]:
        """Use processor time and memory."""
        quick, jumps = max(2, self._hangs // 20), max(4, self._hangs // 5)
        cases = resources.measure(self.folder, self._seed, quick, jumps, _say)
        return [resources.resource_section(self._command("resources"), cases)]

    def deadlocks(self) -> Sequence[Section]:
        """Prove deadlocks of known programs."""
        results = deadlocks.measure(self.folder, self._quiet, _say)
        idle = load_section(SECTIONS, "idle")
        hangs = {} if idle is None else idle.data
        return [deadlocks.deadlock_section(self._command("deadlocks"), results, hangs)]

    def cycles(self) -> Sequence[Section]:
        """Arm and disarm watchdogs."""
        command = f"{self._command('cycles')} --cycles {self._cycles}"
        return [cycles_section(command, self.folder, self._cycles, BURNERS)]

    def soak(self) -> Sequence[Section]:
        """Watch for long."""
        course = soak(self.folder, self._minutes, self._seed, _say)
        command = f"{self._command('soak')} --minutes {self._minutes:g}"
        return [soak_section(command, self._minutes, course)]


_LONG = ("cycles", "soak")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "section", nargs="*", help=f"some, or all but {' and '.join(_LONG)}; none: page only"
    )
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--hangs", type=int, default=HANGS)
    parser.add_argument("--quiet", type=int, default=QUIET, help="events that are no hangs")
    parser.add_argument("--seconds", type=float, default=30, help="of the idle programs")
    parser.add_argument("--minutes", type=float, default=20, help="of the soak")
    parser.add_argument("--cycles", type=int, default=10_000, help="of watchdogs")
    parser.add_argument("--only", metavar="TEXT", help="programs whose names contain it")
    parser.add_argument("--print", action="store_true", help="print the sections, store nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    return parser


def _deliver(section: Section, *, is_printed: bool) -> None:
    if is_printed:
        sys.stdout.write("\n".join([f"# {section.title}", section.stamp, *section.lines, ""]))
    else:
        section.save(SECTIONS)
    for goal, figure in section.figures.items():
        _say(f"goal {goal}: {figure.text}; reached: {figure.is_reached}")


def main(arguments: list[str] | None = None) -> int:
    """Measure sections, and write the page."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    lab = Lab(parsed)
    every = [name for name in lab.sections if name not in _LONG]
    wanted = every if "all" in parsed.section else parsed.section
    for name in wanted:
        if name not in lab.sections:
            parser.error(f"no section {name}: there are {', '.join(lab.sections)}")
    failed = False
    for number, name in enumerate(wanted, 1):
        _say(f"section {name} ({number} of {len(wanted)})")
        stamp = Stamp(parsed.seed)
        try:
            sections = [replace(each, stamp=str(stamp)) for each in lab.sections[name]()]
        except KeyboardInterrupt:
            _say(f"{name}: interrupted; the sections before it are stored")
            return 130
        except LabError as error:
            _say(f"{name}: {error}")
            failed = True
            continue
        for section in sections:
            _deliver(section, is_printed=parsed.print)
        if parsed.write is not None:
            parsed.write.write_text(page(SECTIONS), encoding="utf-8")
    if parsed.write is not None and not wanted:
        parsed.write.write_text(page(SECTIONS), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
