"""The agent on arm64: built by a cross compiler, and run by qemu's emulation of a process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.agent import spool_format
from tests.agent.build import LINKED, PROGRAMS, build, library, numbers
from tests.agent.spool_format import Nodes

pytestmark = pytest.mark.peer

CC = shutil.which("aarch64-linux-gnu-gcc")
QEMU = shutil.which("qemu-aarch64")
ROOT = Path("/usr/aarch64-linux-gnu")

if CC is None or QEMU is None or not ROOT.exists():
    pytest.skip("no cross compiler for arm64, or no qemu-aarch64", allow_module_level=True)

NESTED = 8


def shared(folder: Path, name: str) -> Path:
    output = folder / f"lib{name}-arm64.so"
    if not output.exists():
        options = ["-O2", "-fno-omit-frame-pointer", "-fPIC", "-shared"]
        source = str(PROGRAMS / f"{name}.c")
        subprocess.run([str(CC), *options, source, "-o", str(output)], check=True)
    return output


def run(built: Path, program: str, how: str, *arguments: object) -> dict[str, float]:
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}", "-rdynamic", "-Wl,-z,lazy"]
    if how == "static":
        path = build(built, program, LINKED, link=link, cc=[str(CC)])
    else:
        agent = library(built, cc=[str(CC)])
        path = build(built, program, (), link=[str(agent), *link], cc=[str(CC)])
    command = [str(QEMU), "-L", str(ROOT), str(path), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return numbers(done.stdout)


@pytest.fixture(params=["library", "static"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_byte_is_restored(built: Path, tmp_path: Path, how: str) -> None:
    result = run(built, "scenarios.c", how, tmp_path / "app.spool", "restore")
    for number in range(3):
        assert result[f"during{number}"] >= 14
        assert result[f"after{number}"] == result[f"stop{number}"] == 0
        assert result[f"rights{number}"] == result[f"rights-during{number}"] == 1


def test_arguments_results_and_errno_pass_through_hooks(
    built: Path, tmp_path: Path, how: str
) -> None:
    result = run(built, "scenarios.c", how, tmp_path / "app.spool", "arguments")
    assert result == {"wrong": 0, "seen": 2000}


def test_stacks_are_whole_at_the_first_instruction(built: Path, tmp_path: Path, how: str) -> None:
    run(built, "scenarios.c", how, tmp_path / "app.spool", "deep", 10_000)
    spool = spool_format.read(tmp_path / "app.spool")
    assert spool.pid > 0
    nodes = Nodes(spool)
    (event,) = spool.events
    stack = nodes.stack(event.stack)
    # The call of `observed`, the recursive calls, run_deep, and two of the C library.
    assert len(stack) == 10_000 + 3
    assert len(set(stack[1:-3])) == 1


def test_calls_by_a_watched_function_are_marked(built: Path, tmp_path: Path, how: str) -> None:
    run(built, "scenarios.c", how, tmp_path / "app.spool", "nested")
    spool = spool_format.read(tmp_path / "app.spool")
    assert [(event.depth, event.flags & NESTED) for event in spool.events] == [
        *((0, 0), (1, NESTED), (0, 0))
    ]


def test_images_that_are_loaded_later_are_watched(built: Path, tmp_path: Path, how: str) -> None:
    plugin = shared(built, "plugin")
    result = run(built, "scenarios.c", how, tmp_path / "app.spool", "plugins", plugin)
    assert result == {"found": 30, "seen": 30, "stop": 0}


def test_no_call_of_any_thread_is_lost(built: Path, tmp_path: Path, how: str) -> None:
    result = run(built, "calls.c", how, tmp_path / "app.spool", 4, 30_000, 12)
    assert result["seen"] == 120_000
    spool = spool_format.read(tmp_path / "app.spool")
    assert sum(spool.sums().values()) == 120_000
    assert len(spool.sums()) == 12 * (1 + 2) // 3


def test_functions_are_hooked_at_their_first_instruction(built: Path, tmp_path: Path) -> None:
    spool = tmp_path / "app.spool"
    assert run(built, "entries.c", "library", spool, "calls") == {
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
    assert run(built, "entries.c", "library", spool, "deep", 10_000) == {"seen": 1, "stop": 0}
    (event,) = spool_format.read(spool).events
    assert len(Nodes(spool_format.read(spool)).stack(event.stack)) >= 10_000 + 1
    result = run(built, "entries.c", "library", spool, "threads", 5)
    assert result["wrong"] == result["errors"] == 0
    assert (result["watched"], result["restored"]) == (5 * 8, 5)
