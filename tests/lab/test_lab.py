"""The lab in short: all we have against the truth, at every instruction of emulated programs."""

from __future__ import annotations

from pathlib import Path

import capstone
import pytest

from machtrace.macho.contents import FileContents
from machtrace.model.arch import Arch
from machtrace.testing.lab import Score, documents_policy, policies, run
from machtrace.testing.lab_builds import build_program, unpreserved_registers

PROGRAMS = Path(__file__).parent / "programs"
BUILDS = [
    ("leaves", "-O2"),
    ("leaves", "-Oz"),
    ("frames", "-O2 no fp"),
    ("switches", "-O0"),
    ("alike", "-Oz"),
    ("alike", "-Oz shared"),
    ("registers", "-O2 pac"),
    ("async", "-O2"),
]


@pytest.mark.parametrize(("name", "optimisation"), BUILDS)
def test_every_instruction_has_a_wholly_right_stack(name: str, optimisation: str, tmp_path: Path):
    """Compact tables and instruction analysis together never miss or invent a frame."""
    contents = build_program(PROGRAMS, name, tmp_path / name, optimisation=optimisation)
    chosen = {"everything": policies(contents)["everything"]}
    result = run(contents, chosen, unpreserved=unpreserved_registers(name, optimisation))
    score = result.scores["everything"]
    assert score.executed > 80, "the program ran"
    assert score.right == score.executed, _failures(contents, score)
    assert not result.bad_registers, "a caller's register has another value than it had"


@pytest.mark.parametrize(
    ("name", "optimisation"),
    [("leaves", "-O2"), ("frames", "-O2 no fp"), ("switches", "-O2 no fp"), ("async", "-O1")],
)
def test_the_same_of_x86_64(name: str, optimisation: str, tmp_path: Path):
    """Its own instruction analysis, with the same lab."""
    arch = Arch.X86_64
    contents = build_program(PROGRAMS, name, tmp_path / name, optimisation=optimisation, arch=arch)
    chosen = {"everything": policies(contents)["everything"]}
    result = run(contents, chosen, unpreserved=unpreserved_registers(name, optimisation, arch))
    score = result.scores["everything"]
    assert score.executed > 80, "the program ran"
    assert score.right == score.executed, _failures(contents, score)
    assert not result.bad_registers, "a caller's register has another value than it had"


def test_the_documents_algorithm_does_not(tmp_path: Path):
    """The same truth tells wrong stacks from right ones: it is not that anything passes."""
    contents = build_program(PROGRAMS, "leaves", tmp_path / "leaves", optimisation="-O2")
    score = run(contents, {"documents": documents_policy}).scores["documents"]
    assert 40 < score.percent < 65
    found, truth = next(iter(score.examples.values()))
    assert found != truth


def test_functions_without_symbols_or_starts(tmp_path: Path):
    """Where the linker wrote no function starts and symbols are stripped, there is still code."""
    contents = build_program(
        PROGRAMS, "leaves", tmp_path / "leaves", optimisation="-O1", link_options=["-s"]
    )
    score = run(contents, {"everything": policies(contents)["everything"]}).scores["everything"]
    assert score.right == score.executed, _failures(contents, score)


def _failures(contents: FileContents, score: Score) -> str:
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    if contents.image.arch is Arch.X86_64:
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    lines = [f"{score.percent:.2f} % of {score.executed}"]
    for pc in sorted(score.wrong):
        found, truth = score.examples[pc]
        code = bytes(contents.read_svma(pc, 4))
        text = next((f"{i.mnemonic} {i.op_str}" for i in decoder.disasm(code, pc)), code.hex())
        lines.append(f"{pc:#x}: {text}")
        lines.append(f"  found {' '.join(map(hex, found))}")
        lines.append(f"  truth {' '.join(map(hex, truth))}")
    return "\n".join(lines)
