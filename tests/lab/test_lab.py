"""The lab in short: all we have against the truth, at every instruction of emulated programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lab.architectures import ARCHITECTURES
from tests.support.lab.builds import Built, builds, make
from tests.support.lab.policies import documents_policy, policies
from tests.support.lab.rows import disassembled
from tests.support.lab.run import Conditions, Result, run

_BETWEEN_SIGNALS = 31
PROGRAMS = Path(__file__).parent / "programs"
BUILDS = [
    # Each program on each architecture, and each way of building on some program.
    ("arm64", "leaves", "-Oz", "compact"),
    ("arm64", "frames", "-O2 no fp", "compact"),
    ("arm64", "registers", "-O2 pac", "compact"),
    ("arm64", "pushes", "-O2", "compact"),
    ("arm64", "pushes", "-O2 no fp", "compact"),
    ("arm64", "pushes", "-O1", "dwarf"),
    ("arm64", "switches", "-O0", "dwarf"),
    ("arm64", "alike", "-Oz shared", "compact"),
    ("arm64", "async", "-O2", "compact"),
    ("arm64", "jumps", "-O1", "compact"),
    ("arm64", "fibers", "-O2", "compact"),
    ("arm64", "frames", "-O2 probes no fp", "compact"),
    ("arm64", "stubs", "-Os", "compact"),
    ("arm64", "signals", "-O2", "compact"),
    ("arm64", "virtual", "-O3", "compact"),
    ("arm64e", "leaves", "-O2", "compact"),
    ("arm64e", "switches", "-Oz", "compact"),
    ("arm64e", "async", "-O1", "compact"),
    ("x86_64", "leaves", "-O2", "compact"),
    ("x86_64", "frames", "-O2 no fp", "compact"),
    ("x86_64", "registers", "-Os", "compact"),
    ("x86_64", "pushes", "-Os", "compact"),
    ("x86_64", "pushes", "-O2 no fp", "compact"),
    ("x86_64", "pushes", "-O2 no fp", "dwarf"),
    ("x86_64", "switches", "-O2 no fp", "dwarf"),
    ("x86_64", "alike", "-Oz", "compact"),
    ("x86_64", "async", "-O1", "compact"),
    ("x86_64", "jumps", "-O2", "compact"),
    ("x86_64", "fibers", "-O2", "compact"),
    ("x86_64", "frames", "-O2 probes", "compact"),
    ("x86_64", "signals", "-O2", "compact"),
    ("x86_64", "stubs", "-Oz", "compact"),
    ("x86_64", "virtual", "-O1", "compact"),
    ("i386", "leaves", "-O2 no fp", "compact"),
    ("i386", "registers", "-Oz no fp", "dwarf"),
    ("i386", "switches", "-O2 no fp", "compact"),
    ("i386", "conventions", "-O2 no fp", "compact"),
    ("i386", "jumps", "-O1", "compact"),
    ("i386", "fibers", "-O2 no fp", "compact"),
    ("i386", "signals", "-O2 no fp", "compact"),
    ("i386", "stubs", "-Os", "compact"),
    ("armv7", "leaves", "-Oz", "compact"),
    ("armv7", "frames", "-O2 no fp", "compact"),
    ("armv7", "encodings", "-O0", "compact"),
    ("armv7", "switches", "-O2", "compact"),
    ("armv7-arm", "registers", "-O2", "compact"),
    ("armv7-arm", "encodings", "-O0", "compact"),
    ("armv7-arm", "switches", "-O2", "compact"),
    ("armv7k", "registers", "-O2", "compact"),
    ("armv7k", "leaves", "-O2", "dwarf"),
    ("armv7k-arm", "frames", "-O0", "compact"),
]


def built(
    directory: Path, architecture: str, program: str, optimisation: str, tables: str
) -> Built:
    """One build of the lab."""
    (build,) = builds([program], [architecture], [optimisation], [tables])
    return make(build, PROGRAMS, directory)


@pytest.mark.parametrize(("architecture", "program", "optimisation", "tables"), BUILDS)
def test_every_instruction_has_a_wholly_right_stack(
    architecture: str, program: str, optimisation: str, tables: str, tmp_path: Path
):
    """No frame is missed or invented, with symbols or stripped, and registers are as they were."""
    made = built(tmp_path, architecture, program, optimisation, tables)
    chosen = {
        "everything": policies(made.contents)["everything"],
        "stripped": policies(made.stripped)["everything"],
    }
    conditions = made.conditions
    if conditions.signals is not None:  # long, and each place comes in many combinations
        conditions = replace(conditions, every=_BETWEEN_SIGNALS)
    result = run(made.contents, chosen, conditions)
    for name, score in result.scores.items():
        assert score.executed > 80, "the program ran"
        assert score.right == score.executed, failures(made, result, name)
    assert not result.bad_registers, "a caller's register has another value than it had"


def test_each_program_and_each_architecture_is_looked_at():
    """A new program gets its place in the list above."""
    covered = {(architecture, program) for architecture, program, _, _ in BUILDS}
    # The others share what these show: some programs are enough.
    wanted = {
        (build.architecture.name, build.program.name)
        for build in builds(architectures=["arm64", "x86_64"])
    }
    assert wanted <= covered
    assert set(ARCHITECTURES) == {architecture for architecture, _ in covered}


def test_the_documents_algorithm_does_not(tmp_path: Path):
    """The same truth rejects wrong stacks: the comparison does not pass everything."""
    made = built(tmp_path, "arm64", "leaves", "-O2", "compact")
    result = run(made.contents, {"documents": documents_policy}, Conditions())
    score = result.scores["documents"]
    assert 40 < score.percent < 65
    found, truth = next(iter(score.examples.values()))
    assert found != truth


def failures(made: Built, result: Result, name: str) -> str:
    """Where a policy was wrong, for people."""
    score = result.scores[name]
    lines = [f"{score.percent:.2f} % of {score.executed}, {name}"]
    for pc in sorted(score.wrong):
        found, truth = score.examples[pc]
        lines.append(f"{pc:#x}: {disassembled(made.contents, pc)}")
        lines.append(f"  found {' '.join(map(hex, found))}")
        lines.append(f"  truth {' '.join(map(hex, truth))}")
    return "\n".join(lines)
