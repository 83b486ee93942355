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
from machtrace.model.profile import RUNNING, STATES, UNKNOWN, SamplingEnd
from machtrace.model.snapshot import ThreadState
from machtrace.render import folded
from machtrace.sampling.api import duration_ns, interval_ns, sample
from machtrace.sampling.sampler import FOREVER_NS, Sampler
from tests.support.writers.processes import synthetic_process


@pytest.fixture
def shares(build, start, wait_until):
    """Start the program whose threads spend known shares of their time; the others wait."""
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
    """Count, for each thread, the innermost functions other than ``spin``."""
    sink = io.StringIO()
    folded.write(profile, sink)
    counts = {}
    for line in sink.getvalue().splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *functions = stack.split(";")
        inner = [name for name in functions if name != "spin"][-1]
        counts.setdefault(thread, Counter())[inner] += int(count)
    return counts


def test_sampled_shares_equal_the_true_shares_of_time(shares):
    """A thread spends three times as long in hot() as in cold().

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
        assert pytest.approx(functions["hot"] / total, abs=6 * (0.1875 / total) ** 0.5) == 0.75


def test_all_threads_are_sampled_at_every_tick(shares):
    """Blocked threads as often as busy ones; the counts of each output format agree."""
    process = shares(9, 1)
    profile = sample(process.pid, hz=50, duration=1, lines=False)
    run = profile.run

    assert len(profile.threads) == 11
    assert {run.ticks} == {thread.samples for thread in profile.threads}
    assert 11 * run.ticks == len(profile.samples)
    assert run.ticks + run.lost == 50
    assert SamplingEnd.DURATION is run.end
    assert run.duration_ns >= 1_000_000_000
    assert 0 < profile.stopped_share < 1
    assert profile.problems == ()
    waiting = [end for end in ends(profile).values() if end.keys().isdisjoint(("hot", "cold"))]
    assert len(waiting) == 9
    assert all(len(one) == 1 for one in waiting)


def test_busy_threads_use_processor_time_and_waiting_ones_do_not(shares):
    """Two threads work, three wait; the time of captures does not count."""
    process = shares(3, 1)
    profile = sample(process.pid, hz=100, duration=0.5, symbolicate=False)
    by_time = sorted(profile.threads, key=lambda thread: thread.cpu_ns)
    waiting, working = by_time[:3], by_time[3:]

    assert process.pid in {thread.info.id for thread in working}
    assert min(one.cpu_ns for one in working) > 10 * max(one.cpu_ns for one in waiting)
    assert min(one.running for one in working) > max(one.running for one in waiting)
    assert all(thread.running == thread.samples for thread in working)
    samples = profile.samples
    assert sum(cpu_ns for cpu_ns in samples.cpu_ns if cpu_ns != UNKNOWN) == sum(
        thread.cpu_ns for thread in profile.threads
    )
    assert [*samples.cpu_ns[:5]] == [UNKNOWN] * 5


def test_idle_samples_are_left_out_on_request(shares):
    process = shares(3, 0)
    profile = sample(process.pid, hz=100, duration=0.3, symbolicate=False, idle=False)
    (main,) = (thread for thread in profile.threads if thread.info.is_main)
    assert main.samples == main.running > 0
    assert set(profile.samples.states) == {RUNNING}
    assert len(profile.samples) == sum(thread.samples for thread in profile.threads)


def test_threads_that_start_meanwhile_have_their_processor_time(build, start):
    """Each uses less than the time between two ticks."""
    process = start(build("churn"))
    profile = sample(process.pid, hz=100, duration=0.5, symbolicate=False)
    known = [cpu_ns for cpu_ns in profile.samples.cpu_ns if cpu_ns != UNKNOWN]
    assert len(known) > 2
    assert max(known) <= profile.run.duration_ns


def test_own_threads_have_states_and_processor_times():
    """A thread that Python code keeps waiting for the interpreter's lock counts as running."""
    done = threading.Event()

    def spin():
        while not done.is_set():
            pass

    threads = [
        threading.Thread(target=target, name=target.__name__) for target in (spin, done.wait)
    ]
    for thread in threads:
        thread.start()
    try:
        profile = sample("self", hz=20, duration=1, symbolicate=False)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    by_name = {thread.info.name: thread for thread in profile.threads}
    assert by_name["spin"].cpu_ns > 10 * by_name["wait"].cpu_ns
    assert by_name["spin"].running > by_name["wait"].running


