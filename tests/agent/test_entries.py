"""Programs whose functions are hooked at their first instruction."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.agent import spool_format
from tests.agent.build import numbers, run
from tests.agent.test_hooks import linked

pytestmark = pytest.mark.live

C_LIBRARY = next(
    (
        path
        for path in map(
            Path,
            (
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/libc.so.6",
                "/lib/aarch64-linux-gnu/libc.so.6",
            ),
        )
        if path.exists()
    ),
    None,
)


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
    if C_LIBRARY is None:
        pytest.skip("no C library of GNU")
    program = linked(built, "entries.c", "library")
    names = subprocess.run(
        ["nm", "-D", "--defined-only", str(C_LIBRARY)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [line.split() for line in names.stdout.splitlines()]
    functions = sorted({row[2].partition("@")[0] for row in rows if row[1] in "TWi"})
    chosen = random.Random(seed).sample(functions, 480)  # noqa: S311
    result = numbers(run(program, tmp_path / "app.spool", "many", *chosen))
    assert result["wrong"] == result["stop"] == result["writable"] == 0
    assert result["restored"] == 1
    rules = spool_format.rules(spool_format.read(tmp_path / "app.spool")).values()
    states = Counter(rule.state for rule in rules)
    assert states[1] == result["watched"] > 350
    assert states[6] == result["refused"] < 50
    assert all(rule.other for rule in rules if rule.state == 6)
