"""Sampling real processes: true shares, all threads, and every way to end."""

import io
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import machtrace
from machtrace.errors import ArgumentError, ConnectionLostError, TargetGoneError, TargetSpecError
from machtrace.model.arch import Arch
from machtrace.model.options import NameOptions
from machtrace.model.profile import SamplingEnd
from machtrace.render import folded
from machtrace.sampling.api import duration_ns, interval_ns, sample
from machtrace.sampling.sampler import FOREVER_NS, Sampler
from tests.support.writers.processes import synthetic_process


@pytest.fixture
def shares(build, start, wait_until):
    """Starts the program whose threads spend known shares of their time; the others wait."""
    program = build("shares", "-fno-inline")

    def run(waiting, working):
        process = start(program, waiting, working)
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())

        def sleeping():
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
            return states.count("S") == waiting

        assert 1 + waiting + working == len(tasks)
        wait_until(sleeping, "threads wait")
        return process

    return run


def ends(profile):
    """Of each thread how often which function was the last but ``spin``."""
    sink = io.StringIO()
    folded.write(profile, sink)
    found = {}
    for line in sink.getvalue().splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *functions = stack.split(";")
        inner = [name for name in functions if name != "spin"][-1]
        found.setdefault(thread, Counter())[inner] += int(count)
    return found


def test_shares_of_time_are_the_true_ones(shares):
    """A thread that is in hot() three times as long as in cold() is seen there so often.

    Hardly one run in a hundred million has a share that is six standard deviations off.
    """
    process = shares(0, 1)
    ticks = []
    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(250), names=NameOptions(lines=False))
        # As long as it takes: a busy machine loses ticks.
        run = sampler.run(
            duration_ns(60), should_stop=lambda: len(ticks) >= 500, on_tick=ticks.append
        )
    found = sampler.profile(run)
    counted = list(ends(found).values())

    assert 2 == len(found.threads) == len(counted)
    for functions in counted:
        total = functions["hot"] + functions["cold"]
        assert total >= 0.95 * sum(functions.values())
        assert 0.75 == pytest.approx(functions["hot"] / total, abs=6 * (0.1875 / total) ** 0.5)


def test_all_threads_are_sampled_at_every_tick(shares):
    """Those that wait as often as those that work; the counts of each format are of these."""
    process = shares(9, 1)
    found = sample(process.pid, hz=50, duration=1, lines=False)
    run = found.run

    assert 11 == len(found.threads)
    assert {run.ticks} == {thread.samples for thread in found.threads}
    assert 11 * run.ticks == len(found.samples)
    assert 50 == run.ticks + run.lost
    assert SamplingEnd.DURATION is run.end
    assert 1_000_000_000 <= run.duration_ns
    assert 0 < found.stopped_share < 1
    assert () == found.problems
    waiting = [one for one in ends(found).values() if one.keys().isdisjoint(("hot", "cold"))]
    assert 9 == len(waiting)
    assert all(len(one) == 1 for one in waiting)


def test_chosen_threads_alone(shares):
    """Only they are stopped."""
    process = shares(3, 0)
    found = sample(process.pid, hz=50, duration=0.3, threads="main", symbolicate=False)
    assert [(process.pid, True)] == [(one.info.id, one.info.is_main) for one in found.threads]


def test_the_end_of_the_process_ends_sampling(shares):
    """What was taken until then is kept, and named."""
    process = shares(2, 0)

    def on_tick(progress):
        if progress.ticks == 20:
            threading.Timer(0.015, process.kill).start()

    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100), names=NameOptions(lines=False))
        run = sampler.run(FOREVER_NS, on_tick=on_tick)
    found = sampler.profile(run)

    assert SamplingEnd.PROCESS_ENDED is found.run.end
    assert found.run.ticks >= 20
    assert "hot" in {frame.symbol.name for frame in found.frames if frame.symbol is not None}


def test_a_process_that_is_gone_cannot_be_sampled(shares):
    """An error, and no empty profile."""
    process = shares(0, 0)
    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100))
        process.kill()
        process.wait()
        with pytest.raises(TargetGoneError):
            sampler.run(duration_ns(1))


def test_sampling_can_be_ended(shares):
    """By whoever is asked several times a second."""
    process = shares(1, 0)
    told = []
    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100))
        run = sampler.run(duration_ns(60), should_stop=lambda: len(told) >= 5, on_tick=told.append)
    found = sampler.profile(run)  # when the target is closed

    assert (SamplingEnd.INTERRUPTED, 5) == (run.end, run.ticks)
    assert [1, 2, 3, 4, 5] == [progress.ticks for progress in told]
    assert 10 == len(found.samples)


