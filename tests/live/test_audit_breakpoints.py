"""`audit run gdb://` and `device://` with lldb-server and gdbserver, held to programs' own counts.

No device is involved: behind `device://` there is lldb-server, too.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from machtrace.cli.application import app
from machtrace.errors import MachtraceError
from tests.audit.observed.two_sdks import build_app, compile_program
from tests.support.stand_ins.devices import SyntheticDevice, SyntheticDevices
from tests.support.stand_ins.pymobiledevice3 import installed
from tests.support.stand_ins.usbmuxd import free_port

SCHEMA = json.loads(Path("docs/audit.schema.json").read_text(encoding="utf-8"))
LLDB_SERVERS = ("lldb-server", *(f"lldb-server-{version}" for version in range(22, 13, -1)))
THREADS, CALLS = 4, 100
AFTER = THREADS * CALLS
RULES = """
schema = 1
name = "test"
policies = ["before-consent: fault"]
[[rules]]
watch = "observed"
category = "Contacts"
[[rules]]
watch = "not_there"
category = "Contacts"
"""
APP = "com.example.app"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return build_app(tmp_path_factory.mktemp("breakpoints"))


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES, encoding="utf-8")
    return path


def installed_program(*names):
    """Return the first of these programs that is installed."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"{names[-1]} is not installed")
    return path


def lldb_words(port, words, pid):
    """Return the command of lldb-server."""
    of_process = ["--attach", pid] if pid else []
    program = [] if not words else ["--", *words]
    server = installed_program(*LLDB_SERVERS)
    return [server, "gdbserver", *of_process, f"127.0.0.1:{port}", *program]


def gdb_words(port, words, pid):
    """Return the command of gdbserver."""
    server = [installed_program("gdbserver"), "--once"]
    if pid:
        return [*server, "--attach", f"127.0.0.1:{port}", pid]
    return [*server, f"127.0.0.1:{port}", *words]


STUBS = pytest.mark.parametrize("command", [lldb_words, gdb_words], ids=["lldb-server", "gdb"])


@pytest.fixture
def serve(wait_until):
    """Start a stub with a program or a process; return its port once it listens."""
    stubs = []

    def run(command, *words, pid=None):
        port = free_port()
        line = [str(word) for word in command(port, words, pid)]
        stubs.append(
            subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        wanted = f":{port:04X} "

        def listens():
            assert stubs[-1].poll() is None, f"{line[0]} ended"
            return any(
                row.split()[3] == "0A" and wanted in row
                for table in ("tcp", "tcp6")
                for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            )

        wait_until(listens, "the stub listens")
        if pid:  # gdbserver listens before it attaches
            wait_until(lambda: state(pid)[0] == "t", "the process is stopped")
        return port

    yield run
    for stub in stubs:
        stub.kill()
        stub.wait()


def state(pid):
    """Return the state letter of a process and its tracer."""
    text = Path(f"/proc/{pid}/status").read_text()
    return re.search(r"State:\t(\w)", text)[1], int(re.search(r"TracerPid:\t(\d+)", text)[1])


def audit(*words):
    return CliRunner().invoke(app, ["audit", "run", *map(str, words)], standalone_mode=False)


def document(*words):
    """Return the exit status and the report."""
    result = audit("--format", "json", *words)
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    jsonschema.validate(report, SCHEMA)
    return result.return_value, report


def by_library(report):
    return {
        (row["library"], row["owner"]): (row["without_consent"], row["with_consent"])
        for row in report["calls"]
        if row["watch"] == "observed"
    }


@STUBS
@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["whole", "quick"])
def test_every_call_from_the_first_initialiser_on_has_its_library(
    command, quick, serve, program, rules
):
    """Libraries are mapped, and their constructors run, after the stub has started the program."""
    port = serve(command, program, THREADS, CALLS)
    options = ["--rules", rules, "--consent", "call:agree", *quick]
    status, report = document(*options, f"gdb://127.0.0.1:{port}")
    assert by_library(report) == {
        ("app", "app"): (1, AFTER),
        ("libone", "libone"): (2, AFTER),
        ("libtwo", "libone"): (2, AFTER),
        ("libtwo", "libtwo"): (3, 0),
    }
    assert report["problems"] == []
    assert status == 1
    (process,) = report["processes"]
    assert (process["from_start"], process["app"]) == (True, "app")
    assert [(each["watch"], each["reason"]) for each in report["dead"]] == [
        ("not_there", "nothing defines it")
    ]


@STUBS
def test_a_process_that_is_attached_to_late_cannot_be_judged(command, serve, program, rules, start):
    process = start(program, THREADS, CALLS, "wait", start_new_session=True)
    port = serve(command, pid=process.pid)
    process.stdin.write("go\n")  # it is read once the stub lets the process run
    process.stdin.flush()
    status, report = document(
        "--rules", rules, "--consent", "call:agree", f"gdb://127.0.0.1:{port}"
    )
    assert by_library(report) == {
        ("app", "app"): (1, AFTER),
        ("libone", "libone"): (1, AFTER),
        ("libtwo", "libone"): (1, AFTER),
    }
    assert status == 2
    assert any("attached while the process ran" in problem for problem in report["problems"])
    assert report["processes"][0]["from_start"] is False
    assert process.wait(timeout=30) == 0


@STUBS
def test_after_its_time_the_process_runs_without_breakpoints(
    command, serve, program, rules, start, wait_until
):
    process = start(program, THREADS, CALLS, "wait", start_new_session=True)
    port = serve(command, pid=process.pid)
    status, report = document("--rules", rules, "--for", "0.2s", f"gdb://127.0.0.1:{port}")
    assert (status, report["calls"]) == (2, [])
    wait_until(lambda: state(process.pid) == ("S", 0), "it waits, untraced")
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.wait(timeout=30) == 0


