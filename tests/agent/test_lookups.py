"""Watched functions that programs look up by name: calls by those pointers, and whose pointers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.agent.build import build, library, numbers, run
from tests.agent.readers import check_readers_agree
from tests.agent.test_hooks import linked, shared

pytestmark = pytest.mark.live

HOW = ["library", "lazy", "static"]


@pytest.mark.parametrize("how", HOW)
def test_calls_by_looked_up_pointers_are_recorded(built: Path, tmp_path: Path, how: str) -> None:
    """Pointers stay valid after a stop, and record again after a start."""
    path = tmp_path / "app.spool"
    result = numbers(run(linked(built, "lookups.c", how), path, "calls"))
    assert result == {
        "wrong": 0,
        "first": 200,
        "opened": 1,
        "parents": 200,
        "second": 10,
        "errors": 0,
        "same": 1,
        "plain": 1,
        "failures": 1,
    }
    earlier = check_readers_agree(path.with_name("app.spool.1"))
    sums = {rule.symbol: 0 for rule in earlier.rules}
    for rule, _, stack, calls in earlier.sums().tolist():
        sums[earlier.rules[rule].symbol] += calls
        assert earlier.stack(stack)
    assert sums == {"observed": 200, "open": 1, "getppid": 200}


@pytest.mark.parametrize("how", HOW)
def test_lookups_find_what_they_find_without_the_agent(
    built: Path, tmp_path: Path, how: str
) -> None:
    """A plugin's own function is found by its handle, and first if it is bound deeply."""
    plugin, copy = shared(built, "scoped"), tmp_path / "copy.so"
    shutil.copy(plugin, copy)
    program, path = linked(built, "lookups.c", how), tmp_path / "app.spool"
    result = numbers(run(program, path, "scopes", copy, plugin, shared(built, "inquiring")))
    for mode in (0, 1):
        assert (result[f"same{mode}"], result[f"stop{mode}"]) == (1, 0)
        assert (result[f"own{mode}"], result[f"next{mode}"]) == (101, -1)
        # Its own function by the handle alone; the other library has none of the name.
        assert (result[f"seen{mode}"], result[f"others{mode}"]) == (1, 1)
    assert (result["default0"], result["default1"]) == (2, 101)


def test_the_next_function_of_an_interposer_is_found(built: Path, tmp_path: Path) -> None:
    """It is before the library that defines the function; the program finds its own."""
    interposer, other = shared(built, "scoped"), shared(built, "inquiring")
    program = linked(built, "lookups.c", "library")
    environment = {**os.environ, "LD_PRELOAD": str(interposer)}
    command = [program, tmp_path / "app.spool", "scopes", interposer, interposer, other]
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=True
    )
    result = numbers(done.stdout)
    for mode in (0, 1):
        assert (result[f"same{mode}"], result[f"stop{mode}"]) == (1, 0)
        assert (result[f"default{mode}"], result[f"next{mode}"]) == (101, 2)


@pytest.mark.parametrize("how", ["library", "static"])
def test_threads_look_up_while_the_agent_starts_and_stops(
    built: Path, tmp_path: Path, how: str
) -> None:
    program = linked(built, "lookups.c", how)
    result = numbers(run(program, tmp_path / "app.spool", "threads", 10))
    assert result == {"wrong": 0, "errors": 0, "counted": 1000}


def test_calls_by_linker_stubs_are_recorded_once(built: Path, tmp_path: Path) -> None:
    """The program is at a fixed address: what it finds by name is its own stub of the linker."""
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}", "-no-pie"]
    program = build(built, "lookups.c", (), "-fno-pie", link=[str(library(built)), *link])
    result = numbers(run(program, tmp_path / "app.spool", "calls"))
    assert (result["wrong"], result["errors"], result["same"]) == (0, 0, 0)
    assert (result["first"], result["second"]) == (200, 10)


def test_a_preloaded_agent_sees_looked_up_functions(built: Path, tmp_path: Path) -> None:
    """Python's ctypes looks up by handles."""
    path = tmp_path / "app.spool"
    code = "import ctypes; f = ctypes.CDLL(None).getppid; [f() for _ in range(50)]"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_WATCH": "getppid",
        "MACHTRACE_SPOOL": str(path),
    }
    subprocess.run(["python3", "-c", code], env=environment, check=True)
    spool = check_readers_agree(path)
    assert sum(spool.sums()["calls"].tolist()) == 50
