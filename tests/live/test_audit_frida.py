"""`audit run` of processes that run: the agent is loaded by Frida, and its spool read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.agent.build import library
from tests.audit.observed.test_run import rules_file
from tests.audit.observed.two_sdks import build_app, compile_program

pytest.importorskip("frida", reason="Frida is not installed")
THREADS, CALLS = 8, 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A program with a library that gets data, and the agent."""
    made = tmp_path_factory.mktemp("waits")
    shared = ["-shared", "-fPIC", f"-L{made}", f"-Wl,-rpath,{made}"]
    compile_program(made / "libdata.so", "data.c", *shared)
    compile_program(made / "libsdk.so", "sdk.c", *shared, "-DENTER=enter_sdk", "-ldata")
    links = [f"-L{made}", f"-Wl,-rpath,{made}", "-lsdk", "-ldata"]
    compile_program(made / "waits", "waits.c", *links)
    library(made)
    return made


@pytest.fixture
def process(folder):
    with subprocess.Popen(
        [folder / "waits", str(THREADS), str(CALLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout.readline() == "ready\n"
        try:
            yield started
        finally:
            started.kill()


def audit(folder: Path, tmp_path: Path, target: str, *words: object) -> subprocess.Popen[str]:
    """Start an audit; in a process of its own, since Frida's threads stay and block signals."""
    command = [sys.executable, "-m", "machtrace", "audit", "run", target, "--format", "json"]
    command += ["--rules", rules_file(tmp_path), "--agent", str(library(folder)), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_agent(running: subprocess.Popen[str]) -> None:
    """Wait until calls are recorded, and skip where Frida may not attach."""
    first = running.stderr.readline()
    if "recording process" not in first:
        _, errors = running.communicate()
        if "attach" in first:
            pytest.skip(f"Frida cannot attach here: {first}")
        pytest.fail(first + errors)


def say(process: subprocess.Popen[str], word: str) -> None:
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def finished(running: subprocess.Popen[str]) -> tuple[dict[str, object], str, int]:
    output, errors = running.communicate(timeout=120)
    return json.loads(output), errors, running.returncode


def calls_of(document) -> dict[str, int]:
    return {row["library"]: row["unstated"] + row["without_consent"] for row in document["calls"]}


@pytest.mark.live
@pytest.mark.parametrize("spelling", ["{pid}", "frida://local/{pid}"])
def test_every_call_of_a_running_process_has_its_library(folder, tmp_path, process, spelling):
    running = audit(folder, tmp_path, spelling.format(pid=process.pid))
    wait_for_agent(running)
    say(process, "go")
    assert process.stdout.readline() == "done\n"
    running.send_signal(signal.SIGINT)
    document, errors, status = finished(running)
    assert calls_of(document) == {"libsdk": THREADS * CALLS, "waits": 1}
    assert "attached while the process ran" in errors
    assert status == 2, "what happened before is unknown"
    assert process.poll() is None
    say(process, "end")
    assert process.wait(60) == 0
    left = Path(os.environ.get("TMPDIR", gettempdir())).glob(f"machtrace-{process.pid}-*")
    assert not list(left), "the spool was taken"


@pytest.mark.live
def test_a_process_that_ends_meanwhile_has_its_calls(folder, tmp_path, process):
    running = audit(folder, tmp_path, str(process.pid), "--consent", "never")
    wait_for_agent(running)
    say(process, "go")
    assert process.stdout.readline() == "done\n"
    say(process, "end")
    assert process.wait(60) == 0
    document, _, _ = finished(running)
    assert calls_of(document) == {"libsdk": THREADS * CALLS, "waits": 1}


@pytest.mark.live
def test_a_time_ends_the_audit(folder, tmp_path, process):
    document, _, status = finished(audit(folder, tmp_path, str(process.pid), "--for", "0.5s"))
    assert document["calls"] == []
    assert status == 2
    assert process.poll() is None


@pytest.mark.live
@pytest.mark.parametrize(
    ("target", "fact"),
    [
        ("999999999", "process"),
        ("frida://local", "invalid frida:// target"),
        ("frida://local/no-such-program-here", "no process is named"),
    ],
)
def test_targets_that_are_not_there(folder, tmp_path, target, fact):
    running = audit(folder, tmp_path, target)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 2
    assert fact in errors
    assert "Traceback" not in errors


@pytest.mark.live
def test_an_agent_that_cannot_be_loaded(tmp_path, process):
    bad = tmp_path / "agent.so"
    bad.write_bytes(b"no library")
    command = [sys.executable, "-m", "machtrace", "audit", "run", str(process.pid)]
    command += ["--agent", str(bad), "--rules", rules_file(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "the agent cannot be loaded" in done.stderr
    assert process.poll() is None


@pytest.mark.live
def test_a_started_program_is_recorded_from_its_own_initialisers_on(folder, tmp_path):
    """Those of libraries are earlier, which is stated: libone called libtwo when it was loaded."""
    program = build_app(tmp_path)
    running = audit(folder, tmp_path, f"frida://local/{program}", "--spawn", "--consent", "never")
    document, errors, status = finished(running)
    assert "initialisers of libraries ran before" in errors
    assert calls_of(document) == {"libtwo": 3}
    assert status == 2