def test_only_chosen_threads_are_stopped(shares):
    process = shares(3, 0)
    found = sample(process.pid, hz=50, duration=0.3, threads="main", symbolicate=False)
    assert [(process.pid, True)] == [
        (thread.info.id, thread.info.is_main) for thread in found.threads
    ]


def test_the_end_of_the_process_ends_sampling(shares):
    """Earlier samples are retained and symbolicated."""
    process = shares(2, 0)

    def on_tick(progress):
        if progress.ticks == 20:
            threading.Timer(0.015, process.kill).start()

    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100), names=NameOptions(lines=False))
        run = sampler.run(FOREVER_NS, on_tick=on_tick)
    profile = sampler.profile(run)

    assert SamplingEnd.PROCESS_ENDED is profile.run.end
    assert profile.run.ticks >= 20
    assert "hot" in {frame.symbol.name for frame in profile.frames if frame.symbol is not None}


def test_sampling_an_ended_process_is_an_error(shares):
    """It is not an empty profile."""
    process = shares(0, 0)
    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100))
        process.kill()
        process.wait()
        with pytest.raises(TargetGoneError):
            sampler.run(duration_ns(1))


def test_a_callback_ends_sampling(shares):
    """It is called several times a second."""
    process = shares(1, 0)
    reports = []
    with machtrace.open_target(process.pid) as target:
        sampler = Sampler(target, interval_ns=interval_ns(100))
        run = sampler.run(
            duration_ns(60), should_stop=lambda: len(reports) >= 5, on_tick=reports.append
        )
    profile = sampler.profile(run)  # when the target is closed

    assert (run.end, run.ticks) == (SamplingEnd.INTERRUPTED, 5)
    assert [progress.ticks for progress in reports] == [1, 2, 3, 4, 5]
    assert len(profile.samples) == 10


