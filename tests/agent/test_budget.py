"""Functions with a budget of stacks: every call is counted, and some have a stack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent.build import PROGRAMS, build, library, numbers, run
from tests.agent.readers import check_readers_agree
from tests.agent.test_hooks import linked

pytestmark = pytest.mark.live

BURST = 20
BUDGET = 8


@pytest.fixture
def buckets(built: Path) -> Path:
    return build(built, "budget.c", ("agent/budget.c", "agent/stack_tree.c"))


def test_a_site_has_a_burst_and_as_many_stacks_a_second(buckets: Path) -> None:
    threads, calls, sites = 16, 5_000, 7
    result = numbers(run(buckets, threads, calls, sites))
    assert [result[f"most{number}"] for number in range(3)] == [BURST, BURST // 2, BURST]
    taken = [result[f"taken{number}"] for number in range(3)]
    assert taken == [BURST * sites, BURST // 2 * sites, BURST * sites]
    assert result["counted"] == 3 * threads * calls * sites - sum(taken)
    assert result["without-site"] == 0
    assert result["after"] == 1


def test_sites_beyond_the_table_share_a_bucket(buckets: Path) -> None:
    threads, calls, sites = 2, 60, 20_000
    result = numbers(run(buckets, threads, calls, sites))
    taken = sum(result[f"taken{number}"] for number in range(3))
    assert result["taken0"] <= BURST * (8192 + 1)
    assert result["without-site"] > 0
    assert result["counted"] + result["without-site"] + taken == 3 * threads * calls * sites


def by_site(spool: Spool) -> tuple[Counter[int], Counter[int]]:
    """Return all calls by their return address, and those of them whose stack was taken."""
    every, taken = Counter[int](), Counter[int]()
    for rule, _, stack, calls in spool.sums().tolist():
        assert rule == 0
        frames = spool.stack(stack)
        every[frames[0].offset] += calls
        if spool.tree.is_site(spool.tree.rows[stack]):
            assert len(frames) == 1
        else:
            taken[frames[0].offset] += calls
            assert len(frames) > 2
    return every, taken


@pytest.mark.parametrize("how", ["library", "static"])
def test_calls_of_all_threads_are_counted_by_site(built: Path, tmp_path: Path, how: str) -> None:
    path, threads, calls = tmp_path / "app.spool", 16, 60_000
    result = numbers(run(linked(built, "calls.c", how), path, threads, calls, 10, BUDGET))
    assert result["seen"] == result["first"] + result["second"] == threads * calls
    spool = check_readers_agree(path)
    assert spool.losses.without_stack == 0
    assert spool.calls[0] == threads * calls
    every, taken = by_site(spool)
    assert sorted(every.values()) == sorted((result["first"], result["second"]))
    assert taken.keys() == every.keys()
    assert all(BURST <= stacks <= BURST * (1 + result["seconds"]) for stacks in taken.values())
    whole = sum(taken.values())
    command = [sys.executable, "-m", "machtrace", "report", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"stack taken {whole:,} of {threads * calls:,}" in text


def test_functions_with_a_budget_by_the_environment(built: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_BUDGET": "malloc,strlen",
        "MACHTRACE_WATCH": "opendir",
        "MACHTRACE_SPOOL": str(tmp_path / "ls.spool"),
    }
    command = ["ls", "-l", str(PROGRAMS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    spool = Spool.read(tmp_path / "ls.spool")
    rules = {rule.symbol: rule for rule in spool.rules}
    assert {name: rule.has_budget for name, rule in rules.items()} == {
        "malloc": True,
        "strlen": True,
        "opendir": False,
    }
    totals: Counter[int] = Counter()
    for rule, _, _, calls in spool.sums().tolist():
        totals[rule] += calls
    assert all(totals[rule.number] == spool.calls[rule.number] for rule in spool.rules)
    assert totals[rules["malloc"].number] > 0
