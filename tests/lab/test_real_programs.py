"""Programs that other people wrote, in short; ``run.py --fetch`` has them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab.architectures import ARCHITECTURES
from tests.support.lab.builds import Build, make
from tests.support.lab.policies import policies
from tests.support.lab.real_programs import libc_program, real_programs
from tests.support.lab.run import run

LAB = Path(__file__).parent
FETCHED = LAB.parents[1] / "build" / "lab-sources"


def assert_whole(build: Build, directory: Path, at_least: int) -> None:
    """Every compared stack is right, and so is every known register."""
    made = make(build, LAB / "programs", directory)
    chosen = {"everything": policies(made.contents)["everything"]}
    result = run(made.contents, chosen, made.conditions)
    score = result.scores["everything"]
    assert result.instructions > at_least
    assert not score.wrong, {hex(pc): found for pc, (found, _) in score.examples.items()}
    assert not result.bad_registers


@pytest.mark.parametrize(("arch", "optimisation"), [("arm64", "-Oz"), ("x86_64", "-O2")])
def test_the_library_that_real_programs_stand_on(arch: str, optimisation: str, tmp_path: Path):
    """Formats, exact numbers, callbacks and longjmp: it checks its own results as it runs."""
    build = Build(libc_program(LAB), ARCHITECTURES[arch], optimisation, "compact")
    assert_whole(build, tmp_path, 20_000)


def test_an_interpreter(tmp_path: Path):
    """Lua, with errors and coroutines, at each instruction that it comes to."""
    programs = real_programs(LAB, FETCHED, fetches=False)
    if "lua" not in programs:
        pytest.skip("its sources were not fetched: tests/lab/run.py --fetch does")
    build = Build(programs["lua"], ARCHITECTURES["arm64"], "-Os", "compact")
    assert_whole(build, tmp_path, 1_000_000)
