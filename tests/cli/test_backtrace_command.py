"""``machtrace backtrace`` as a user meets it: output, errors and exit statuses."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.cli.backtrace import warn_of_guesses
from machtrace.formats.macho.core.writer import core_bytes
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.stack import FrameTrust
from machtrace.model.symbol import FrameStatus
from tests.render.test_formats import NAMED, STACK
from tests.support.command_line import run_command as machtrace
from tests.support.writers.processes import synthetic_process


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a complete core of three threads."""
    path = tmp_path_factory.mktemp("core") / "whole.core"
    path.write_bytes(synthetic_process(Arch.ARM64, threads=3, images=2, depth=6).core())
    return path


def test_every_thread_is_printed_and_the_status_is_0(core):
    done = machtrace("backtrace", core, "--format", "json")
    threads = json.loads(done.stdout)["threads"]

    assert (done.returncode, done.stderr) == (0, "")
    assert [len(thread["frames"]) for thread in threads] == [6, 6, 6]
    assert {"root"} == {thread["stop"]["reason"] for thread in threads}


def test_several_threads_are_chosen_by_repeating_the_option(core):
    chosen = ("--thread", "worker 3", "--thread", "main")
    done = machtrace("backtrace", core, *chosen, "--format", "json")
    assert [thread["index"] for thread in json.loads(done.stdout)["threads"]] == [1, 3]

    done = machtrace("backtrace", core, *chosen, "--thread", "nobody")
    assert done.returncode == 1
    assert "no thread matches 'nobody'" in done.stderr


@pytest.mark.parametrize(("wanted", "count"), [("main", 1), ("#2", 1), ("worker 3", 1), ("all", 3)])
def test_threads_are_chosen_by_what_people_call_them(core, wanted, count):
    """Threads are selected by role, by lldb's number or by name."""
    done = machtrace("backtrace", core, "--thread", wanted, "--format", "json")

    assert count == len(json.loads(done.stdout)["threads"])


@pytest.mark.parametrize(
    "words",
    [
        ("backtrace", "/no/such/file"),
        ("backtrace", "nothing-of-this-name"),
        ("backtrace", ""),
        ("backtrace", "x" * 300),
        ("backtrace", "."),
        ("backtrace", "4194304000"),
        ("backtrace", "emulated:other"),
        ("backtrace", "CORE", "--thread", "nobody"),
        ("backtrace", "CORE", "--search", "/no/such/folder"),
        ("image", "x" * 300 + ".dSYM"),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_an_error_is_a_fact_and_a_hint_with_status_1(core, words):
    """There is no traceback."""
    done = machtrace(*(core if word == "CORE" else word for word in words))

    assert (done.returncode, done.stdout) == (1, "")
    fact, hint = done.stderr.splitlines()
    assert fact.startswith("machtrace: ")
    assert hint.startswith("hint: ")


def test_a_core_with_one_bad_thread_yields_the_others(core, tmp_path):
    """The error names the thread with a truncated state; the others are printed, with status 1."""
    data = bytearray(core.read_bytes())
    state = data.index(bytes.fromhex("0400000020010000"), 32)  # LC_THREAD of 288 bytes
    second = data.index(bytes.fromhex("0400000020010000"), state + 8)
    data[second + 12 : second + 16] = (5000).to_bytes(4, "little")
    bad = tmp_path / "bad.core"
    bad.write_bytes(data)
    done = machtrace("backtrace", bad, "--format", "lldb")

    assert done.returncode == 1
    assert done.stdout.count("thread #") == 2
    fact, hint = done.stderr.splitlines()
    assert "thread state" in fact
    assert hint.startswith("hint: ")


def test_truncated_stacks_are_reported_if_the_format_cannot_show_them(tmp_path):
    """``bt all`` has no line for a stack that is incomplete."""
    process = synthetic_process(threads=3, depth=300)
    threads = tuple(
        replace(thread, stack=MemoryRegion(thread.stack.start, thread.stack.data[:4096]))
        for thread in process.snapshot.threads
    )
    path = tmp_path / "cut.core"
    path.write_bytes(core_bytes(replace(process.snapshot, threads=threads), process.regions))
    done = machtrace("backtrace", path, "--format", "lldb")

    assert done.returncode == 0
    assert "3 of 3 stacks are incomplete" in done.stderr


def test_disputed_frames_are_reported_if_the_format_cannot_show_them(tmp_path):
    """The code contradicts the unwind table: the stack is printed, with a warning."""
    process = synthetic_process(Arch.X86_64, threads=1, images=1, depth=6)
    data = bytearray(process.regions[0].data)
    offset = data.rindex(b"\0\0\0\x01", 0, len(data.rstrip(b"\0")))
    data[offset : offset + 4] = 0x02080000.to_bytes(4, "little")  # frameless, of 64 bytes
    path = tmp_path / "stale.core"
    regions = (MemoryRegion(process.regions[0].start, bytes(data)),)
    path.write_bytes(core_bytes(process.snapshot, regions))
    done = machtrace("backtrace", path, "--format", "lldb")

    assert done.returncode == 0
    assert "methods of unwinding disagree at" in done.stderr
    assert "[compact, but prologue finds 0x" in machtrace("backtrace", path).stdout


@pytest.mark.peer
def test_a_closed_pipe_ends_it_quietly(core):
    command = f"'{sys.executable}' -m machtrace backtrace '{core}' --format json; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | head -c 1"], capture_output=True, text=True, check=True
    )

    assert done.stderr == "0\n"


