"""The watchdog in a program without Python, as other programs link it."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from machtrace.errors import MachtraceError
from machtrace.model.incident.facts import Verdict, WatchIncident
from machtrace.watching.own.record import read_record

if sys.platform != "linux":
    pytest.skip("the watchdog is for Linux", allow_module_level=True)

NATIVE = Path(__file__).parents[2] / "native"
SANITIZERS = "address,undefined"
LIMIT_NS = 100_000_000


def built(folder: Path, sanitizers: str = "") -> Path:
    """Compile the program with the watchdog's sources alone, and every warning as an error."""
    program = folder / "watched_in_c"
    sources = [
        Path(__file__).parent / "programs/watched_in_c.c",
        NATIVE / "common/linux/registers.c",
        *sorted(NATIVE.glob("inprocess/core/*.c")),
        *sorted(NATIVE.glob("inprocess/core/linux/*.c")),
    ]
    command = ["cc", "-std=c11", "-g", "-O1", "-pthread", f"-I{NATIVE}", "-Werror", "-Wall"]
    command += ["-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wstrict-prototypes", "-Wvla"]
    if sanitizers:
        command += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    command += [*map(str, sources), "-o", str(program), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and sanitizers and "sanitize" in done.stderr:
        pytest.skip(f"the compiler has no such sanitizer: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skip without a compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")


@pytest.mark.parametrize("sanitizers", ["", SANITIZERS])
def test_a_program_without_python_finds_its_hangs(sanitizers: str, tmp_path: Path) -> None:
    command = [str(built(tmp_path, sanitizers)), str(tmp_path / "record"), "{}", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    events = [tuple(line[1:]) for line in lines if line[0] == "event"]
    seen = [number for number, cause, phase, *_ in events if (cause, phase) == ("thread", "seen")]
    assert len(seen) >= 2
    assert [name for _, cause, phase, *name in events if (cause, phase) == ("scope", "seen")] == [
        ["parse"]
    ]
    for number in seen:
        assert (number, "thread", "ended") in events
        assert sum(line[:2] == ["capture", number] for line in lines) >= 3


def test_a_program_without_python_needs_no_function_of_it(tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    names = subprocess.run(
        ["nm", "-u", str(built(tmp_path))], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "nanosleep" in {name.partition("@")[0] for name in names}
    assert [name for name in names if name.startswith(("Py", "_Py"))] == []


def test_the_record_of_a_killed_program_without_python_names_the_function(tmp_path: Path) -> None:
    program, record = built(tmp_path), tmp_path / "record"
    text = json.dumps(
        {
            "path": str(program),
            "arch": "x86_64" if platform.machine() == "x86_64" else "arm64",
            "pointer_mask": (1 << 47) - 1,
            "limit_ns": LIMIT_NS,
            "python": 0,
            "runtime": None,
        }
    )
    incidents: tuple[WatchIncident, ...] = ()
    with subprocess.Popen([str(program), str(record), text, "hang"]) as process:
        until = time.monotonic() + 60
        while not incidents and time.monotonic() < until:
            time.sleep(0.2)
            with suppress(MachtraceError):  # it is created meanwhile
                incidents = read_record(record)
        process.send_signal(signal.SIGKILL)
    (incident,) = read_record(record)
    assert (incident.pid, incident.ended, incident.verdict) == (process.pid, None, Verdict.BUSY)
    assert incident.culprit is not None
    assert incident.culprit.function == "compute_for"
