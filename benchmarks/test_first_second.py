"""How long a user waits for the first stacks of a process, elapsed, beside other tools.

Warm: everything was read before. Cold: no bytecode and no index of debug information exists; what
the system keeps of files in memory stays. A tool that is not installed is skipped.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = """
#include <unistd.h>
int depth(int n) { return n ? depth(n - 1) + 1 : pause(); }
int main(void) { return depth(5); }
"""
WAITING = "import time\nprint(flush=True)\ntime.sleep(3600)"
ROUNDS = 7
COMMAND = [sys.executable, "-m", "machtrace"]
IN_PYTHON = """
import sys, time
begin = time.perf_counter()
import machtrace as mt
for _ in range(2):
    mt.backtraces(int(sys.argv[1]), lines=False)
    print((time.perf_counter() - begin) * 1e3)
    begin = time.perf_counter()
"""


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A C program that waits, six calls deep."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed; it compiles the program")
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.c").write_text(SOURCE)
    subprocess.run([compiler, "-o", folder / "program", folder / "program.c"], check=True)
    with subprocess.Popen([folder / "program"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture(scope="module")
def python_program() -> Iterator[int]:
    """A Python program that sleeps."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment that writes bytecode and indices to folders of the test."""
    own = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "MACHTRACE_CACHE": str(tmp_path)}
    return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": ""}


def run(words: list[str], environment: dict[str, str]) -> None:
    subprocess.run(words, check=True, capture_output=True, env=environment)


def measure(
    benchmark, words: list[str], environment: dict[str, str], forget: Callable[[], None] | None
) -> None:
    """Run a command; ``forget`` makes each run a cold one."""
    run(words, environment)
    benchmark.pedantic(run, (words, environment), setup=forget, rounds=ROUNDS)


@pytest.mark.parametrize("state", ["warm", "cold"])
@pytest.mark.parametrize("arguments", [["--help"], ["backtrace", "PID"]], ids=" ".join)
@pytest.mark.benchmark(group="first second, a C program")
def test_command(benchmark, c_program, environment, tmp_path, arguments, state):
    words = [str(c_program) if word == "PID" else word for word in arguments]

    def forget() -> None:
        for path in tmp_path.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    measure(benchmark, [*COMMAND, *words], environment, forget if state == "cold" else None)


@pytest.mark.benchmark(group="first second, a C program")
def test_gdb(benchmark, c_program, environment, installed):
    words = [installed("gdb"), "-nx", "-batch", "-ex", "thread apply all bt", "-p", str(c_program)]
    measure(benchmark, words, environment, None)


@pytest.mark.benchmark(group="first second, a Python program")
def test_command_on_python(benchmark, python_program, environment):
    measure(benchmark, [*COMMAND, "backtrace", str(python_program)], environment, None)


@pytest.mark.parametrize(
    "tool", [["py-spy", "dump", "--native", "--pid"], ["pystack", "remote", "--native"]]
)
@pytest.mark.benchmark(group="first second, a Python program")
def test_tool(benchmark, python_program, environment, installed, tool):
    words = [installed(tool[0]), *tool[1:], str(python_program)]
    measure(benchmark, words, environment, None)


@pytest.mark.benchmark(group="first second, in Python")
def test_backtraces(benchmark, c_program, environment):
    """The first call with its imports, and in extra_info that and the second, in milliseconds."""
    calls: list[list[float]] = []
    words = [sys.executable, "-c", IN_PYTHON, str(c_program)]

    def call() -> None:
        printed = subprocess.run(words, check=True, capture_output=True, env=environment).stdout
        calls.append([float(line) for line in printed.split()])

    call()
    calls.clear()
    benchmark.pedantic(call, rounds=ROUNDS)
    for name, values in zip(("first_ms", "second_ms"), zip(*calls, strict=True), strict=True):
        benchmark.extra_info[name] = round(statistics.median(values), 1)
