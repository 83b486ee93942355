"""Python functions alone, threads' names, and the interpreter lock, of other processes."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

import machtrace as mt
from machtrace._native import _ptrace
from machtrace.cpython.threads import CopiedThreads, read_threads
from machtrace.errors import ArgumentError
from machtrace.model.memory import MemoryRegion
from machtrace.model.options import NameOptions, WalkOptions
from machtrace.model.snapshot import GilState
from machtrace.pipeline.backtraces import build_capture, capture_snapshot
from machtrace.render import json_document, text
from machtrace.reports.stacks.captures import capture_of
from machtrace.targets.linux.process import LinuxProcessTarget
from tests.live.test_python_functions import VERSIONS, functions, interpreter, running
from tests.support.writers.python_memory import PythonMemory

__all__ = ["running"]

NAMED = """
import ctypes, sys, threading, time
def waits(): threading.Event().wait()
def naps():
    while True: time.sleep(0.0001)
threads = [threading.Thread(target=waits, name=name, daemon=True) for name in ("first", "größe")]
threads += [threading.Thread(target=naps, name="napper", daemon=True)]
for thread in threads: thread.start()
threads[0].name = "renamed"
threads[0].__dict__
def holds():
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(1000)
holds()
"""
"""The main thread holds the lock: ``PyDLL`` does not release it for a call."""


@pytest.fixture(params=VERSIONS)
def named(request, start):
    """A process of each installed version with named threads, of which one holds the lock."""
    return start(interpreter(request.param), "-I", "-c", NAMED)


def test_stacks_of_python_functions_alone_equal_those_that_the_program_prints(running):
    process, printed = running
    stacks = mt.backtraces(process.pid, python="only")

    assert {stack.thread.id: functions(stack) for stack in stacks} == {
        thread: [*rows[:448], *rows[-64:]] if len(rows) > 512 else rows
        for thread, rows in printed.items()
    }
    assert all(frame.is_python and frame.image is None for s in stacks for frame in s.frames)


def test_threads_have_the_names_that_python_has(named):
    names = [stack.thread.name for stack in mt.backtraces(named.pid, python=True, lines=False)]
    assert names == ["MainThread", "renamed", "größe", "napper"]
    (stack,) = mt.backtraces(named.pid, threads="größe", python="only")
    assert functions(stack)[-1][0] == "Thread._bootstrap"
    (sampled,) = mt.sample(named.pid, threads="renamed", python="only", duration=0.1).threads
    assert sampled.info.name == "renamed"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="waiting is seen on x86-64 only")
def test_the_holder_of_the_lock_and_who_waits_for_it_are_known(named, wait_until):
    states = {}

    def napper_waits():
        for stack in mt.backtraces(named.pid, python="only"):
            states[stack.thread.name] = stack.thread.gil
        return states["napper"] is GilState.WAITS

    wait_until(napper_waits, "the last thread waits for the lock")
    assert states == {
        "MainThread": GilState.HOLDS,
        "renamed": None,
        "größe": None,
        "napper": GilState.WAITS,
    }
    profile = mt.sample(named.pid, python="only", gil=True, duration=0.2)
    assert [thread.info.name for thread in profile.threads] == ["MainThread"]


CHURN = """
import sys
print("ready", flush=True)
number = 0
while True:
    number = number % 9000 + 1
    name = f"made{number:04}"
    exec(compile(f"def {name}():\\n sum(range(3000))\\n{name}()", f"file{number:04}", "exec"), {})
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_code_in_the_place_of_freed_code_has_its_own_name(version, start):
    """Name and file of each function belong together."""
    process = start(interpreter(version), "-I", "-c", CHURN)
    seen = set()
    with LinuxProcessTarget(process.pid) as target:
        for _ in range(5000):
            _, runs = target.snapshot_with_python(stacks=False)
            made = [one for found in runs.values() for run in found for one in run]
            made = [one for one in made if one.name.startswith("made")]
            assert all(one.name[4:] == one.location.path[4:] for one in made)
            seen.update(one.name for one in made)
            if len(seen) == 30:
                return
    pytest.fail("the functions were seldom seen")


