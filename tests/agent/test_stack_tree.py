"""The tree of stacks: exact whatever the stacks and however many threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.build import TREE, build, numbers, run

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("bits", "stacks", "threads"), [(22, 1_000_000, 2), (20, 150_000, 16), (8, 50_000, 8)]
)
def test_no_two_generated_stacks_share_a_node(
    built: Path, bits: int, stacks: int, threads: int
) -> None:
    result = numbers(run(build(built, "tree.c", TREE), bits, stacks, threads))
    assert result["stacks"] == stacks
    assert result["merged"] == 0
    assert result["differing"] == 0


def test_a_full_tree_counts_what_it_refuses_and_takes_at_most_12_bytes_a_node(
    built: Path,
) -> None:
    result = numbers(run(build(built, "tree.c", TREE), 16, 200_000, 4))
    assert result["refused"] > 0
    assert result["merged"] == 0
    assert result["bytes"] <= 12


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_reports_the_tree(built: Path, sanitizer: str) -> None:
    program = build(built, "tree.c", TREE, f"-fsanitize={sanitizer}", "-fno-sanitize-recover")
    result = numbers(run(program, 16, 60_000, 8))
    assert result["merged"] == 0
    assert result["differing"] == 0
