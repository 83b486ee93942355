"""Capturing all threads of a process that does everything at once, for a short while.

``python tests/live/torture.py SECONDS`` does it for as long as wanted, and the environment variable
``MACHTRACE_TORTURE_SECONDS`` makes these tests longer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import machtrace

pytest.importorskip("machtrace._native._self", reason="the extension is not built")

HERE = Path(__file__).parent
NATIVE = Path(machtrace.__file__).parent / "_native"
SECONDS = os.environ.get("MACHTRACE_TORTURE_SECONDS", "4")

pytestmark = pytest.mark.timeout(300 + 4 * int(SECONDS))


@pytest.fixture(autouse=True)
def compiler() -> None:
    """The core is compiled once more, to be run without Python's lock."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")


def test_python() -> None:
    """Nothing stands still or breaks, and all stacks are well formed."""
    done = subprocess.run(
        [sys.executable, str(HERE / "torture.py"), SECONDS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["sampled"]["copied"] > 0
    assert said["captured"]["snapshots"] > 0
    assert len(said["progress"]) == 10, "a kind of worker came nowhere"


@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
def test_the_core_alone(sanitizer: str, tmp_path: Path) -> None:
    """Two threads sample 32 others; sanitizers find nothing."""
    program = tmp_path / "own_capture"
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    sources = [*sorted(NATIVE.glob("capture_linux*.c")), NATIVE / "linux_registers.c"]
    command = ["cc", "-std=c11", "-g", "-O1", "-pthread", "-DPROGRAM", f"-I{NATIVE}", *flags]
    command += [str(HERE / "programs/own_capture.c"), *map(str, sources)]
    built = subprocess.run(
        [*command, "-o", str(program), "-ldl"], capture_output=True, text=True, check=False
    )
    if built.returncode and sanitizer:
        pytest.skip(f"the compiler has no such sanitizer: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), SECONDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "malformed 0" in done.stdout
