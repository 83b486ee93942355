"""Processes by name: which one is meant, and what is stated if none or several are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import machtrace as mt
from machtrace.cli.console import print_error
from machtrace.cli.doctor.command import capture
from machtrace.errors import TargetSpecError
from machtrace.targets.base import RunningProcess, choose_process
from machtrace.targets.open import System
from tests.support.command_line import run_command

NOON = 1_700_000_000.0


def process(pid, name, program="", *arguments, user=4242):
    return RunningProcess(pid, name, program, arguments, user, NOON)


LISTED = (
    process(1, "init", "", "/sbin/init"),
    process(20, "nginx", "/usr/sbin/nginx", "nginx: master process"),
    process(31, "a-very-long-nam", "/opt/a-very-long-name", "./a-very-long-name"),
    process(32, "a-very-long-nam", "/opt/a-very-long-name2", "./a-very-long-name2"),
    process(40, "gunicorn", "/usr/bin/python3.11", "python", "-u", "/srv/serve.py", "other.py"),
    process(41, "python3", "/usr/bin/python3.11", "python3", "-m", "http.server", "80"),
    process(42, "python3", "/usr/bin/python3.11", "python3", "-c", "serve.py"),
    process(50, "bash", "/bin/bash", "-bash"),
    process(51, "sudo", "", "sudo", "tcpdump"),
)


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("nginx", 20),
        ("init", 1),
        ("a-very-long-name", 31),
        ("gunicorn", 40),
        ("serve.py", 40),
        ("serve", 40),
        ("http.server", 41),
        ("bash", 50),
    ],
)
def test_a_process_has_several_names(name, pid):
    """Its own, those of its executable and of its first argument, and its script's."""
    assert choose_process(LISTED, name, "a process id") == pid


@pytest.mark.parametrize("name", ["other.py", "tcpdump", "-c", "80", ""])
def test_other_words_of_a_command_line_are_no_names(name):
    with pytest.raises(TargetSpecError, match="no file and no running process is named"):
        choose_process(LISTED, name, "a process id")


def test_several_processes_are_listed():
    """With id, command line, user and start; the hint repeats the ids."""
    with pytest.raises(TargetSpecError) as raised:
        choose_process(LISTED, "python3.11", "a process id")
    fact = str(raised.value)
    assert fact.startswith(
        "3 processes are named 'python3.11': 40 (python -u /srv/serve.py other.py;"
    )
    assert "; 41 (python3 -m http.server 80; user 4242; since 2023-11-1" in fact
    assert raised.value.remedy == "pass the id of one: 40, 41, 42"


def test_long_lists_and_command_lines_are_cut():
    many = [process(pid, "worker", "", "worker " + "x" * 200) for pid in range(1, 31)]
    with pytest.raises(TargetSpecError) as raised:
        choose_process(many, "worker", "a process id")
    assert str(raised.value).endswith(" and 22 more")
    assert len(str(raised.value)) < 1200
    assert raised.value.remedy == "pass the id of one: 1, 2, 3, 4, 5, 6, 7, 8"


def test_the_command_prints_a_row_for_each_process(capsys):
    """Rows are cut to the width, and escape what would control a terminal."""
    many = [process(pid, "worker", "", "worker " + "x" * 200) for pid in range(1, 31)]
    with pytest.raises(TargetSpecError) as raised:
        choose_process([process(0, "worker", "", "worker", "\x1b[2J"), *many], "worker", "an id")
    print_error(raised.value)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "machtrace: 31 processes are named 'worker'"
    assert lines[1].startswith("      0  2023-11-1")
    assert lines[1].endswith("  4242      worker \\x1b[2J")
    assert lines[2].startswith("      1  2023-11-1")
    assert lines[2].endswith("x…")
    assert max(map(len, lines)) == 100
    assert lines[-2:] == ["         and 11 more", "hint: pass the id of one"]


def test_doctor_has_the_number_of_processes_and_their_ids(monkeypatch):
    monkeypatch.setattr("machtrace.targets.linux.identity.running_processes", lambda: LISTED)
    monkeypatch.setattr("machtrace.targets.open.this_system", lambda: System.LINUX)
    finding = capture("python3.11")
    assert finding.found == "3 processes are named 'python3.11'"
    assert finding.remedy == "pass the id of one: 40, 41, 42"


@pytest.mark.parametrize(
    ("name", "near"), [("nginy", "nginx"), ("NGINX", "nginx"), ("long", "a-v")]
)
def test_near_names_are_in_the_hint(name, near):
    with pytest.raises(TargetSpecError) as raised:
        choose_process(LISTED, name, "a process id")
    assert f"pass a process id; similar names: {near}" in raised.value.remedy


@pytest.fixture
def named(tmp_path):
    """Return a program with a name of its own, started."""
    if sys.platform != "linux":
        pytest.skip("processes are listed on Linux")
    program = tmp_path / f"machtrace-named-{os.getpid()}"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "1000"]) as process:
        yield program.name, process.pid
        process.kill()


@pytest.mark.live
def test_commands_and_functions_take_a_name(named, tmp_path, monkeypatch):
    name, pid = named
    done = run_command("backtrace", "--no-lines", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name} [{pid}]")
    done = run_command("sample", "--no-lines", "-d", "50ms", "-f", "folded", name)
    assert done.returncode == 0, done.stderr
    with mt.open_target(name) as target:
        assert target.process.pid == pid
    # A folder of the name is no core; a file is opened.
    monkeypatch.chdir(tmp_path / "..")
    folder = tmp_path / "folder"
    (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
    with mt.open_target(name) as target:
        assert target.process.pid == pid
    (folder / name).rmdir()
    (folder / name).write_bytes(b"no core")
    done = run_command("backtrace", name)
    assert done.returncode == 1
    assert name in done.stderr
    assert "processes" not in done.stderr
    assert f"hint: for the running process of this name pass its id: {pid}\n" in done.stderr
    done = run_command("backtrace", f"./{name}")
    assert done.returncode == 1
    assert "running process" not in done.stderr


@pytest.mark.live
def test_this_process_is_never_the_one(named):
    """A Python that runs the tests does not find itself by its script."""
    from machtrace.targets.linux.identity import running_processes

    listed = {process.pid: process for process in running_processes()}
    assert os.getpid() not in listed
    assert named[0] in listed[named[1]].names
    assert listed[named[1]].user == os.getuid()
    assert listed[named[1]].arguments[1:] == ("1000",)


def test_an_unknown_scheme_is_no_name():
    with pytest.raises(TargetSpecError, match="unknown scheme"):
        mt.open_target("nope://1")