def test_ctrl_c_ends_with_a_report(serve, program, rules, start, wait_until):
    process = start(program, THREADS, 1_000_000_000, "wait", start_new_session=True)
    port = serve(lldb_words, pid=process.pid)
    process.stdin.write("go\n")
    process.stdin.flush()
    words = ["audit", "run", "--rules", rules, f"gdb://127.0.0.1:{port}"]
    command = [sys.executable, "-m", "machtrace", *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        tasks = Path(f"/proc/{process.pid}/task")
        wait_until(lambda: len(list(tasks.iterdir())) == 1 + THREADS, "its threads call")
        run.send_signal(signal.SIGINT)
        shown, errors = run.communicate(timeout=60)
    assert run.returncode == 2, errors
    assert re.match(r"nothing found in [\d,]+ calls? of 1 process\n", shown)
    assert re.search(r"observed: ([\d,]+) hits?, \1 delivered\n", shown)
    wait_until(lambda: state(process.pid)[1] == 0, "it is untraced")
    assert process.poll() is None


@pytest.mark.parametrize("depth", [3, 20_000])
def test_a_stack_is_whole_however_deep_it_is(depth, serve, program, rules):
    folder = program.parent
    compile_program(folder / "deep", "deep.c", f"-L{folder}", f"-Wl,-rpath,{folder}", "-ldata")
    port = serve(lldb_words, folder / "deep", depth)
    words = ["--rules", rules, "--consent", "never", f"gdb://127.0.0.1:{port}"]
    _, report = document(*words)
    (finding,) = report["findings"]
    frames = [[frame["function"] for frame in stack["frames"]] for stack in finding["stacks"]]
    assert sorted(names.count("descend") for names in frames) == [0, depth + 1]
    assert {names[-1] for names in frames} == {"_start"}
    assert report["problems"] == []


def test_a_library_that_is_loaded_later_is_watched(serve, program, rules):
    folder = program.parent
    script = f"import ctypes; two = ctypes.CDLL('{folder}/libtwo.so'); two.second(1); two.second(2)"
    port = serve(lldb_words, sys.executable, "-c", script)
    words = ["--rules", rules, "--consent", "never", f"gdb://127.0.0.1:{port}"]
    _, report = document(*words)
    calls = {row["library"]: row["without_consent"] for row in report["calls"]}
    assert calls == {"libtwo": 2}


def test_a_device_is_recorded_through_its_debugserver(serve, program, rules, start, wait_until):
    """The library and debugserver are stand-ins; the rest is what runs with a phone."""
    process = start(program, THREADS, CALLS, "wait")
    port = serve(lldb_words)

    def go():
        wait_until(lambda: state(process.pid)[1] != 0, "it is traced, and stopped")
        process.stdin.write("go\n")
        process.stdin.flush()

    threading.Thread(target=go).start()
    apps = {APP: {"ApplicationType": "User", "Entitlements": {"get-task-allow": True}}}
    device = SyntheticDevice(version="17.5", apps=apps, running={APP: process.pid}, port=port)
    with installed(SyntheticDevices(devices=[device])):
        status, report = document("--rules", rules, "--consent", "call:agree", f"device:///{APP}")
    assert by_library(report)["app", "app"] == (1, AFTER)
    assert status == 2, "it was attached to late"


def test_a_function_that_is_never_called_was_watched(serve, program, tmp_path):
    """The C library defines it."""
    path = tmp_path / "rules.toml"
    path.write_text(RULES.replace('"observed"', '"gethostid"'), encoding="utf-8")
    port = serve(lldb_words, program, 1, 1)
    status, report = document("--rules", path, f"gdb://127.0.0.1:{port}")
    assert (status, report["calls"], report["unwatched"]) == (0, [], 0)


def test_rules_that_name_nothing_are_answered(serve, program, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES.replace('"observed"', '"no_such_function"'), encoding="utf-8")
    port = serve(lldb_words, program, 1, 1)
    status, report = document("--rules", path, f"gdb://127.0.0.1:{port}")
    assert (status, report["calls"], report["unwatched"]) == (2, [], 0)
    assert {each["watch"] for each in report["dead"]} == {"no_such_function", "not_there"}


def test_what_gives_consent_must_be_there(serve, program, rules):
    port = serve(lldb_words, program, 1, 1)
    words = ["--rules", rules, "--consent", "call:no_such_function", f"gdb://127.0.0.1:{port}"]
    status, report = document(*words)
    assert status == 2
    assert any(
        "no_such_function, which gives consent, is not" in problem for problem in report["problems"]
    )


def test_wrong_targets_are_refused(rules):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen
        closed = f"gdb://127.0.0.1:{unused.getsockname()[1]}"
        result = audit("--rules", rules, closed)
        assert_refused(result, "cannot connect")
    assert_refused(audit("--rules", rules, "gdb://nothing"), "host and port are missing")
    assert_refused(audit("--rules", rules, "device://x"), "no UDID")
    assert_refused(audit("--rules", rules, "--consent", "log:x", closed), "do not observe log:x")
    assert "one process is recorded at a time" in str(audit(closed, closed).exception)


def assert_refused(result, text):
    """Check that a command could not judge, and states why."""
    assert result.return_value == 2 or isinstance(result.exception, MachtraceError)
    assert text in result.output + str(result.exception)
