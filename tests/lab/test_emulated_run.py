"""The truth that the lab compares with."""

from __future__ import annotations

from pathlib import Path

import pytest

from machtrace.model.arch import Arch
from machtrace.testing.emulated_run import EmulatedRun, Moment
from machtrace.testing.lab_builds import build_program

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_samples_are_what_stepping_shows(arch: Arch, tmp_path: Path):
    """Whole blocks may run unseen: every n-th moment is the same moment, callers' sp and all."""
    contents = build_program(PROGRAMS, "frames", tmp_path / "frames", optimisation="-Oz", arch=arch)

    def shown(every: int) -> list[object]:
        found: list[object] = []

        def visit(moment: Moment) -> None:
            stack = [(c.registers.pc, c.registers.sp, c.registers.fp) for c in moment.callers]
            found.append((moment.registers, moment.addresses, stack))

        EmulatedRun(contents).run(visit, every=every)
        return found

    each = shown(1)
    assert len(each) > 1000
    for every in (2, 7, 100):
        assert shown(every) == each[every::every]
