"""Processes of a Mac by pid: signed test programs, with lldb as the peer.

Written for hosted Macs (``.github/workflows/macos.yml``); it has not been run yet.
"""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import TargetAccessError, TargetSpecError

if sys.platform != "darwin":
    pytest.skip("takes a Mac: processes are captured by Mach task ports", allow_module_level=True)
pytest.importorskip("machtrace._native._darwin_task", reason="the extension is not built")

DEPTH = 40
WAITING = {"deep", "com.example.machtrace"}
FRAME = re.compile(r"frame #(\d+): 0x([0-9a-f]+)")
THREAD = re.compile(r"thread #(\d+)")
Sign = Callable[..., Path]


@pytest.fixture
def signed(build: Callable[..., Path], tmp_path: Path) -> Sign:
    """Build the program, signed with these entitlements and options of codesign."""

    def sign(entitlements: dict[str, bool], *options: str) -> Path:
        program = Path(shutil.copy(build("mac_threads"), tmp_path / "mac_threads"))
        file = tmp_path / "entitlements.plist"
        file.write_bytes(plistlib.dumps(entitlements))
        command = ["codesign", "--force", "--sign", "-", "--entitlements", str(file), *options]
        subprocess.run([*command, str(program)], check=True, capture_output=True)
        return program

    return sign


@pytest.fixture
def process(signed: Sign, start: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """The running program, signed as Xcode signs debug builds."""
    return start(signed({"com.apple.security.get-task-allow": True}))


def count(process: subprocess.Popen[str]) -> int:
    """Return the counter of the running thread."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def refusal(pid: int) -> TargetAccessError:
    """Return why a process cannot be captured; skip the test if it can."""
    try:
        mt.snapshot(pid)
    except TargetAccessError as error:
        return error
    pytest.skip("System Integrity Protection is off here")


def test_threads_have_their_names_queues_and_frames(process: subprocess.Popen[str]) -> None:
    """The frames include the program's own functions and the system's around them."""
    stacks = {
        stack.thread.name or stack.thread.queue: stack for stack in mt.backtraces(process.pid)
    }
    assert WAITING | {"spin"} <= set(stacks)
    names = [frame.symbol.name for frame in stacks["deep"].frames if frame.symbol]
    assert names.count("descend") == DEPTH + 1
    assert "read" in names[0]
    served = [frame.symbol.name for frame in stacks["com.example.machtrace"].frames if frame.symbol]
    assert "serve" in served
    assert stacks["com.example.machtrace"].thread.queue == "com.example.machtrace"
    main = next(stack for stack in stacks.values() if stack.thread.is_main)
    assert "main" in [frame.symbol.name for frame in main.frames if frame.symbol]


def test_the_process_continues_after_a_hundred_captures(process: subprocess.Popen[str]) -> None:
    before = count(process)
    for _ in range(100):
        assert len(mt.snapshot(process.pid).threads) >= len(WAITING) + 2
    assert count(process) > before
    assert process.poll() is None


def test_frames_equal_those_of_lldb(process: subprocess.Popen[str]) -> None:
    """Waiting threads are at the same instruction when lldb attaches."""
    lldb = shutil.which("lldb")
    if lldb is None:
        pytest.skip("lldb is not installed")
    ours = {
        stack.thread.index: [frame.address.address for frame in stack.frames if not frame.inlined]
        for stack in mt.backtraces(process.pid, symbolicate=False)
        if (stack.thread.name or stack.thread.queue) in WAITING
    }
    command = [
        lldb,
        "--batch",
        "-p",
        str(process.pid),
        "-o",
        "thread backtrace all",
        "-o",
        "detach",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    theirs: dict[int, list[int]] = {}
    for line in printed.stdout.splitlines():
        if thread := THREAD.search(line):
            current = theirs.setdefault(int(thread[1]), [])
        elif theirs and (frame := FRAME.search(line)):
            current.append(int(frame[2], 16))
    assert ours
    assert theirs, printed.stderr
    for index, addresses in ours.items():
        assert addresses == theirs[index], index


def test_the_error_for_a_hardened_program_names_the_missing_entitlement(
    signed: Sign, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Root is refused, too."""
    process = start(signed({}, "--options", "runtime"))
    refused = refusal(process.pid)
    assert "get-task-allow" in f"{refused} {refused.remedy}"


def test_a_system_program_is_reported_as_such() -> None:
    """It may also be captured, where the system allows it."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        try:
            assert "part of macOS" in str(refusal(process.pid))
        finally:
            process.kill()


@pytest.mark.skipif(os.uname().machine != "arm64", reason="Rosetta runs on Apple's processors")
def test_a_translated_program_is_refused(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Its registers are those of the translated code."""
    source = Path(__file__).parent / "programs" / "mac_threads.c"
    program = tmp_path / "translated"
    command = ["cc", "-arch", "x86_64", "-O2", str(source), "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no x86_64 here")
    if subprocess.run(["arch", "-x86_64", "/usr/bin/true"], check=False).returncode:
        pytest.skip("Rosetta is not installed")
    with pytest.raises(TargetSpecError, match="Rosetta"):
        mt.snapshot(start(program).pid)
