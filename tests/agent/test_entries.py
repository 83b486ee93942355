"""Programs whose functions are hooked at their first instruction."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.agent import spool_format
from tests.agent.build import numbers, run
from tests.agent.lab_stacks import c_library_functions
from tests.agent.test_hooks import linked

pytestmark = pytest.mark.live


def test_calls_by_pointers_and_inside_an_image_are_recorded(built: Path, tmp_path: Path) -> None:
    result = numbers(run(linked(built, "entries.c", "library"), tmp_path / "app.spool", "calls"))
    assert result == {
        "wrong": 0,
        "state": 1,
        "other": 1,
        "absent": 2,
        "once": 21,
        "twice": 1,
        "changed": 1,
        "restored": 1,
        "writable": 0,
        "stop": 0,
    }
    spool = spool_format.read(tmp_path / "app.spool")
    nodes = spool_format.Nodes(spool)
    nested = [event for event in spool.events if event.depth]
    assert len(nested) == 1
    assert len(nodes.stack(nested[0].stack)) == len(nodes.stack(spool.events[0].stack)) + 1


def test_threads_call_while_hooks_are_installed_and_removed(built: Path, tmp_path: Path) -> None:
    program = linked(built, "entries.c", "library")
    result = numbers(run(program, tmp_path / "app.spool", "threads", 20))
    assert result["wrong"] == result["errors"] == 0
    assert result["watched"] + result["refused"] == 20 * 8
    assert result["watched"] > 0
    assert result["restored"] == 20
    assert result["seen"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_many_functions_of_the_c_library(built: Path, tmp_path: Path, seed: int) -> None:
    """A few are aliases of others; the reason of each refusal is in the spool."""
    functions = c_library_functions()
    if not functions:
        pytest.skip("no C library of GNU")
    program = linked(built, "entries.c", "library")
    chosen = random.Random(seed).sample(functions, 480)  # noqa: S311
    result = numbers(run(program, tmp_path / "app.spool", "many", *chosen))
    assert result["wrong"] == result["stop"] == result["writable"] == 0
    assert result["restored"] == 1
    rules = spool_format.rules(spool_format.read(tmp_path / "app.spool")).values()
    states = Counter(rule.state for rule in rules)
    assert states[1] == result["watched"] > 350
    assert states[6] == result["refused"] < 50
    assert all(rule.other for rule in rules if rule.state == 6)


def test_stacks_are_whole_to_a_depth_of_10_000(built: Path, tmp_path: Path) -> None:
    """The frames are those of the recursive calls, the one that began them, and their callers."""
    program = linked(built, "entries.c", "library")
    assert numbers(run(program, tmp_path / "app.spool", "deep", 10_000)) == {"seen": 1, "stop": 0}
    spool = spool_format.read(tmp_path / "app.spool")
    (event,) = spool.events
    stack = spool_format.Nodes(spool).stack(event.stack)
    assert len(set(stack[1:10_000])) == 1
    assert len(stack) >= 10_000 + 1
