"""Crashes of watched processes: traced by the watcher's thread, which does everything else, too."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import TargetAccessError, TargetSpecError
from machtrace.model.incident.facts import IncidentKind, Verdict, WatchIncident
from machtrace.model.snapshot import ThreadId
from machtrace.targets.linux.crash import CrashTracer
from machtrace.targets.linux.process_polls import ProcessEnd
from machtrace.targets.linux.watched import WatchedProcess
from tests.live.conftest import DEADLINE_S, PROGRAMS

Start = Callable[..., subprocess.Popen[str]]
COMMAND = (sys.executable, "-m", "machtrace", "watch")


@pytest.fixture
def server(start: Start) -> subprocess.Popen[str]:
    return start(sys.executable, PROGRAMS / "watched.py")


def send(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def seen(
    incidents: queue.SimpleQueue[WatchIncident], kind: IncidentKind, *, has_ended: bool
) -> WatchIncident:
    while True:
        incident = incidents.get(timeout=DEADLINE_S)
        if incident.kind is kind and (incident.ended is not None) == has_ended:
            return incident


def test_the_signal_that_ends_a_process_is_an_incident_with_all_stacks(
    server: subprocess.Popen[str],
) -> None:
    incidents: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(server.pid, crash=True, on_incident=incidents.put) as watcher:
        os.kill(server.pid, signal.SIGSEGV)
        first = seen(incidents, IncidentKind.CRASH, has_ended=False)
        last = seen(incidents, IncidentKind.CRASH, has_ended=True)
    assert server.wait(DEADLINE_S) == -signal.SIGSEGV
    assert first.evidence["signal"] == "SIGSEGV"
    assert str(last.evidence["exit"]).startswith("killed by SIGSEGV")
    assert first.id == last.id
    assert first.capture is not None
    assert first.capture.stacks[0].thread.crashed
    assert first.culprit is not None
    assert os.WTERMSIG(watcher.wait_status or 0) == signal.SIGSEGV


def test_a_traced_process_is_sampled_and_receives_its_signals(
    server: subprocess.Popen[str],
) -> None:
    incidents: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(server.pid, hang=0.1, crash=True, on_incident=incidents.put):
        send(server, "run")
        while (hang := seen(incidents, IncidentKind.HANG, has_ended=False)).verdict is None:
            pass
        send(server, "return")
        seen(incidents, IncidentKind.HANG, has_ended=True)
        server.send_signal(signal.SIGCONT)
    assert hang.verdict in (Verdict.BUSY, Verdict.STARVED)
    assert not {rule.name for rule in hang.rules} & {"debugger"}
    assert _tracer(server.pid) == 0


def test_job_control_stops_a_traced_process_and_not_a_debugger(
    server: subprocess.Popen[str], wait_until: Callable[..., None]
) -> None:
    incidents: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(server.pid, hang=0.1, crash=True, on_incident=incidents.put) as watcher:
        send(server, "run")
        seen(incidents, IncidentKind.HANG, has_ended=False)
        server.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state(server.pid) == "t", "it is stopped")
        polls = watcher.cost.polls
        wait_until(lambda: watcher.cost.polls > polls + 3, "its stop is seen")
        server.send_signal(signal.SIGCONT)
        send(server, "return")
        hang = seen(incidents, IncidentKind.HANG, has_ended=True)
        while "stopped" not in {rule.name for rule in hang.rules}:
            hang = seen(incidents, IncidentKind.HANG, has_ended=True)
    assert "debugger" not in {rule.name for rule in hang.rules}


def test_a_stop_by_the_own_tracer_is_told_apart(
    start: Start, wait_until: Callable[..., None], build: Callable[..., Path]
) -> None:
    program = start(sys.executable, "-c", _HANDLE_AND_COMPUTE)
    with WatchedProcess(program.pid) as target:
        tracer = CrashTracer(program.pid)
        tracer.begin()
        running = target.poll_thread(program.pid, with_status=True)
        os.kill(program.pid, signal.SIGUSR1)
        wait_until(lambda: _state(program.pid) == "t", "it is stopped at the signal")
        stopped = target.poll_thread(program.pid, with_status=True)
        tracer.close()
        assert (running.tracer, running.is_own_stop) == (0, False)
        assert (stopped.tracer, stopped.is_own_stop) == (0, True)
        other = start(build("tracer"), str(program.pid))
        assert target.poll_thread(program.pid, with_status=True).tracer == other.pid


def _state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2]


def _tracer(pid: int) -> int:
    return _status(pid, "TracerPid")


def _status(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


_HANDLE_AND_COMPUTE = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
print("ready", flush=True)
while True:
    pass
"""


