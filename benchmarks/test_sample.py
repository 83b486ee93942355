"""Sampling: the rate and its cost, compared with py-spy and perf.

The targets are a C program of ten threads, two of them busy, and CPython with twelve threads and
numpy loaded. Figures are in ``extra_info``; `py-spy` is found by its name or by
MACHTRACE_BENCHMARK_PYSPY.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machtrace.sampling.api import sample

SOURCE = Path(__file__).parent.parent / "tests" / "live" / "programs" / "shares.c"
SECONDS = 5
PYTHON = """
import threading, time, zlib
import numpy
def work():
    while True:
        zlib.compress(b"x" * 100_000, 9)
        time.sleep(0.005)
for _ in range(7):
    threading.Thread(target=threading.Event().wait).start()
for _ in range(4):
    threading.Thread(target=work).start()
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Ten threads, two of them busy."""
    built = tmp_path_factory.mktemp("program") / "shares"
    command = ["cc", "-O2", "-fno-inline", "-pthread", str(SOURCE), "-o", str(built)]
    subprocess.run(command, check=True)
    yield from _ready([str(built), "8", "1"])


@pytest.fixture(scope="module")
def python():
    """Twelve threads of an interpreter, and those of numpy's libraries."""
    yield from _ready([sys.executable, "-c", PYTHON])


