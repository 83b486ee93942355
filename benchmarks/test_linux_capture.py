"""How long threads of CPython are stopped while they are copied."""

import statistics
import subprocess
import sys

import pytest

from machtrace.targets.linux.process import LinuxProcessTarget

pytest.importorskip("machtrace._native._ptrace")

PROGRAM = """
import threading
event = threading.Event()
for _ in range(7):
    threading.Thread(target=event.wait).start()
print("ready", flush=True)
event.wait()
"""


@pytest.fixture(scope="module")
def python():
    """CPython with 8 threads, all blocked."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.benchmark(group="capture of 8 threads")
def test_snapshot(benchmark, python):
    """Capture a snapshot; extra_info has the stop time of each thread, in microseconds."""
    stops = []
    with LinuxProcessTarget(python.pid) as target:

        def run():
            snapshot = target.snapshot()
            stops.extend(thread.stopped_for_ns / 1000 for thread in snapshot.threads)
            return snapshot

        assert len(benchmark(run).threads) == 8
    benchmark.extra_info["stopped_us_median"] = round(statistics.median(stops), 1)
    benchmark.extra_info["stopped_us_p99"] = round(statistics.quantiles(stops, n=100)[98], 1)
