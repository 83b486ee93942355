"""The truth that the lab compares with."""

from __future__ import annotations

from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from tests.support.emulated.run import EmulatedRun, Moment
from tests.support.lab.builds import build_program

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_samples_are_what_stepping_shows(arch: Arch, tmp_path: Path):
    """Whole blocks may run unseen: every n-th moment is the same moment, callers' sp and all."""
    contents = build_program(PROGRAMS, "frames", tmp_path / "frames", optimisation="-Oz", arch=arch)

    def shown(every: int) -> list[object]:
        moments: list[object] = []

        def visit(moment: Moment) -> None:
            stack = [(c.registers.pc, c.registers.sp, c.registers.fp) for c in moment.callers]
            moments.append((moment.registers, moment.addresses, stack))

        EmulatedRun(contents).run(visit, every=every)
        return moments

    each = shown(1)
    assert len(each) > 1000
    for every in (2, 7, 100):
        assert shown(every) == each[every::every]


@pytest.mark.parametrize("every", [1, 50])
def test_jump_to_nowhere_is_a_fault_of_the_program(tmp_path: Path, every: int):
    """As any other fault: its row reports it, and other programs are still measured."""
    contents = build_program(PROGRAMS, "leaves", tmp_path / "leaves", optimisation="-O0")
    entry = contents.image.entry
    assert entry is not None
    start = contents.image.header_svma + entry.entryoff
    jump = bytes.fromhex("000080d200001fd6")  # mov x0, #0; br x0
    with pytest.raises(AssertionError, match="faulted at 0x0"):
        EmulatedRun(contents, {start: jump}).run(lambda _: None, every=every)
