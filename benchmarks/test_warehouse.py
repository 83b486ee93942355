"""Stacks into a warehouse's files and out of them: stacks a second, bytes a stack, flame graphs.

``MACHTRACE_BENCHMARK_STACKS`` is the number of stacks; 200,000 by default.
"""

from __future__ import annotations

import os
from uuid import UUID

import numpy as np
import pytest

from machtrace.model.report import ReportedImage
from machtrace.warehouse.columns import SourceFacts, StackColumns
from machtrace.warehouse.function_tree import MAX_NODES
from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.synthetic import FUNCTIONS, INSTRUCTIONS, SITES, stacks

STACKS = int(os.environ.get("MACHTRACE_BENCHMARK_STACKS", "200000"))
IMAGES = [ReportedImage(uuid=UUID(int=at + 1), name=f"F{at}") for at in range(20)]


def columns(kind: str) -> StackColumns:
    made = stacks(STACKS, kind)
    sites = np.arange(FUNCTIONS * SITES)
    of_image = len(sites) // len(IMAGES)
    return StackColumns(
        images=IMAGES,
        frame_image=sites // of_image,
        frame_offset=sites % of_image * INSTRUCTIONS,
        frames=made.frames,
        starts=made.starts,
        weight=np.ones(STACKS, np.int64),
        time=1_790_000_000_000_000_000 + np.arange(STACKS) * 1000,
    )


@pytest.mark.benchmark(group="columns into fsynced segments")
@pytest.mark.parametrize("kind", ["crashes", "diverse"])
def test_columns_in(benchmark, tmp_path, kind):
    source = columns(kind)
    with Warehouse.create(tmp_path / "w") as warehouse:

        def add() -> None:
            facts = SourceFacts(key=os.urandom(16), received=1)
            warehouse.add_columns(source, facts)

        benchmark.pedantic(add, rounds=5, warmup_rounds=1)
        row = warehouse.segments[-1]
        benchmark.extra_info["stacks a second"] = round(STACKS / benchmark.stats.stats.median)
        benchmark.extra_info["bytes a stack"] = round(row.bytes / STACKS, 1)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Two builds on ten devices each."""
    source = columns("crashes")
    with Warehouse.create(tmp_path_factory.mktemp("filled") / "w") as warehouse:
        for number in range(20):
            facts = SourceFacts(
                key=bytes([number]) * 16,
                received=1,
                build=str(number % 2),
                device=f"device {number}",
            )
            warehouse.add_columns(source, facts)
        warehouse.compact()
        yield warehouse


@pytest.mark.benchmark(group="20 times as many stacks, stored")
def test_a_flame_graph_of_all_stacks(benchmark, filled):
    tree = benchmark(filled.flame, "true", MAX_NODES)
    assert tree.totals[0] == 20 * STACKS


@pytest.mark.benchmark(group="20 times as many stacks, stored")
def test_a_flame_graph_of_a_build(benchmark, filled):
    tree = benchmark(filled.flame, "build = '0'", MAX_NODES)
    assert tree.totals[0] == 10 * STACKS


@pytest.mark.benchmark(group="20 times as many stacks, stored")
def test_the_peer_weights_of_the_stacks_of_a_build_in_sql(benchmark, filled):
    """Weights without names and callers, which a flame graph begins with."""
    text = (
        "SELECT segment, node, sum(weight)::BIGINT AS weight FROM occurrences "
        "JOIN reports USING (segment, report) WHERE build = '0' GROUP BY ALL"
    )
    assert sum(benchmark(filled.query, text)["weight"].to_pylist()) == 10 * STACKS


@pytest.mark.benchmark(group="20 times as many stacks, stored")
def test_a_difference_of_two_builds(benchmark, filled):
    difference = benchmark(filled.diff, "build = '0'", "build = '1'")
    assert difference.before[0] == difference.after[0] == 10 * STACKS


@pytest.mark.benchmark(group="20 times as many stacks, stored")
def test_counts_in_sql(benchmark, filled):
    text = "SELECT build, count(*), count(DISTINCT device) FROM stacks_of_reports GROUP BY build"
    assert benchmark(filled.query, text).num_rows == 2
