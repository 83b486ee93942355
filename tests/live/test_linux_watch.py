"""Watching real processes: each hang lasts until it has been reported."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import machtrace as mt
from machtrace.errors import ArgumentError, TargetError
from machtrace.model.incident.facts import Verdict, WatchIncident
from machtrace.model.snapshot import ThreadId
from machtrace.reports.stacks.incidents import report_of_incident
from machtrace.targets.child_process import StartedProgram
from machtrace.targets.linux.watched import WatchedProcess
from machtrace.watching.jsonl import incident_line
from machtrace.watching.thresholds import WatchOptions
from machtrace.watching.watcher import FOREVER_NS, Watcher
from tests.live.conftest import DEADLINE_S, PROGRAMS

Start = Callable[..., subprocess.Popen[str]]


def send(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("word", "function", "verdict"),
    [
        ("block", "block_in_callback", Verdict.BLOCKED),
        ("run", "run_in_callback", Verdict.BUSY),
    ],
)
def test_a_hang_of_an_asyncio_server_is_named_while_it_lasts(
    start: Start, word: str, function: str, verdict: Verdict
) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(process.pid, hang=0.1, on_incident=seen.put) as watcher:
        send(process, word)
        while True:
            # A busy machine may starve it first.
            first = seen.get(timeout=DEADLINE_S)
            if first.verdict is not None and first.verdict.is_hang:
                break
        send(process, "return")
        last = first
        while last.ended is None:
            last = seen.get(timeout=DEADLINE_S)
    assert first.verdict is verdict
    assert first.culprit is not None
    assert first.culprit.function == function
    assert first.stacks
    assert first.capture is not None
    assert [thread.thread.id for thread in first.capture.stacks] == [process.pid]
    assert watcher.incidents[-1] == last
    if verdict is Verdict.BLOCKED:
        assert watcher.cost.stops == 0
        assert all(timed.stack.stopped_for_ns is None for timed in last.stacks)


_ALWAYS_RUNS = """
def turn():
    while True:
        pass
