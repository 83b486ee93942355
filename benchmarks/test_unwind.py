"""Frames per second: by the C loop, by Python, and by lldb; and the memory of rules.

``extra_info`` has the frames per second of processor time, from the median round.
"""

import gc
import json
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc

import pytest

from machtrace.formats.macho.core.writer import core_bytes
from machtrace.unwinder.thread_walker import PythonWalker
from machtrace.unwinder.unwinder import Unwinder
from tests.support.writers.processes import synthetic_process

DEPTH = 20
LLDB = next((name for name in ("lldb-19", "lldb") if shutil.which(name)), None)


@pytest.fixture(params=["c", "python"])
def unwinder(request, monkeypatch, recording):
    """An unwinder that has unwound everything once, so that all rules are cached."""
    if request.param == "python":
        monkeypatch.setattr(
            "machtrace.unwinder.unwinder.thread_walker",
            lambda rules, _arch, mask: PythonWalker(rules, mask),
        )
    else:
        pytest.importorskip("machtrace._native._walk", reason="the extensions are not built")
    warm = Unwinder()
    columns = warm.columns(recording.snapshots)
    assert columns.addresses.tolist() == [pc for stack in recording.stacks for pc in stack]
    return warm


def timed(benchmark, run, frames, rounds):
    """Run a function for pytest-benchmark, and store frames per second of processor time."""
    times = []

    def measured():
        began = time.process_time()
        result = run()
        times.append(time.process_time() - began)
        return result

    benchmark.pedantic(measured, rounds=rounds, warmup_rounds=1)
    rate = frames / statistics.median(times[1:])
    benchmark.extra_info["frames_per_second"] = round(rate)


@pytest.mark.benchmark(group="10,000 recorded snapshots, warm")
def test_columns(benchmark, unwinder, recording):
    """From snapshots to columns."""
    frames = sum(map(len, recording.stacks))
    timed(benchmark, lambda: unwinder.columns(recording.snapshots), frames, 5)


@pytest.mark.benchmark(group="10,000 recorded snapshots, warm")
def test_backtraces(benchmark, unwinder, recording):
    """From snapshots to an object for each frame."""
    frames = sum(map(len, recording.stacks))

    def run():
        return [unwinder.unwind(snapshot) for snapshot in recording.snapshots]

    timed(benchmark, run, frames, 5)


@pytest.mark.benchmark(group="10,000 recorded snapshots, no rule known")
def test_columns_with_new_rules(benchmark, recording):
    """The same from files that were not read before."""
    frames = sum(map(len, recording.stacks))
    timed(benchmark, lambda: Unwinder().columns(recording.snapshots), frames, 3)


@pytest.mark.benchmark(group="memory")
def test_memory(benchmark, recording):
    """An unwinder's memory after 10,000 snapshots; in extra_info bytes, per rule and in all."""

    def run():
        gc.collect()
        tracemalloc.start()
        unwinder = Unwinder()
        unwinder.columns(recording.snapshots)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return unwinder, held, peak

    unwinder, held, peak = benchmark.pedantic(run, rounds=1)
    processes = unwinder._processes.values()  # noqa: SLF001 (what is measured is private)
    rules = sum(len(process.rules._cache) for process in processes)  # noqa: SLF001
    benchmark.extra_info |= {
        "rules": rules,
        "bytes_per_rule": round(held / rules),
        "held_bytes": held,
        "peak_bytes": peak,
    }


FIRST_STACK = """
import json, sys, time
import machtrace as mt

def first_stack(core, program):
    with mt.open_target(core) as target:
        return mt.unwind(target.snapshot(), search=[program])[0].addresses

mode, *files = sys.argv[1:]
if mode == "modules loaded":
    first_stack(*files[:2])
wall, processor = time.perf_counter(), time.process_time()
found = first_stack(*files[2:])
took = [time.perf_counter() - wall, time.process_time() - processor]
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps([*took, peak, len(found), "numpy" in sys.modules]))
"""
IMAGE_SIZE = 200_000_000


@pytest.fixture(scope="module")
def image_of_200_mb(tmp_path_factory):
    """Core and program, only the second of them large, and both of a small process."""
    directory = tmp_path_factory.mktemp("large")
    files = []
    for name, functions, size in (("small", 32, 0), ("large", 600_000, IMAGE_SIZE)):
        process = synthetic_process(threads=1, images=1, depth=DEPTH, functions=functions)
        core, program = directory / f"{name}.core", directory / name
        core.write_bytes(core_bytes(process.snapshot, ()))
        with program.open("wb") as file:
            file.write(process.images[0].data)
            file.truncate(max(size, file.tell()))
        files += [core, program]
    return files


@pytest.mark.benchmark(group="first stack in a new process, image of 200 MB")
@pytest.mark.parametrize("mode", ["nothing loaded", "modules loaded"])
def test_first_stack(benchmark, image_of_200_mb, mode):
    """From a core and a file to a stack; extra_info has its time alone, in milliseconds.

    Before it, either only ``import machtrace`` has run, or unwinding a small process has loaded the
    modules.
    """
    rows = []

    def run():
        command = [sys.executable, "-c", FIRST_STACK, mode, *image_of_200_mb]
        done = subprocess.run(command, capture_output=True, check=True)
        rows.append(json.loads(done.stdout))

    benchmark.pedantic(run, rounds=7, warmup_rounds=1)
    assert all(row[3] == DEPTH for row in rows)
    wall, processor, peak, *_ = (statistics.median(column) for column in zip(*rows, strict=True))
    benchmark.extra_info |= {
        "wall_ms": round(1e3 * wall, 1),
        "processor_ms": round(1e3 * processor, 1),
        "peak_rss_mb": round(peak / 1024),
        "loads_numpy": rows[-1][4],
    }


LLDB_SCRIPT = """
import json, time
began = time.process_time()
frames = sum(thread.GetNumFrames() for thread in lldb.target.process)
print("FOUND", json.dumps([frames, time.process_time() - began]))
"""


@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
@pytest.mark.benchmark(group="a core of 1,000 threads")
def test_frames_by_lldb(benchmark, tmp_path):
    """The time of ``SBThread.GetNumFrames`` for all threads of a core, and ours for the same."""
    process = synthetic_process(threads=1000, images=200, depth=30)
    core = tmp_path / "large.core"
    core.write_bytes(process.core())
    script = tmp_path / "count.py"
    script.write_text(LLDB_SCRIPT)

    def run():
        done = subprocess.run(
            [
                LLDB,
                "--no-lldbinit",
                "--batch",
                "--core",
                core,
                "-o",
                f"script exec(open({str(script)!r}).read())",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
        return json.loads(line.removeprefix("FOUND"))

    frames, seconds = benchmark.pedantic(run, rounds=1)
    began = time.process_time()
    found = Unwinder().unwind(process.snapshot)
    ours = time.process_time() - began
    assert frames == sum(len(stack.addresses) for stack in found)
    benchmark.extra_info |= {
        "frames_per_second": round(frames / seconds),
        "our_frames_per_second": round(frames / ours),
    }
