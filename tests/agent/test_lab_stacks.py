"""The agent's stacks at the first instruction of every function of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.lab_stacks import ARCHITECTURES, WITHOUT_RECORD, outcomes

pytestmark = [pytest.mark.peer, pytest.mark.emulated]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_stacks_are_the_true_ones_where_callers_have_frame_pointers(
    arch: str, tmp_path: Path
) -> None:
    programs = ("leaves", "frames", "registers", "pushes", "alike", "jumps", "fibers", "virtual")
    results = list(outcomes(tmp_path, (arch,), programs))
    assert results
    for outcome in results:
        assert outcome.calls
        name = outcome.build.program.name
        assert set(outcome.wrong) <= WITHOUT_RECORD.get(name, set()), outcome.examples
