"""A call of a function that the agent watches, in the program's own clock."""

from __future__ import annotations

import pytest

from tests.agent.build import PROGRAMS, build, library, numbers, run
from tests.agent.test_hooks import shared

PROGRAM = PROGRAMS.parents[2] / "benchmarks" / "programs" / "watched_calls.c"
DEPTH = 35


@pytest.mark.benchmark(group="a call of a watched function, 35 frames")
def test_watched_calls(benchmark, tmp_path):
    link = [str(library(tmp_path)), str(shared(tmp_path, "observed")), f"-Wl,-rpath,{tmp_path}"]
    program = build(tmp_path, str(PROGRAM), (), link=link)
    spool = tmp_path / "app.spool"
    printed = benchmark.pedantic(run, (program, spool, DEPTH), rounds=1)
    benchmark.extra_info.update({f"{name} ns": value for name, value in numbers(printed).items()})
