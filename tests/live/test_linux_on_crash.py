"""``machtrace backtrace --on-crash``: programs traced until they crash or end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.test_linux_crashes import CRASHES, matches
from tests.support.command_line import run_command


def on_crash(*words, **options):
    """Run the command in a process of its own; no core is written."""
    return run_command("backtrace", "--on-crash", *words, timeout=200, **options)


def crash_of(text):
    """Return the thread that crashed of the JSON form, and the others."""
    threads = json.loads(text)["threads"]
    (crashed,) = [thread for thread in threads if thread["crashed"]]
    return crashed, [thread for thread in threads if not thread["crashed"]]


@pytest.mark.parametrize("how", CRASHES)
def test_a_crash_has_its_cause_and_the_stacks_of_all_threads(build, how):
    """The cause is that of a core of the same crash; the program dies by its signal."""
    done = on_crash("--format", "json", "--", build("faults"), how)
    crashed, others = crash_of(done.stdout)
    number = crashed["cause"]["signal_number"]
    assert done.returncode == 128 + number
    name = signal.Signals(number).name
    assert done.stderr.splitlines()[-1].endswith(f"faults was ended by {name}")
    functions = [frame["symbol"] for frame in crashed["frames"]]
    assert "crash" in functions
    assert len(others) == 2
    assert any(frame["symbol"] == "wait_forever" for thread in others for frame in thread["frames"])


@pytest.mark.parametrize("how", CRASHES)
def test_the_cause_is_that_of_a_core(build, how):
    done = on_crash("--", build("faults"), how)
    causes = [line.strip() for line in done.stdout.splitlines() if line.startswith("  SIG")]
    assert any(matches(cause, CRASHES[how]) for cause in causes), (causes, CRASHES[how])
    assert re.search(r" (rip|pc): 0x", done.stdout), "the registers"


def test_handled_signals_children_and_threads_are_no_crashes(build):
    """They reach the program; its exit status is reported."""
    done = on_crash("--", build("handled"))
    assert (done.stdout, done.returncode) == ("handled 3\n", 5)
    assert done.stderr.splitlines() == [f"machtrace: {build('handled')} exited with status 5"]


def test_a_crash_after_handled_signals(build):
    done = on_crash("--", build("handled"), "abort")
    assert done.returncode == 128 + signal.SIGABRT
    assert "SIGABRT (SI_TKILL)" in done.stdout
    assert "main" in done.stdout


def test_the_program_that_a_program_executes_is_traced(build):
    """Images and names are those of the new program."""
    done = on_crash("--", build("handled"), "exec", build("faults"), "null")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "fault" in done.stdout
    assert " wait_forever + " in done.stdout


def test_a_shell_script_that_executes_it(build, tmp_path):
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nexec {build("faults")} "$@"\n')
    script.chmod(0o755)
    done = on_crash("--", script, "null")
    assert done.returncode == 128 + signal.SIGSEGV
    assert " wait_forever + " in done.stdout


def test_success_is_reported_too():
    done = on_crash("--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "machtrace: true exited with status 0\n"


def test_the_signal_of_the_terminal_s_quit_key_shows_stacks():
    done = on_crash("--", "sh", "-c", "kill -QUIT $$")
    assert done.returncode == 128 + signal.SIGQUIT
    assert "SIGQUIT" in done.stdout


def test_a_signal_that_only_ends_a_program_is_no_crash():
    done = on_crash("--", "sh", "-c", "kill -TERM $$")
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")
    assert done.stderr == "machtrace: sh was ended by SIGTERM\n"


def test_job_control_stops_and_continues_a_traced_program():
    """A stop is not mistaken for an end, and the program continues after it."""
    code = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen(['sh', '-c', f'sleep 0.1; kill -CONT {os.getpid()}'])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "child.wait(); print('continued', flush=True); os.abort()\n"
    )
    done = on_crash("--no-lines", "--", sys.executable, "-I", "-S", "-c", code)
    assert done.returncode == 128 + signal.SIGABRT
    assert done.stdout.startswith("continued\n")
    assert "SIGABRT" in done.stdout


def test_a_python_program_has_its_python_functions(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os\ndef inner():\n    os.abort()\ndef outer():\n    inner()\nouter()\n"
    )
    done = on_crash("--python", "--no-lines", "--", sys.executable, program)
    assert done.returncode == 128 + signal.SIGABRT
    assert done.stdout.index(" inner ") < done.stdout.index(" outer "), done.stdout
    assert "program.py:3" in done.stdout


def test_a_running_process_is_traced_until_it_crashes(build):
    program = build("handled")
    with subprocess.Popen(
        [program, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "handled 3\n"
        command = [sys.executable, "-m", "machtrace", "backtrace", "--on-crash", str(process.pid)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as waiting:
            assert waiting.stderr.readline().startswith("machtrace: waiting until process ")
            process.communicate("\n")
            out, messages = waiting.communicate(timeout=200)
    assert process.returncode == -signal.SIGABRT
    assert waiting.returncode == 128 + signal.SIGABRT, messages
    assert "SIGABRT (SI_TKILL)" in out
    assert f"process {process.pid} was ended by SIGABRT" in messages


def test_ctrl_c_releases_a_running_process(build):
    program = build("handled")
    with subprocess.Popen(
        [program, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "handled 3\n"
        command = [sys.executable, "-m", "machtrace", "backtrace", "--on-crash", str(process.pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr.readline().startswith("machtrace: waiting until process ")
            waiting.send_signal(signal.SIGINT)
            waiting.communicate(timeout=200)
        assert waiting.returncode == 130
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0" in status
        process.communicate("\n")
    assert process.returncode == -signal.SIGABRT


def test_what_cannot_be_traced():
    for words, status, fact in (
        (("--", "no-such-program"), 127, "no such file or directory"),
        (("gdb://localhost:1",), 2, "--on-crash requires a process id or name"),
        ((str(os.getpid()),), 1, f"process {os.getpid()} is this process"),
        (("4194304",), 1, "process 4194304 does not exist"),
    ):
        done = run_command("backtrace", "--on-crash", *words)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(f"machtrace: {fact}"), done.stderr
    done = run_command("backtrace", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("machtrace: -- PROGRAM requires --on-crash")