def test_formats_of_profiles_have_python_functions_alone(start, tmp_path):
    program = (
        "import time\ndef waits():\n    print('ready', flush=True)\n    time.sleep(100)\nwaits()"
    )
    process = start(sys.executable, "-c", program)

    def run(*words):
        command = [sys.executable, "-m", "machtrace", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    for form in ("text", "folded", "speedscope", "firefox", "json"):
        done = run("sample", str(process.pid), "--python=only", "-d", "0.3", "--format", form)
        assert done.returncode == 0
        assert "waits" in done.stdout
        assert "_PyEval" not in done.stdout
        assert "libc" not in done.stdout
    backtrace = run("backtrace", str(process.pid), "--python=only")
    path = tmp_path / "stacks.txt"
    path.write_text(backtrace.stdout)
    assert run("convert", str(path), "--format", "text").stdout == backtrace.stdout
    for words, reason in (
        (("backtrace", "--python=natives"), "'natives' is not one of"),
        (("backtrace", "--python=only", "--explain"), "leaves out"),
        (("backtrace", "--python=only", "--format", "bs"), "--python requires --format"),
        (("sample", "--gil"), "--gil requires --python"),
    ):
        refused = run(words[0], str(process.pid), *words[1:])
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr


def test_a_process_without_python_has_one_line_for_its_threads(start, build):
    process = start(build("threads"))
    names = NameOptions(python="only")
    snapshot, runs = capture_snapshot(process.pid, "all", WalkOptions(), names)
    capture = build_capture(snapshot, names=names, python=runs)

    assert capture.stacks == ()
    (line,) = capture.native_lines
    assert line.startswith(f"{len(snapshot.threads)} threads without Python functions: ")
    with pytest.raises(mt.errors.MachtraceError, match="no CPython"):
        mt.sample(process.pid, python="only", duration=0.1)


def test_threads_of_this_process_have_stacks_of_python_functions_alone():
    caller = mt.backtrace(python="only")
    assert caller.frames[0].python[0].name.startswith("test_threads_of_this_process")
    assert all(frame.is_python for frame in caller.frames)
    with pytest.raises(ArgumentError, match="no view"):
        mt.backtraces(python="natives")


def test_stacks_of_python_functions_are_read_back_from_json(named, tmp_path):
    names = NameOptions(python="only")
    snapshot, runs = capture_snapshot(named.pid, "all", WalkOptions(), names)
    capture = build_capture(snapshot, names=names, python=runs)
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(json_document.document(capture)))
    (report,) = mt.read_reports(path)
    again = capture_of(report)

    assert [stack.thread.gil for stack in again.stacks] == [
        stack.thread.gil for stack in capture.stacks
    ]
    assert [stack.frames for stack in again.stacks] == [stack.frames for stack in capture.stacks]
    shown, shown_again = io.StringIO(), io.StringIO()
    text.write(capture, shown)
    text.write(again, shown_again)
    assert shown_again.getvalue().split("\n")[2:] == shown.getvalue().split("\n")[2:]


# --- the reader in C, over the memory that tests write ---

HOLDER = """
import ctypes, sys
start, size = map(int, sys.argv[1:])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
assert libc.mmap(start, size, 3, 0x22 | 0x100000, -1, 0) == start
print("ready", flush=True)
sys.stdin.read()
"""
LINES = bytes([0x80 | 13 << 3 | 7, 2] * 8)
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)], ids=str)
def test_the_reader_in_c_returns_what_its_twin_does(version):
    """For valid and for hostile memory, with and without what it remembers of the last copy."""
    memory = PythonMemory(version)
    codes = [memory.code(name, "/a/ö.py", 10, LINES) for name in ("leaf", "größe", "函数")]
    first = memory.interpreter()
    for thread in range(1, 5):
        runs = [[memory.frame(code, thread) for code in codes], [memory.frame(codes[0], 0)]]
        memory.thread(first, thread, runs)
    region = memory.region()
    start, valid = region.start & -4096, bytes(region.start % 4096) + bytes(region.data)
    valid += bytes(-len(valid) % 4096)
    dice = random.Random(5)  # noqa: S311 - not for secrets
    reader = _ptrace.PythonReader(memory.layout.native(memory.runtime))
    decoder = CopiedThreads(memory.layout)
    command = [sys.executable, "-I", "-c", HOLDER, str(start), str(len(valid))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        task = os.open(f"/proc/{process.pid}/task", os.O_RDONLY)
        target = os.open(f"/proc/{process.pid}/mem", os.O_RDWR)
        try:
            for number in range(300):
                data = bytearray(valid)
                for _ in range(dice.randrange(12) if number % 3 else 0):
                    at = dice.randrange(0, len(data) - 8) & ~7
                    value = dice.choice([dice.randrange(len(data)) + start, 0, 5, (1 << 64) - 8])
                    data[at : at + 8] = value.to_bytes(8, "little")
                os.pwrite(target, data, start)
                options = (0, SECOND_NS, SECOND_NS, reader, True)
                _ptrace.FrozenProcess(task, (), array("Q"), *options).resume()
                copied = decoder.decode(reader.copied(), {})
                twin = read_threads(MemoryRegion(start, bytes(data)), memory.runtime, memory.layout)
                assert copied.functions == twin.functions
                assert {thread for thread, _ in copied.errors} == {one for one, _ in twin.errors}
        finally:
            os.close(task)
            os.close(target)
            process.stdin.close()
            process.wait()


def test_a_layout_of_another_size_is_refused():
    with pytest.raises(ValueError, match="size"):
        _ptrace.PythonReader(b"12345678")
    with pytest.raises(TypeError):
        _ptrace.FrozenProcess(0, (), array("Q"), 0, 1, 1, Path())