@pytest.mark.peer
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["backtrace CORE", "image CORE", "--help"])
def test_output_that_cannot_be_written_is_an_error(core, command):
    words = [str(core) if word == "CORE" else word for word in command.split()]
    with Path("/dev/full").open("w") as full:
        done = machtrace(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 1
    _, hint = done.stderr.splitlines()
    assert hint == "hint: redirect it to a file or pipe that is writable and has room"


@pytest.mark.peer
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_standard_error_changes_neither_output_nor_status(core, tmp_path):
    with Path("/dev/full").open("w") as full:
        streams = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": full}
        done = machtrace("snapshot", core, "--images", "none", "-o", tmp_path / "x.core", **streams)
        wrong = machtrace("backtrace", "nosuch", **streams)

    assert done.returncode == 0
    assert "3 threads" in done.stdout
    assert (wrong.returncode, wrong.stdout) == (1, "")


@pytest.mark.peer
@pytest.mark.parametrize("command", ["backtrace", "image", "--help", "--version"])
def test_closed_output_is_an_error(core, command):
    """The result was lost."""
    words = [command, str(core)] if command.isalpha() else [command]
    line = f'exec "$0" -m machtrace {" ".join(words)} >&-'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    fact, _ = done.stderr.splitlines()
    assert fact.startswith("machtrace: ")
    assert "standard output" in fact


@pytest.mark.peer
def test_any_encoding_takes_any_name(core):
    """Characters that the encoding lacks are escaped."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = machtrace("backtrace", core, env=environment)

    assert done.returncode == 0
    assert "\\u201cworker 2\\u201d" in done.stdout


def test_colours_are_for_terminals(core):
    """A pipe gets plain text."""
    assert "\x1b" not in machtrace("backtrace", core).stdout


def test_version_is_printed():
    done = machtrace("--version")

    assert done.returncode == 0
    assert done.stdout.startswith("machtrace ")


def test_explanations_are_refused_where_there_is_no_place_for_them():
    """The error lists the formats that show them."""
    done = machtrace("backtrace", "emulated:demo", "--explain", "--format", "lldb")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "machtrace: --explain requires --format text, json, not lldb",
        "hint: see machtrace backtrace --help",
    ]


@pytest.mark.emulated
def test_explanations_are_printed_below_the_frames():
    """Each frame has the method and its rule."""
    done = machtrace("backtrace", "emulated:demo", "--thread", "main", "--explain")
    assert done.returncode == 0
    assert "→ instruction analysis: interrupted" in done.stdout
    assert "pc = *(cfa - 8)" in done.stdout


@pytest.mark.parametrize("command", [["backtrace"], ["sample"], ["snapshot", "-o", "x.core"]])
def test_a_command_refuses_to_capture_itself(command):
    """``self`` stands for the user's program, which the command is not."""
    done = machtrace(*command, "self")
    assert (done.returncode, done.stdout) == (1, "")
    assert "self is this very command\nhint: pass a process id" in done.stderr


THREADS_EXIT = """
import threading, time
def work():
    time.sleep(0.003)
def restart():
    while True:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
threads = [threading.Thread(target=restart, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.live
def test_threads_that_exit_meanwhile_are_no_error():
    """They are counted in a line on standard error at most."""
    code = [sys.executable, "-c", THREADS_EXIT]
    with subprocess.Popen(code, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            for _ in range(5):
                done = machtrace("backtrace", process.pid, "--no-names")
                assert done.returncode == 0, done.stderr
                assert "hint: no action" not in done.stderr
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("status", "has_hint"),
    [
        (FrameStatus.MISSING_FILE, True),
        (FrameStatus.NOT_ASKED, True),
        (FrameStatus.SYMBOLICATED, False),
        (FrameStatus.MISSING_SYMBOL, False),
    ],
)
def test_guessed_callers_have_a_hint_only_if_files_may_help(capsys, status, has_hint):
    """A file that was read has no more information."""
    trusts = (FrameTrust.CONTEXT, FrameTrust.FRAME_POINTER)
    frames = [
        replace(NAMED, status=status, address=replace(NAMED.address, trust=trust))
        for trust in trusts
    ]
    warn_of_guesses([replace(STACK, frames=tuple(frames)), STACK])
    written = capsys.readouterr().err

    assert "in 1 of 2 stacks the first caller is a guess: " in written
    assert ("--search" in written) == has_hint


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="the target is a process of Linux")
def test_stacks_that_the_limit_cut_have_a_hint():
    """Each call of sorted() has a frame of C of its own."""
    hint = "hint: --stack-limit copies more\n"
    code = (
        "def f(n): return sorted([n], key=lambda n: f(n - 1) if n else print('ready') or input())"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", f"{code}\nf(100)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        cut = machtrace("backtrace", process.pid, "--stack-limit", "4096")
        whole = machtrace("backtrace", process.pid)
        process.kill()

    assert f"1 stack was copied up to the limit of 4,096 bytes only\n{hint}" in cut.stderr
    assert hint not in whole.stderr