def _ready(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process.pid
    process.kill()
    process.communicate()


@pytest.mark.parametrize("hz", [99, 1000])
@pytest.mark.parametrize("target", ["program", "python"])
def test_sample(benchmark, request, target, hz):
    """Rate, lost ticks, stop times, and processor time for each sample of all threads."""
    pid = request.getfixturevalue(target)

    def run():
        before = time.process_time()
        profile = sample(pid, hz=hz, duration=SECONDS, lines=False)
        return profile, time.process_time() - before

    profile, spent = benchmark.pedantic(run, rounds=1)
    ran, threads = profile.run, profile.threads
    benchmark.extra_info |= {
        "threads": len(threads),
        "rate_hz": round(ran.rate, 1),
        "lost": ran.lost,
        "stopped_share_percent": round(100 * profile.stopped_share, 3),
        "stopped_us_mean": round(
            sum(thread.stopped_ns for thread in threads)
            / sum(thread.samples for thread in threads)
            / 1000,
            1,
        ),
        "longest_stop_us": round(max(thread.longest_stop_ns for thread in threads) / 1000, 1),
        "processor_ms_per_tick": round(1000 * spent / ran.ticks, 2),
        "load": round(os.getloadavg()[0], 1),
    }


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_py_spy(benchmark, python, native, tmp_path):
    """`py-spy record` on the same interpreter at the same rate, with its own stops."""
    program = os.environ.get("MACHTRACE_BENCHMARK_PYSPY") or shutil.which("py-spy")
    if program is None:
        pytest.skip("no py-spy")
    command = [program, "record", "-p", str(python), "-r", "99", "-d", str(SECONDS), "--idle"]
    command += ["--threads", "-f", "raw", "-o", str(tmp_path / "raw")] + ["--native"] * native
    done, spent = _timed(benchmark, command)
    ticks = _count(tmp_path / "raw")
    benchmark.extra_info |= {
        "samples_of_main_thread": ticks,
        "processor_ms_per_tick": round(1000 * spent / max(1, ticks), 2),
        "said": " ".join(done.stdout.split())[-200:],
    }


CLOCK = """
import sys, threading, time, zlib
def wait(): threading.Event().wait()
def sleep():
    while True: time.sleep(0.01)
def compress():
    while True:
        zlib.compress(b"x" * 10_000)
        time.sleep(0.005)
totals = [0, 0]
def delay():
    return int(open(f"/proc/self/task/{threading.get_native_id()}/schedstat").read().split()[1])
def watch():
    now, before = time.perf_counter_ns, time.perf_counter_ns()
    while True:
        here = now()
        if here - before > 20_000:
            totals[0] += here - before
            totals[1] = delay()
            here = now()
        before = here
for name in (wait, sleep, compress, watch):
    threading.Thread(target=name, name=name.__name__, daemon=True).start()
print("ready", flush=True)
for _ in sys.stdin:
    print(totals[0], totals[1], time.perf_counter_ns(), flush=True)
"""
"""Five threads, of which one reads the clock and adds up for how long it was interrupted."""

SAMPLERS = {
    "nothing": None,
    "machtrace": ["--python"],
    "machtrace-only": ["--python=only"],
    "machtrace-native": [],
    "py-spy": ["--idle"],
    "py-spy-native": ["--idle", "--native"],
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_python_samplers(benchmark, sampler, tmp_path):
    """100 Hz of one interpreter: processor time, and the share of its time that it was stopped."""
    options = SAMPLERS[sampler]
    if options is None:
        command = ["sleep", str(SECONDS)]
    elif sampler.startswith("machtrace"):
        command = [sys.executable, "-m", "machtrace", "sample", "PID", "--hz", "100", *options]
        command += ["--duration", str(SECONDS), "--format", "folded"]
    else:
        program = os.environ.get("MACHTRACE_BENCHMARK_PYSPY") or "py-spy"
        command = [program, "record", "-p", "PID", "-r", "100", "-d", str(SECONDS), *options]
        command += ["--threads", "-f", "raw"]
    _beside_clock(benchmark, [*command, *_output(sampler, tmp_path)])


OURS = [sys.executable, "-m", "machtrace", "backtrace", "PID"]
CAPTURES = {
    "machtrace": OURS,
    "machtrace-python": [*OURS, "--python"],
    "machtrace-only": [*OURS, "--python=only"],
    "py-spy": ["py-spy", "dump", "-p", "PID"],
    "py-spy-native": ["py-spy", "dump", "--native", "-p", "PID"],
    "pystack": ["pystack", "remote", "PID"],
    "pystack-native": ["pystack", "remote", "--native", "PID"],
    "gdb": ["gdb", "-nx", "-batch", "-ex", "thread apply all backtrace", "-p", "PID"],
    "lldb": ["lldb-19", "--no-lldbinit", "--batch", "-o", "bt all", "-p", "PID"],
    "perf": ["perf", "record", "-F", "100", "-g", "-p", "PID", "-o", "FILE", "--", "sleep", "5"],
}


@pytest.mark.parametrize("tool", CAPTURES)
def test_captures(benchmark, tool, tmp_path):
    """One capture of that interpreter by each tool; perf samples it for five seconds."""
    words = {"FILE": str(tmp_path / "out")}
    _beside_clock(benchmark, [words.get(word, word) for word in CAPTURES[tool]])


def _beside_clock(benchmark, command):
    """Run a command on the process ``CLOCK``, which measures how long it is stopped.

    Its interruptions without the time in which its thread waited for a processor.
    """
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    words = [sys.executable, "-c", CLOCK]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout.readline() == "ready\n"
        command = [str(process.pid) if word == "PID" else word for word in command]
        before = _totals(process)
        done, spent = _timed(benchmark, command)
        interrupted, waited, elapsed = (
            now - then for now, then in zip(_totals(process), before, strict=True)
        )
        process.kill()
    benchmark.extra_info |= {
        "stopped_ms": round(max(0, interrupted - waited) / 1e6, 1),
        "stopped_share_percent": round(100 * max(0, interrupted - waited) / elapsed, 2),
        "processor_s": round(spent, 2),
        "lines": done.stdout.count("\n"),
        "said": " ".join(done.stdout.split())[-200:],
        "load": round(os.getloadavg()[0], 1),
    }


def _output(sampler, folder):
    return [] if sampler == "nothing" else ["-o", str(folder / "out")]


def _totals(process):
    process.stdin.write("\n")
    return tuple(map(int, process.stdout.readline().split()))


def test_perf(benchmark, program, tmp_path):
    """`perf record --call-graph dwarf` on the same program: it samples running threads only."""
    perf = shutil.which("perf")
    if perf is None:
        pytest.skip("no perf")
    path = tmp_path / "perf.data"
    command = [perf, "record", "-F", "99", "--call-graph", "dwarf", "-e", "cpu-clock"]
    command += ["-p", str(program), "-o", str(path), "--", "sleep", str(SECONDS)]
    done, spent = _timed(benchmark, command)
    if done.returncode:
        pytest.skip(f"perf cannot be used here: {done.stdout.strip()[-200:]}")
    benchmark.extra_info |= {"processor_s": round(spent, 2), "said": done.stdout.strip()[-100:]}


def _timed(benchmark, command):
    def run():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return benchmark.pedantic(run, rounds=1)


def _count(path):
    """Count the samples of the thread with the most."""
    counts = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        stack, _, count = line.rpartition(" ")
        thread = stack.partition(";")[0]
        counts[thread] = counts.get(thread, 0) + int(count)
    return max(counts.values(), default=0)
