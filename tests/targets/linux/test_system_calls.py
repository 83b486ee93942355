"""Which system calls ``machtrace_mark_restart`` restarts, by the registers of a stopped thread."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.peer

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "native"
# Indices in struct user_regs_struct (sys/user.h)
X86_64 = {"r10": 7, "rax": 10, "rdx": 12, "orig_rax": 15}


@pytest.fixture(scope="module")
def mark_restart(tmp_path_factory):
    """Apply the C function to a register set; return whether it changed any, and the result."""
    compiler = [found] if (found := shutil.which("cc")) else [sys.executable, "-m", "ziglang", "cc"]
    if found is None and find_spec("ziglang") is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("restart") / "restart"
    sources = [HERE / "restart.c", NATIVE / "common/linux/registers.c"]
    subprocess.run([*compiler, "-I", NATIVE, *sources, "-o", program], check=True, timeout=120)

    def run(registers):
        data = struct.pack("<H", len(registers)) + registers
        done = subprocess.run([program], input=data, capture_output=True, check=True, timeout=60)
        return bool(done.stdout[0]), done.stdout[1:]

    return run


def call(number, result, **registers):
    """Build the registers of x86-64 in a system call."""
    values = [5] * 27
    for name, value in {"orig_rax": number, "rax": result % (1 << 64), **registers}.items():
        values[X86_64[name]] = value
    return struct.pack("<27Q", *values)


EINTR, EAGAIN, RESTART = -4, -11, -514
FOREVER = (1 << 32) - 1


@pytest.mark.parametrize(
    ("number", "registers"),
    [
        (232, {"r10": FOREVER}),
        (281, {"r10": FOREVER}),
        (441, {"r10": 0}),
        (65, {}),
        (220, {"r10": 0}),
        (128, {"rdx": 0}),
    ],
)
def test_call_without_a_time_limit_is_restarted(mark_restart, number, registers):
    """Only its result changes."""
    is_changed, after = mark_restart(call(number, EINTR, **registers))
    assert is_changed
    assert after == call(number, RESTART, **registers)


@pytest.mark.parametrize(
    ("number", "result", "registers"),
    [
        (232, EINTR, {"r10": 100}),  # a limit: the call would begin again
        (441, EINTR, {"r10": 0x7000}),
        (128, EINTR, {"rdx": 0x7000}),
        (232, EAGAIN, {"r10": FOREVER}),
        (232, 1, {"r10": FOREVER}),
        (0, EINTR, {"r10": FOREVER}),  # read restarts by itself
        ((1 << 64) - 1, EINTR, {"r10": FOREVER}),  # no system call
    ],
)
def test_other_results_are_unchanged(mark_restart, number, result, registers):
    """The call has a time limit, restarts by itself, or did not fail with EINTR."""
    before = call(number, result, **registers)
    assert mark_restart(before) == (False, before)


def test_registers_of_other_architectures_are_unchanged(mark_restart):
    """Only x86-64 preserves the first argument beside the result."""
    for size in (68, 72, 272):
        before = b"\xff" * size
        assert mark_restart(before) == (False, before)
