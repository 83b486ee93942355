"""Each call has the state of the app that it was made in, whatever becomes of its event."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import AppState, Spool
from tests.agent import spool_format
from tests.agent.build import build, numbers, run
from tests.agent.test_hooks import LINKED, shared

pytestmark = pytest.mark.live
ABSENT, GIVEN, WITHDRAWN, BACKGROUND = 1, 2, 3, 4


@pytest.mark.parametrize("count", [20, 20_000])
def test_calls_have_the_state_that_they_were_made_in(
    built: Path, tmp_path: Path, count: int
) -> None:
    """With many calls, most are in cells alone."""
    path, threads = tmp_path / "app.spool", 8
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}"]
    program = build(built, "consent.c", LINKED, link=link)
    seen = numbers(run(program, path, threads, count))
    spool = spool_format.read(path)
    number = spool_format.rules(spool)["observed"].number
    sums: Counter[int] = Counter()
    for (rule, _), calls in spool.sums().items():
        if rule % 512 == number:
            sums[rule >> 9] += calls
    whole = threads * count
    assert sums[ABSENT] == whole + count
    assert sums[GIVEN | BACKGROUND] == whole
    assert sums[WITHDRAWN] == whole
    last = sums[0], sums[GIVEN] - whole
    assert sum(last) == sum(seen.values()) == whole
    assert seen["before"] <= last[0] <= seen["before"] + seen["between"]
    assert seen["after"] <= last[1] <= seen["after"] + seen["between"]

    parsed = Spool.read(path)
    by_state: Counter[int] = Counter()
    for row in parsed.sums(by_state=True):
        if row["rule"] == number:
            by_state[int(row["state"])] += int(row["calls"])
    assert by_state == +sums
    states = [int(mark.state) for mark in parsed.marks]
    assert states == [GIVEN, GIVEN | BACKGROUND, GIVEN | BACKGROUND, GIVEN, WITHDRAWN, 0, GIVEN]
    assert parsed.marks[2].text == "the app is in the background"
    assert parsed.marks[2].state == AppState(GIVEN | BACKGROUND)
    is_given = {bool(event["state"] & GIVEN) for event in parsed.events}
    assert is_given <= {True, False}
    command = [sys.executable, "-m", "machtrace", "report", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"absent {whole + count:,}" in text
    assert f"given in the background {whole:,}" in text
    assert f"withdrawn {whole:,}" in text
