"""Capturing all threads of a process under concurrent load, for a short while.

``python tests/live/torture.py --minutes 5 --capturers 3`` runs it for longer, and the environment
variable ``MACHTRACE_TORTURE_SECONDS`` makes these tests longer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")

HERE = Path(__file__).parent
NATIVE = Path(__file__).parents[2] / "native"
SECONDS = os.environ.get("MACHTRACE_TORTURE_SECONDS", "4")

pytestmark = pytest.mark.timeout(300 + 4 * int(SECONDS))


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skip without a compiler: the workers are C and C++."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("no C or C++ compiler")


@pytest.mark.parametrize("how", [["--capturers", "2"], ["--capturers", "0", "--external"]])
def test_no_worker_hangs_and_all_stacks_are_well_formed(how: list[str]) -> None:
    """With two capturing threads inside, Python snapshots, and captures from outside."""
    done = subprocess.run(
        [sys.executable, str(HERE / "torture.py"), "--seconds", SECONDS, *how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["workers"] >= 32
    assert all(checked["threads"] > 0 for checked in said["checked"])
    assert all(said["progress"].values()), "a kind of worker came nowhere"


@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
def test_two_threads_sample_32_others_under_sanitizers(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "own_capture"
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    sources = [
        *sorted(NATIVE.glob("inprocess/core/linux/*.c")),
        NATIVE / "common/linux/registers.c",
    ]
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