print("ready", flush=True)
turn()
"""


def test_functions_of_a_thread_that_never_waits(start: Start) -> None:
    process = start(sys.executable, "-c", _ALWAYS_RUNS)
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(process.pid, hang=0.05, launch_grace=0, on_incident=seen.put):
        while not (first := seen.get(timeout=DEADLINE_S)).stacks:
            pass  # it had no processor
    assert first.culprit is not None
    assert first.culprit.function == "turn"
    assert all(any(frame.python for frame in timed.stack.frames) for timed in first.stacks)


def test_cpython_that_is_loaded_later(start: Start, build: Callable[..., Path]) -> None:
    """And a C program without it, which has no problem with that."""
    library = sysconfig.get_config_var("INSTSONAME")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library")
    path = Path(sysconfig.get_config_var("LIBDIR")) / library
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
    process = start(build("embeds", "-ldl"), path, env=environment)
    with WatchedProcess(process.pid) as target:
        before, functions = target.copy_stopped([ThreadId(process.pid)])
        assert not functions
        assert not before.problems
        send(process, "load")
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        _, functions = target.copy_stopped([ThreadId(process.pid)])
    (runs,) = functions.values()
    assert runs
    assert runs[0][0].name == "embedded"


def test_a_python_whose_functions_cannot_be_read_is_stated(
    start: Start, build: Callable[..., Path], tmp_path: Path
) -> None:
    """An image that is named after a version without the table that leads to its functions."""
    program = tmp_path / "python3.6"
    shutil.copy(build("embeds", "-ldl"), program)
    process = start(program, "/")
    with WatchedProcess(process.pid) as target:
        assert not target.missing
        _, functions = target.copy_stopped([ThreadId(process.pid)])
        (sentence,) = target.missing
    assert not functions
    assert sentence.startswith("Python functions cannot be read: unsupported CPython")


def test_a_hang_that_outlasts_watching_is_reported_again(start: Start) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(process.pid, hang=0.1, on_incident=seen.put) as watcher:
        send(process, "block")
        first = seen.get(timeout=DEADLINE_S)
    last = watcher.incidents[-1]
    assert json.loads(incident_line(first))["phase"] == "seen"
    assert json.loads(incident_line(last))["phase"] == "open"
    assert (last.id, last.ended) == (first.id, None)
    assert last.duration_ns >= first.duration_ns
    report = report_of_incident(last)
    assert report.process is not None
    assert report.process.name == Path(sys.executable).resolve().name


def test_the_stop_that_a_program_is_started_with_is_no_evidence() -> None:
    """Watching begins with its first instruction."""
    options = WatchOptions(hang_ns=50_000_000, launch_grace_ns=0)
    arguments = [sys.executable, "-c", _ALWAYS_RUNS]
    with StartedProgram(arguments, stdout=subprocess.DEVNULL) as program:
        try:
            with Watcher(program.pid, options) as watcher:
                assert [*watcher.states.values()] == [None]
                program.run()
                watcher.run(FOREVER_NS, should_stop=lambda: bool(watcher.incidents))
        finally:
            program.send(signal.SIGKILL)
            program.wait()
    hang = watcher.incidents[0]
    assert hang.verdict is not Verdict.STOPPED
    assert "stopped" not in {rule.name for rule in hang.rules}
    assert "stopped_ns" not in hang.evidence


def test_a_process_that_was_stopped_before_is_reported_as_that(start: Start) -> None:
    """Also in its idle wait, which it is still in."""
    process = start(sys.executable, PROGRAMS / "watched.py")
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        pass
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    seen: queue.SimpleQueue[WatchIncident] = queue.SimpleQueue()
    with mt.watch(process.pid, hang=0.05, launch_grace=0, on_incident=seen.put):
        assert seen.get(timeout=DEADLINE_S).verdict is Verdict.STOPPED
    process.send_signal(signal.SIGCONT)


def test_an_idle_server_is_never_stopped(start: Start) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    with mt.watch(process.pid, hang=0.04) as watcher:
        while watcher.cost.polls < 50:
            os.sched_yield()
    assert watcher.cost.stops == 0
    assert not watcher.incidents


def test_the_end_of_the_process_ends_watching(start: Start) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    with mt.watch(process.pid, hang=0.1) as watcher:
        process.kill()
        process.wait()
        while not watcher.has_ended:
            os.sched_yield()


def test_no_descriptors_are_left_open(start: Start) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")

    def watch() -> None:
        with mt.watch(process.pid, hang=0.1) as watcher:
            while watcher.cost.polls < 3:
                os.sched_yield()

    watch()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        watch()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_an_error_of_the_callback_is_raised(start: Start) -> None:
    def fail(_: WatchIncident) -> None:
        raise ZeroDivisionError

    process = start(sys.executable, PROGRAMS / "watched.py")

    def watch_until_it_fails() -> None:
        with mt.watch(process.pid, hang=0.1, on_incident=fail) as watcher:
            send(process, "block")
            while not watcher.has_failed:
                os.sched_yield()

    with pytest.raises(ZeroDivisionError):
        watch_until_it_fails()


@contextmanager
def command(*words: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "machtrace", "watch", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        try:
            yield watching
        finally:
            watching.kill()


def test_the_command_prints_a_line_when_a_hang_is_seen_and_when_it_ended(
    start: Start, tmp_path: Path
) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    send(process, "block")
    words = ["--hang", "100ms", "--format", "jsonl", "--until-incident", "-o", tmp_path]
    with command(process.pid, *words) as watching:
        assert watching.stdout is not None
        first: dict[str, Any] = json.loads(watching.stdout.readline())
        send(process, "return")
        last: dict[str, Any] = json.loads(watching.stdout.readline())
        assert watching.wait(DEADLINE_S) == 1
    assert [first["phase"], last["phase"]] == ["seen", "ended"]
    assert first["id"] == last["id"]
    assert first["culprit"]["function"] == "block_in_callback"
    assert last["began_ns"] < last["seen_ns"] < last["ended_ns"]
    assert [path.name for path in tmp_path.iterdir()] == [Path(last["report"]).name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_quietly(
    start: Start, number: signal.Signals, wait_until: Callable[..., None]
) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    with command(process.pid) as watching:
        files = Path(f"/proc/{watching.pid}/fd")

        def polls() -> bool:
            try:
                return any("syscall" in str(path.readlink()) for path in files.iterdir())
            except FileNotFoundError:  # closed meanwhile
                return False

        wait_until(polls, "it polls")
        watching.send_signal(number)
        output, errors = watching.communicate(timeout=DEADLINE_S)
    assert (watching.returncode, output) == (0, "")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["99999999"], "process 99999999 does not exist"),
        (["1", "--hang", "1ms"], "cannot be seen by polls every 20 ms"),
        (["1", "--poll", "0s"], "cannot poll every 0 ms"),
        (["gdb://localhost:1"], "cannot connect to localhost:1"),
    ],
)
def test_what_cannot_be_watched_has_status_2(words: list[str], message: str) -> None:
    with command(*words) as watching:
        output, errors = watching.communicate(timeout=DEADLINE_S)
    assert (watching.returncode, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


def test_thresholds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot be seen by polls"), mt.watch(1, hang=0.001):
        pass
    with pytest.raises(TargetError), mt.watch("gdb://localhost:1"):
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cpu", "0%/60s"], "'0%/60s' is always or never exceeded"),
        (["--cpu", "80%"], "'80%' is not a threshold of processor time"),
        (["--cpu", ""], "'' has an empty threshold"),
        (["--memory", "-1"], "'-1' is not a threshold of memory"),
        (["--hang", "0"], "a hang of 0 ms cannot be seen"),
        (["--hang", "inf"], "a hang of more than a day is not seen"),
        (["--hang", "nan"], "'nan' is not a duration"),
        (["--for", "-1s"], "'-1s' is not a duration"),
        (["--for", "-1"], "'-1' is not a duration"),
        (["--thread", "nosuch"], "no thread matches 'nosuch'"),
        (["--output", __file__], "it is a file"),
        (["--output", "/proc/new"], "/proc/new"),
    ],
)
def test_options_that_make_no_sense_have_status_2(
    start: Start, words: list[str], message: str
) -> None:
    process = start(sys.executable, PROGRAMS / "watched.py")
    with command(process.pid, *words) as watching:
        output, errors = watching.communicate(timeout=DEADLINE_S)
    assert (watching.returncode, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--"], "name a program to start after --"),
        (["--", "/no/program"], "no such file or directory: /no/program"),
        (["--", "/etc/passwd"], "permission denied: /etc/passwd"),
        (["self"], "self is this very command"),
        (["2"], "kernel thread"),
    ],
)
def test_targets_that_cannot_be_watched_have_status_2(words: list[str], message: str) -> None:
    with command(*words) as watching:
        output, errors = watching.communicate(timeout=DEADLINE_S)
    assert (watching.returncode, output) == (2, "")
    assert message in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_a_process_of_another_user_is_watched_in_part() -> None:
    """Without rights over it, its processor time and memory can be watched."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    watch = [*drop, sys.executable, "-m", "machtrace", "watch"]
    with subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "600"]) as other:
        try:
            while Path(f"/proc/{other.pid}/comm").read_text() != "sleep\n":
                os.sched_yield()
            results = [
                subprocess.run(
                    [*watch, str(other.pid), *words], capture_output=True, text=True, check=False
                )
                for words in (["--for", "0.1s"], ["--deadlocks"], ["--crash"])
            ]
        finally:
            other.kill()
    everything, *parts = results
    assert everything.returncode == 0
    for missing in ("system calls", "stacks", "deadlocks"):
        assert missing in everything.stderr
    assert [part.returncode for part in parts] == [2, 2]
    assert all("Traceback" not in part.stderr for part in results)


@pytest.mark.parametrize(("end", "status"), [("| head -c 1", "1 0"), ("> /dev/full", "2")])
def test_output_that_cannot_be_written_ends_it_with_its_status(
    start: Start, end: str, status: str
) -> None:
    """A reader that has enough is no error; the incident that it saw counts."""
    process = start(sys.executable, PROGRAMS / "watched.py")
    send(process, "block")
    command = f"'{sys.executable}' -m machtrace watch {process.pid} --hang 50ms --launch-grace 0 -q"
    script = f'{command} {end}; echo " ${{PIPESTATUS[*]}}"'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert done.stdout.endswith(f" {status}\n")
    assert "Traceback" not in done.stderr