def test_the_thread_that_traces_copies_with_one_stop(start: Start) -> None:
    program = start(sys.executable, "-c", _HANDLE_AND_COMPUTE)
    with WatchedProcess(program.pid) as target:
        target.snapshot_with_python()  # it runs Python
        tracer = CrashTracer(program.pid)
        tracer.begin()
        for _ in range(5):
            before = _status(program.pid, "voluntary")
            snapshot, functions = target.copy_stopped([ThreadId(program.pid)], is_traced=True)
            tracer.pass_on([program.pid])
            stops = _status(program.pid, "voluntary") - before
            assert _tracer(program.pid) == threading.get_native_id()
            assert snapshot.threads[0].stack.data
            assert functions
            assert stops == 1
        os.kill(program.pid, signal.SIGUSR1)
        target.copy_stopped([ThreadId(program.pid)], is_traced=True)
        tracer.pass_on([program.pid])
        tracer.close()
    assert program.stdout is not None
    assert program.stdout.readline() == "handled\n"
    assert _tracer(program.pid) == 0


@contextmanager
def traced(pid: int) -> Iterator[None]:
    began, ends = threading.Event(), threading.Event()

    def trace() -> None:
        tracer = CrashTracer(pid)
        try:
            tracer.begin()
        finally:
            began.set()
        while not ends.is_set():
            tracer.wait(10_000_000)
        tracer.close()

    thread = threading.Thread(target=trace)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_a_watched_process_is_not_traced_and_debuggers_can_attach(
    server: subprocess.Popen[str],
) -> None:
    with subprocess.Popen(
        [*COMMAND, str(server.pid), "--format", "jsonl"],
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        try:
            send(server, "block")
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["kind"] == "hang"  # it watches
            assert _tracer(server.pid) == 0
            with traced(server.pid):
                assert _tracer(server.pid)
                send(server, "return")
                while json.loads(watching.stdout.readline())["phase"] != "ended":
                    pass
        finally:
            watching.kill()


def test_another_tracer_leaves_everything_but_crashes(server: subprocess.Popen[str]) -> None:
    with traced(server.pid):
        with pytest.raises(TargetAccessError), mt.watch(server.pid, crash=True):
            pass
        done = subprocess.run(
            [*COMMAND, str(server.pid), "--crash"], capture_output=True, text=True, check=False
        )
        narrower = subprocess.run(
            [*COMMAND, str(server.pid), "--for", "0.1s"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert narrower.returncode == 0
    assert "crash" not in narrower.stderr


CRASHES = [sys.executable, "-c", "import ctypes; ctypes.string_at(8)"]


def test_a_program_that_crashes_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--crash", "--format", "jsonl", "-o", str(tmp_path), "--", *CRASHES],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    first, last = (line for line in lines if line["kind"] == "crash")
    assert done.returncode == 1
    assert first["evidence"]["address"] == "0x8"
    assert first["culprit"]["function"] == "string_at"
    assert last["evidence"]["exit"].startswith("killed by SIGSEGV")
    assert [Path(last["report"])] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import sys; sys.exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 15)", "SIGTERM"),
        ("import subprocess as s; s.run(['sh', '-c', 'kill -SEGV $$'])", "0"),
    ],
)
def test_other_ends_are_no_crash(code: str, end: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--format", "jsonl", "--crash", "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert end in done.stderr


def test_a_crash_that_was_not_traced_is_stated_with_its_remedy() -> None:
    done = subprocess.run(
        [*COMMAND, "--format", "jsonl", "--", *CRASHES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "was ended by SIGSEGV" in done.stderr
    assert "no stacks of the crash were captured; watch with --crash" in done.stderr


def test_the_status_of_a_child_is_left_to_the_code_that_started_it(
    server: subprocess.Popen[str],
) -> None:
    with mt.watch(server.pid) as watcher:
        server.kill()
        while not watcher.has_ended:
            os.sched_yield()
    assert watcher.wait_status == signal.SIGKILL
    assert not watcher.incidents
    assert server.wait(DEADLINE_S) == -signal.SIGKILL


_NEVER_WAITS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("ready", child.pid, sep="\\n", flush=True)
input()
"""


def test_the_end_of_a_process_of_another_parent(
    start: Start, wait_until: Callable[..., None]
) -> None:
    parent = start(sys.executable, "-c", _NEVER_WAITS)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    end = ProcessEnd(pid)
    assert end.status() is None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _state(pid) == "Z", "it has ended")
    assert end.status() == signal.SIGKILL
    end.close()


def test_the_end_of_a_process_that_was_waited_for(server: subprocess.Popen[str]) -> None:
    try:
        os.close(os.pidfd_open(server.pid))
    except OSError as error:
        pytest.skip(f"pidfds cannot be opened here: {error}")
    major, minor, *_ = map(int, re.findall(r"\d+", os.uname().release))
    end = ProcessEnd(server.pid)
    server.kill()
    server.wait(DEADLINE_S)
    known = (signal.SIGKILL,) if (major, minor) >= (6, 15) else (None, signal.SIGKILL)
    assert end.status() in known
    end.close()


def test_this_process_does_not_see_its_own_crashes() -> None:
    with pytest.raises(TargetSpecError), mt.watch("self", crash=True):
        pass
