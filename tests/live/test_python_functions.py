"""Python functions of other processes, compared with those the programs print themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.cpython.runs import with_python_runs
from machtrace.errors import TargetError, TargetSpecError, ThreadGoneError
from machtrace.model.options import NameOptions
from machtrace.pipeline.backtraces import build_capture, snapshot_with_python
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.unwinder.frame_limit import FrameLimit

PROGRAM = Path(__file__).parent / "programs" / "python_functions.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def interpreter(version):
    """Return the path of a Python of that version."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    roots = (Path.home() / ".pyenv" / "versions", Path.home() / ".local/share/uv/python")
    found = [path for root in roots for path in root.glob(f"*{version}.*/bin/python3")]
    path = str(found[0]) if found else shutil.which(f"python{version}")
    if path is None:
        pytest.skip(f"there is no Python {version} here")
    return path


@pytest.fixture(params=VERSIONS)
def running(request, wait_until):
    """A running program of each installed version, and the functions that it prints."""
    command = [interpreter(request.param), "-I", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed = {
                int(one): rows for one, rows in json.loads(process.stdout.readline()).items()
            }
            assert process.stdout.readline() == "ready\n"
            tasks = Path(f"/proc/{process.pid}/task")
            wait_until(
                lambda: len(list(tasks.iterdir())) == len(printed), "the reporting thread has ended"
            )
            yield process, printed
        finally:
            process.kill()


def functions(stack):
    """Return the functions in the program's format."""
    return [
        [one.name, os.fsencode(one.location.path).hex(), one.location.line]
        for frame in stack.frames
        for one in frame.python
    ]


def is_loop(frame):
    """Return whether the frame is a run of CPython's loop."""
    return frame.symbol is not None and frame.symbol.name.startswith(
        ("_PyEval_EvalFrameDefault", "_TAIL_CALL_")
    )


def test_functions_equal_those_that_the_program_prints(running):
    """Names, files and lines, in all threads; and each run of the loop has its own functions."""
    process, printed = running
    stacks = {stack.thread.id: stack for stack in mt.backtraces(process.pid, python=True)}

    assert len(printed) == 4
    for thread, rows in printed.items():
        assert rows == functions(stacks[thread])
        loops = [frame for frame in stacks[thread].frames if is_loop(frame)]
        assert all(frame.python for frame in loops)
        assert all(is_loop(frame) for frame in stacks[thread].frames if frame.python)


def test_one_requested_thread_has_its_python_functions(running):
    """The others are stopped, too, but not returned."""
    process, told = running
    (stack,) = mt.backtraces(process.pid, threads="main", python=True, lines=False)

    assert told[process.pid] == functions(stack)


@pytest.mark.parametrize("limit", [FrameLimit(30, 10), FrameLimit(40)], ids=["both", "inner"])
def test_both_ends_of_a_deep_stack_have_their_functions(running, limit):
    """Runs are counted from each end that the limit retains."""
    process, printed = running
    snapshot, runs = snapshot_with_python(process.pid)
    symbolicator = mt.Symbolicator(lines=False)
    walked = mt.Unwinder().unwind(snapshot, limit=limit)
    stacks, _ = with_python_runs(map(symbolicator.symbolicate, walked), runs)
    (deep,) = (stack for stack in stacks if stack.gap is not None)
    rows, limited = printed[deep.thread.id], functions(deep)
    inner = [row for frame in deep.frames[: deep.gap.after] for row in ends(frame)]

    assert 10 < len(limited) < len(rows)
    assert rows[: len(inner)] == inner
    assert rows[len(rows) + len(inner) - len(limited) :] == limited[len(inner) :]


def ends(frame):
    """Return one frame's functions in the program's format."""
    return [
        [one.name, os.fsencode(one.location.path).hex(), one.location.line] for one in frame.python
    ]


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_a_core_has_the_python_functions_of_the_process(running, tmp_path):
    """Debuggers and the kernel write all of that memory."""
    process, printed = running
    command = ["gdb", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-p", process.pid]
    command += ["-ex", f"generate-core-file {tmp_path / 'core'}"]
    subprocess.run([str(word) for word in command], capture_output=True, check=True, timeout=120)
    stacks = mt.backtraces(tmp_path / "core", python=True, lines=False)

    assert printed == {stack.thread.id: rows for stack in stacks if (rows := functions(stack))}


def test_threads_are_resumed_and_interrupted_calls_continue(running):
    process, printed = running
    for _ in range(5):
        mt.backtraces(process.pid, python=True, lines=False)
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert "TracerPid:\t0\n" in status
    assert process.poll() is None
    stacks = mt.backtraces(process.pid, python=True, lines=False)
    assert sum(map(bool, map(functions, stacks))) == len(printed)


SPINNING = """
import sys, threading
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
def through_c(n):
    return sorted(range(n), key=lambda one: even(n))
def spin():
    while True:
        even(20); through_c(4)
class Noisy:
    def __del__(self):
        even(3)
def churn():
    while True:
        Noisy()
        exec("def made(): return even(5)\\nmade()", {"even": even})
for target in (spin, spin, churn):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
CALLERS = {
    "even": {"odd", "spin", "through_c.<locals>.<lambda>", "Noisy.__del__", "made"},
    "odd": {"even"},
    "through_c.<locals>.<lambda>": {"through_c"},
    "through_c": {"spin"},
    "made": {"<module>"},
    "Noisy.__del__": {"churn"},
    "spin": {"Thread.run"},
    "churn": {"Thread.run"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_python_functions_of_running_threads_are_consistent(version, start):
    """Every function's caller can call it, and no function is missing."""
    process = start(interpreter(version), "-I", "-c", SPINNING)
    asked = 0
    with LinuxProcessTarget(process.pid) as target:
        for _ in range(40):
            snapshot, runs = snapshot_with_python(target)
            assert snapshot.problems == ()
            found = build_capture(snapshot, names=NameOptions(lines=False), python=runs)
            assert found.problems == ()
            for stack in found.stacks:
                names = [row[0] for row in functions(stack)]
                for name, caller in pairwise(names):
                    assert caller in CALLERS.get(name, {caller}), names
                assert names[-1] in {"<module>", "Thread._bootstrap"}
                asked += len(names)
    assert asked > 40 * 12


def test_a_forked_process_has_its_own_threads(wait_blocked):
    """The child's main thread is the one that forked."""
    program = (
        "import os, time\n"
        "def child(): time.sleep(100)\n"
        "if os.fork() == 0:\n print('ready', os.getpid(), flush=True); child()\n"
        "os.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline().split()[1])
        try:
            wait_blocked(pid)
            (stack,) = mt.backtraces(pid, python=True, lines=False)
            assert [row[0] for row in functions(stack)] == ["child", "<module>"]
        finally:
            os.kill(pid, 9)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes root and unshare"
)
def test_threads_in_a_container_are_matched_by_its_ids(wait_blocked):
    """The interpreter there knows its threads by the container's numbers."""
    program = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "def wait_here(): time.sleep(100)\n"
        "wait_here()\n"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip("no namespace can be made here")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            wait_blocked(int(children))
            stacks = mt.backtraces(int(children), python=True, lines=False)
            named = [[row[0] for row in functions(stack)] for stack in stacks]
            assert named[0] == ["wait_here", "<module>"]
            assert named[1][-1] == "Thread._bootstrap"
        finally:
            process.kill()


def test_a_process_without_python_is_a_problem_and_has_its_stacks(start, build):
    process = start(build("threads"))
    with LinuxProcessTarget(process.pid) as target:
        snapshot, runs = snapshot_with_python(target)
    assert runs == {}
    assert len(snapshot.threads) > 1
    (problem,) = snapshot.problems
    assert isinstance(problem.error, TargetError)
    assert "no CPython" in str(problem.error)


def test_other_kinds_of_targets_are_refused_before_they_are_copied():
    pytest.importorskip("unicorn", reason="the emulator is not installed")
    with pytest.raises(TargetSpecError, match="cannot be read"):
        mt.backtraces("emulated:demo", python=True)


def test_exactly_the_existing_threads_are_captured_while_others_end(start):
    program = (
        "import threading, time\n"
        "print('ready', flush=True)\n"
        "def brief(): time.sleep(0.001)\n"
        "while True:\n threading.Thread(target=brief).start()\n"
    )
    process = start(sys.executable, "-c", program)
    seen: set[str] = set()
    looks, deadline = 0, time.monotonic() + 60
    with LinuxProcessTarget(process.pid) as target:
        while looks < 20 or ("brief" not in seen and time.monotonic() < deadline):
            looks += 1
            snapshot, runs = snapshot_with_python(target)
            assert [
                problem
                for problem in snapshot.problems
                if isinstance(problem.error, ThreadGoneError)
            ] == []
            assert set(runs) <= {thread.info.id for thread in snapshot.threads}
            seen.update(one.name for found in runs.values() for run in found or () for one in run)
    assert {"<module>", "brief"} <= seen


def test_the_command_prints_python_functions(start, wait_blocked):
    """In text, in lldb's format and in JSON; other formats cannot express them."""
    program = (
        "import time\ndef waits():\n    print('ready', flush=True)\n    time.sleep(100)\nwaits()"
    )
    process = start(sys.executable, "-c", program)
    wait_blocked(process.pid)

    def run(*words):
        command = [sys.executable, "-m", "machtrace", "backtrace", str(process.pid), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    text = run("--python")
    assert text.returncode == 0
    rows = [line.split()[1:] for line in text.stdout.splitlines() if " Python " in line]
    assert rows == [
        ["Python", "waits", "at", "<string>:4"],
        ["Python", "<module>", "at", "<string>:5"],
    ]
    assert "[python] waits at <string>:4" in run("--python", "--format", "lldb").stdout
    (thread,) = json.loads(run("--python", "--format", "json").stdout)["threads"]
    (frame,) = (frame for frame in thread["frames"] if frame["python"])
    assert frame["symbol"].startswith("_PyEval_EvalFrameDefault")
    assert frame["python"][0] == {"function": "waits", "file": "<string>", "line": 4}
    for words in (("--format", "bs"), ("--format", "nsthread"), ("--no-names",)):
        refused = run("--python", *words)
        assert (refused.returncode, refused.stdout) == (2, "")
    assert " Python " not in run().stdout


def test_busy_threads_of_this_process_do_not_prolong_the_stop(start):
    """The interpreter's lock is not released for each read."""
    process = start(sys.executable, "-c", "print('ready', flush=True); input()")
    done = threading.Event()

    def spin():
        while not done.is_set():
            pass

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with LinuxProcessTarget(process.pid) as target:
            times = sorted(
                target.snapshot_with_python()[0].threads[0].stopped_for_ns for _ in range(7)
            )
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert times[0] < 1_000_000_000