def test_the_end_of_all_chosen_threads_ends_sampling():
    """Their samples are retained."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="brief")
    thread.start()
    with machtrace.open_target("self") as target:
        sampler = Sampler(target, interval_ns=interval_ns(50), threads=[thread.native_id])
        run = sampler.run(duration_ns(60), on_tick=lambda _: may_end.set())
    thread.join()
    assert SamplingEnd.THREADS_ENDED is run.end
    assert [one.info.name for one in sampler.profile(run).threads] == ["brief"]


def test_short_lived_threads_are_all_sampled(build, start):
    """Each is sampled as long as it exists."""
    process = start(build("churn"))
    found = sample(process.pid, hz=100, duration=1, symbolicate=False)
    assert len(found.threads) > 2
    assert len(found.samples) == sum(thread.samples for thread in found.threads)


def test_unchanged_stacks_are_stored_once(shares):
    """The table has a row per distinct stack: minutes of waiting take as little as a second."""
    process = shares(4, 0)
    with machtrace.open_target(process.pid) as target:
        waiting = [info.id for info in target.threads() if not info.is_main]
        sampler = Sampler(target, interval_ns=interval_ns(200), threads=waiting)
        profile = sampler.profile(sampler.run(duration_ns(0.5)))
    rows = set(profile.samples.stacks)
    # A resumed thread that was not scheduled since is about to wait, at the call's instruction.
    assert 1 <= len(rows) <= 2
    assert len(profile.stacks) < 20


def test_deep_stacks_retain_both_ends_by_default(build, start):
    """An explicit limit retains the innermost frames. Both mark the omitted frames."""
    process = start(build("deep"), 3000)
    found = sample(process.pid, hz=50, duration=0.2)
    sink = io.StringIO()
    folded.write(found, sink)
    assert "[frames left out]" in sink.getvalue()
    assert sink.getvalue().count("[unknown callers]") == 0


def test_this_process_samples_its_other_threads():
    done = threading.Event()

    def busy():
        while not done.is_set():
            time.sleep(0)

    thread = threading.Thread(target=busy, name="busy")
    thread.start()
    try:
        profile = sample("self", hz=100, duration=0.3, threads="busy", symbolicate=False)
    finally:
        done.set()
        thread.join()
    assert [one.info.name for one in profile.threads] == ["busy"]
    assert profile.run.ticks > 0


def test_python_functions_are_between_the_interpreter_loop_and_its_callees(start, wait_blocked):
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
    profile = sample(process.pid, hz=20, duration=1, threads="main", python=True)
    if profile.problems:
        pytest.skip(f"Python functions are not known here: {profile.problems[0].error}")
    sink = io.StringIO()
    folded.write(profile, sink)
    assert "<module> (<string>);outer (<string>);inner (<string>);" in sink.getvalue()
    (main,) = profile.threads
    assert main.running < main.samples  # it sleeps
    assert profile.samples.has_cpu


def test_a_stub_that_keeps_the_process_stopped_is_refused(shares, wait_until):
    """Every sample of a process that gdbserver stops would be the same."""
    server = shutil.which("gdbserver")
    if server is None:
        pytest.skip("no gdbserver")
    process = shares(0, 0)
    command = [server, "--once", "--attach", "127.0.0.1:0", str(process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stub:
        said = iter(stub.stderr.readline, "")
        port = next(line.split()[-1] for line in said if "Listening" in line)
        with machtrace.open_target(f"gdb://127.0.0.1:{port}") as target:
            with pytest.raises(TargetSpecError, match="states of threads cannot be read"):
                sample(target, duration=1, idle=False)
            with pytest.raises(TargetSpecError, match="stops the process from one snapshot"):
                sample(target, duration=1)
        stub.communicate(timeout=30)
    wait_until(lambda: process.poll() is None, "it runs on")


def test_a_process_is_sampled_through_lldb_server(shares):
    """lldb-server resumes it between snapshots."""
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
        profile = sampler.profile(run)
        stub.wait(timeout=30)
    assert len(profile.threads) == 3
    assert profile.run.ticks > 1
    assert profile.stopped_share > 0
    assert process.poll() is None
    (main,) = [one for name, one in ends(profile).items() if f"[{process.pid}]" in name]
    assert main["hot"] + main["cold"] > 0
    assert not profile.samples.has_states  # the stub does not state them
    assert not profile.samples.has_cpu


def test_targets_that_do_not_run_are_refused(tmp_path):
    """Every sample of a core would be the same."""
    core = tmp_path / "x.core"
    core.write_bytes(synthetic_process(Arch.ARM64, threads=1, images=1, depth=2).core())
    with pytest.raises(TargetSpecError, match="a core does not run"):
        sample(core)
    with pytest.raises(TargetSpecError, match="an emulated program does not run"):
        sample("emulated:demo")


@pytest.mark.parametrize("hz", [0, -1, float("nan"), float("inf"), 1e9])
def test_invalid_rates_are_refused_before_anything_is_opened(hz):
    with pytest.raises(ArgumentError, match="cannot sample at"):
        sample(1, hz=hz)


@pytest.mark.parametrize("duration", [0, -1, float("nan")])
def test_invalid_durations_are_refused_before_anything_is_opened(duration):
    with pytest.raises(ArgumentError, match="cannot sample for"):
        sample(1, duration=duration)


def test_a_stopped_process_is_sampled_and_stays_stopped(shares, wait_until):
    process = shares(0, 0)
    process.send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")

    def state():
        return status.read_text().rpartition(")")[2].split()[0]

    wait_until(lambda: state() == "T", "stopped")
    found = sample(process.pid, hz=50, duration=0.3, symbolicate=False)
    assert len(set(found.samples.stacks)) == 1
    # Between two samples, a thread needs a turn of the processor to stop again.
    assert found.samples.states[0] == STATES.index(ThreadState.STOPPED)
    wait_until(lambda: state() == "T", "stopped again")


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 1e12])
def test_durations_beyond_the_clock_are_infinite(seconds: float) -> None:
    """The number may be arbitrarily large; small ones keep their precision."""
    assert duration_ns(seconds) == FOREVER_NS
    assert duration_ns(1e-300) == 1
    assert duration_ns(1.5) == 1_500_000_000
