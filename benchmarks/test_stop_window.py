"""How long a thread of another process is stopped while a tool captures its stack.

All tools capture one process: CPython with some blocked threads, and one that only reads the clock
and records each interruption (``programs/heartbeat.c``). So the stopped thread itself measures its
stop, with the same method for every tool. Its wait for a processor, as Linux reports it, is
subtracted: on a busy machine it dominates.
"""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import machtrace as mt

pytestmark = pytest.mark.timeout(7200)  # a hundred captures by gdb take minutes

PROGRAM = """
import ctypes, sys, threading
done = threading.Event()
for _ in range(int(sys.argv[3])):
    threading.Thread(target=done.wait, daemon=True).start()
beat = ctypes.CDLL(sys.argv[1]).heartbeat_start
assert beat(sys.argv[2].encode(), int(sys.argv[4])) == 0
print("ready", flush=True)
done.wait()
"""
CAPTURES = int(os.environ.get("MACHTRACE_BENCHMARK_CAPTURES", "100"))
"""Captures by each tool; enough for a 99th percentile."""

PROCESSORS = sorted(os.sched_getaffinity(0))
BEATS_ON = PROCESSORS[-1] if len(PROCESSORS) > 1 else -1
"""The processor of the thread that is watched; tools have the others, so that they stop it by
nothing but what is measured."""

_GAPS = 65536
_GAP = struct.Struct("=qqq")
_REST_S = 0.002


class Heartbeat:
    """The record of the thread that reads the clock."""

    def __init__(self, path: Path, pid: int) -> None:
        with path.open("rb") as file:
            self._record = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.pid = pid
        self.longest: list[float] = []
        """The longest stop of each capture, in microseconds; 0 if the thread was not stopped."""
        self.all: list[float] = []
        """The sum of each capture's stops, in microseconds."""

        self.failed = 0
        """Captures that had no stack of the thread."""

    def watch(self, act: Callable[[], bool]) -> None:
        """Capture the stack, and record how long the thread was stopped meanwhile."""
        before, start = self._count(), time.monotonic_ns()
        self.failed += not act()
        end = time.monotonic_ns()
        time.sleep(_REST_S)  # it may still have to write down the last
        after = self._count()
        assert after - before < _GAPS
        gaps = [self._gap(number) for number in range(before, after)]
        stops = [(to - at - waited) / 1000 for at, to, waited in gaps if to > start and at < end]
        self.longest.append(max(stops, default=0))
        self.all.append(sum(stops))

    def _count(self) -> int:
        return int.from_bytes(self._record[:8], sys.byteorder)

    def _gap(self, number: int) -> tuple[int, int, int]:
        start, end, waited = _GAP.unpack_from(self._record, 8 + number % _GAPS * _GAP.size)
        return start, end, waited


@contextmanager
def beating(folder: Path, threads: int) -> Iterator[Heartbeat]:
    """CPython with ``threads`` blocked threads, the main one, and the watched one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = Path(__file__).parent / "programs" / "heartbeat.c"
    library, record = folder / "libheartbeat.so", folder / "gaps"
    build = [compiler, "-O2", "-g", "-shared", "-fPIC", "-pthread", source, "-o", library]
    subprocess.run([str(word) for word in build], check=True)
    arguments = [str(library), str(record), str(threads), str(BEATS_ON)]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Heartbeat(record, process.pid)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heartbeat]:
    """A process of eight threads, the same for all tools."""
    with beating(tmp_path_factory.mktemp("eight"), 6) as heartbeat:
        yield heartbeat


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """Run the capturing tools on other processors than the watched thread."""
    if BEATS_ON >= 0:
        os.sched_setaffinity(0, PROCESSORS[:-1])
    yield
    os.sched_setaffinity(0, PROCESSORS)


def measure(benchmark, heartbeat: Heartbeat, act: Callable[[], bool], captures: int) -> None:
    """Capture ``captures`` times; extra_info has the stop times, in microseconds."""
    heartbeat.longest.clear()
    heartbeat.all.clear()
    heartbeat.failed = 0
    act()
    benchmark.pedantic(heartbeat.watch, args=(act,), rounds=captures)
    benchmark.extra_info |= {"captures": captures, "failed": heartbeat.failed}
    for name, stops in (("longest", heartbeat.longest), ("all", heartbeat.all)):
        benchmark.extra_info[f"{name}_us_median"] = round(statistics.median(stops), 1)
        benchmark.extra_info[f"{name}_us_p99"] = round(statistics.quantiles(stops, n=100)[98], 1)
    benchmark.extra_info["load"] = round(os.getloadavg()[0], 1)


def printing(words: list[str], expected: str) -> Callable[[], bool]:
    """Return a function that runs a tool, and returns whether it printed the watched thread."""

    def run() -> bool:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode == 0 and expected in done.stdout

    if not run():
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        pytest.skip(f"{words[0]} cannot do it here: {(done.stderr or done.stdout)[-300:]}")
    return run


TOOLS = {
    "py-spy": ["py-spy", "dump", "--native", "--pid", "PID"],
    "pystack": ["pystack", "remote", "--native", "PID"],
    "gdb": ["gdb", "-nx", "-batch", "-ex", "thread apply all bt", "-p", "PID"],
}
EXPECTED = {"py-spy": "wait", "pystack": "wait", "gdb": "beat"}
"""Only gdb shows threads that run no Python."""


@pytest.mark.benchmark(group="stop window, 8 threads")
def test_nothing(benchmark, eight):
    """Measure the kernel's interruptions alone, for the duration of a command."""
    measure(benchmark, eight, lambda: time.sleep(0.2) is None, CAPTURES)


@pytest.mark.benchmark(group="stop window, 8 threads")
@pytest.mark.parametrize("tool", TOOLS)
def test_tool(benchmark, eight, installed, tool):
    """Another tool, by its usual command line."""
    words = [installed(tool), *TOOLS[tool][1:]]
    run = printing([str(eight.pid) if word == "PID" else word for word in words], EXPECTED[tool])
    measure(benchmark, eight, run, CAPTURES)


@pytest.mark.benchmark(group="stop window, 8 threads")
def test_command(benchmark, eight):
    """``machtrace backtrace PID``."""
    words = [sys.executable, "-m", "machtrace", "backtrace", str(eight.pid)]
    measure(benchmark, eight, printing(words, "beat"), CAPTURES)


@pytest.mark.benchmark(group="stop window by threads")
@pytest.mark.parametrize("threads", [2, 8, 64, 256])
def test_snapshot(benchmark, tmp_path, threads):
    """A snapshot of an open target, as in sampling."""
    with beating(tmp_path, threads - 2) as heartbeat, mt.open_target(heartbeat.pid) as target:

        def run() -> bool:
            return len(target.snapshot().threads) == threads

        measure(benchmark, heartbeat, run, max(CAPTURES, 2000 // threads))