def test_threads_that_end_end_sampling_if_only_they_were_asked_for():
    """And are kept."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="brief")
    thread.start()
    with machtrace.open_target("self") as target:
        sampler = Sampler(target, interval_ns=interval_ns(50), threads=[thread.native_id])
        run = sampler.run(duration_ns(60), on_tick=lambda _: may_end.set())
    thread.join()
    assert SamplingEnd.THREADS_ENDED is run.end
    assert ["brief"] == [one.info.name for one in sampler.profile(run).threads]


def test_threads_come_and_go(build, start):
    """Each is sampled as long as it is there, and none is missed."""
    process = start(build("churn"))
    found = sample(process.pid, hz=100, duration=1, symbolicate=False)
    assert len(found.threads) > 2
    assert len(found.samples) == sum(thread.samples for thread in found.threads)


def test_stacks_that_do_not_change_are_kept_once(shares):
    """Rows of the table are what differs: minutes of waiting take no more than a second."""
    process = shares(4, 0)
    with machtrace.open_target(process.pid) as target:
        waiting = [info.id for info in target.threads() if not info.is_main]
        sampler = Sampler(target, interval_ns=interval_ns(200), threads=waiting)
        found = sampler.profile(sampler.run(duration_ns(0.5)))
    rows = set(found.samples.stacks)
    # Who was let go and has not had its turn since is about to wait, at the call's instruction.
    assert 1 <= len(rows) <= 2
    assert len(found.stacks) < 20


def test_deep_stacks_keep_both_ends(build, start):
    """Only by default; an explicit limit keeps the innermost frames. Both mark what is left out."""
    process = start(build("deep"), 3000)
    found = sample(process.pid, hz=50, duration=0.2)
    sink = io.StringIO()
    folded.write(found, sink)
    assert "[frames left out]" in sink.getvalue()
    assert sink.getvalue().count("[unknown callers]") == 0


def test_this_process_can_be_sampled():
    """Its other threads, while the calling one samples."""
    done = threading.Event()

    def busy():
        while not done.is_set():
            time.sleep(0)

    thread = threading.Thread(target=busy, name="busy")
    thread.start()
    try:
        found = sample("self", hz=100, duration=0.3, threads="busy", symbolicate=False)
    finally:
        done.set()
        thread.join()
    assert ["busy"] == [one.info.name for one in found.threads]
    assert found.run.ticks > 0


def test_python_functions(start, wait_blocked):
    """Between the interpreter's loop and what it called."""
    code = (
        "import sys, time\n"
        "def inner():\n"
        "    time.sleep(100)\n"
        "def outer():\n"
        "    inner()\n"
        "print('ready', flush=True)\n"
        "outer()\n"
    )
    process = start(sys.executable, "-c", code)
    wait_blocked(process.pid)
    found = sample(process.pid, hz=20, duration=1, threads="main", python=True)
    if found.problems:
        pytest.skip(f"Python functions are not known here: {found.problems[0].error}")
    sink = io.StringIO()
    folded.write(found, sink)
    assert "<module> (<string>);outer (<string>);inner (<string>);" in sink.getvalue()


def test_a_stub_that_keeps_the_process_still(shares, wait_until):
    """As gdbserver does from the first look on: every sample would be the same, which is said."""
    server = shutil.which("gdbserver")
    if server is None:
        pytest.skip("no gdbserver")
    process = shares(0, 0)
    command = [server, "--once", "--attach", "127.0.0.1:0", str(process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stub:
        said = iter(stub.stderr.readline, "")
        port = next(line.split()[-1] for line in said if "Listening" in line)
        with pytest.raises(TargetSpecError, match="stops the process from one snapshot"):
            sample(f"gdb://127.0.0.1:{port}", duration=1)
        stub.communicate(timeout=30)
    wait_until(lambda: process.poll() is None, "it runs on")


def test_through_lldb_server(shares):
    """Which lets the process run between two snapshots."""
    server = next(filter(None, map(shutil.which, ("lldb-server", "lldb-server-19"))), None)
    if server is None:
        pytest.skip("no lldb-server")
    process = shares(2, 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [server, "gdbserver", "--attach", str(process.pid), place]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stub:
        opened, ticks = None, []
        deadline = time.monotonic() + 20
        while opened is None:
            try:
                opened = machtrace.open_target(f"gdb://{place}?timeout=30")
            except ConnectionLostError:  # it does not listen yet
                assert time.monotonic() < deadline
                time.sleep(0.1)
        with opened as target:
            sampler = Sampler(target, interval_ns=interval_ns(20), names=NameOptions(lines=False))
            # As long as it takes: a busy machine loses ticks.
            run = sampler.run(
                duration_ns(60), should_stop=lambda: len(ticks) >= 20, on_tick=ticks.append
            )
        found = sampler.profile(run)
        stub.wait(timeout=30)
    assert 3 == len(found.threads)
    assert found.run.ticks > 1
    assert found.stopped_share > 0
    assert process.poll() is None
    (main,) = [one for name, one in ends(found).items() if f"[{process.pid}]" in name]
    assert main["hot"] + main["cold"] > 0


def test_what_stands_still_is_not_sampled(tmp_path):
    """Every sample of a core would be the same."""
    core = tmp_path / "x.core"
    core.write_bytes(synthetic_process(Arch.ARM64, threads=1, images=1, depth=2).core())
    with pytest.raises(TargetSpecError, match="a core does not run"):
        sample(core)
    with pytest.raises(TargetSpecError, match="an emulated program does not run"):
        sample("emulated:demo")


@pytest.mark.parametrize("hz", [0, -1, float("nan"), float("inf"), 1e9])
def test_rates_that_are_none(hz):
    """Before anything is opened."""
    with pytest.raises(ArgumentError, match="cannot sample at"):
        sample(1, hz=hz)


@pytest.mark.parametrize("duration", [0, -1, float("nan")])
def test_durations_that_are_none(duration):
    """Before anything is opened."""
    with pytest.raises(ArgumentError, match="cannot sample for"):
        sample(1, duration=duration)


def test_a_stopped_process_is_sampled_and_stays_stopped(shares, wait_until):
    """Where it stands."""
    process = shares(0, 0)
    process.send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")

    def state():
        return status.read_text().rpartition(")")[2].split()[0]

    wait_until(lambda: state() == "T", "stopped")
    found = sample(process.pid, hz=50, duration=0.3, symbolicate=False)
    assert 1 == len(set(found.samples.stacks))
    wait_until(lambda: state() == "T", "stopped again")


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 1e12])
def test_more_time_than_there_is_has_no_end(seconds: float) -> None:
    """However large the number; what is small is not lost."""
    assert FOREVER_NS == duration_ns(seconds)
    assert 1 == duration_ns(1e-300)
    assert 1_500_000_000 == duration_ns(1.5)
