"""Names in live processes of stripped programs: the true one, or none."""

from __future__ import annotations

import re
import shutil
import subprocess
from bisect import bisect_right
from pathlib import Path

import pytest

import machtrace as mt
from tests.support.command_line import run_command

NO_TABLES = (
    "-O2",
    "-fomit-frame-pointer",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
)
SOURCE = Path(__file__).parent / "programs" / "no_tables.c"


@pytest.fixture
def stripped(build, tmp_path):
    """A program without unwind tables, stripped; and its functions by address, from before."""
    program = build("no_tables", *NO_TABLES)
    nm, strip = shutil.which("nm"), shutil.which("strip")
    if nm is None or strip is None:
        pytest.skip("binutils is not installed; it strips the program")
    printed = subprocess.run(
        [nm, "--defined-only", program], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in printed.splitlines())
    functions = {int(value, 16): name for value, kind, name in rows if kind in "tT"}
    path = tmp_path / "no_tables"
    subprocess.run([strip, "-s", "-o", path, program], check=True)
    return path, functions


def own_frames(pid, label):
    """Return the frames of each thread that are in one image."""
    return [
        frame
        for stack in mt.backtraces(pid)
        for frame in stack.frames
        if frame.image is not None and frame.image.label == label
    ]


def test_functions_behind_the_last_unwind_table_have_no_names(start, wait_blocked, stripped):
    """They are not taken for the last one that the table describes, and not for each other."""
    path, functions = stripped
    process = start(path)
    wait_blocked(process.pid)
    frames = own_frames(process.pid, "no_tables")
    starts = sorted(functions)
    true = {
        functions[starts[bisect_right(starts, frame.image.offset_of(frame.address.lookup)) - 1]]
        for frame in frames
    }
    assert {"main", "block", "sleeper"} <= true
    for frame in frames:
        assert frame.symbol is None or frame.symbol.offset in functions
        assert not frame.symbol or not frame.symbol.is_named
    assert "? (image + 0x" in str(mt.backtraces(process.pid)[0])
    sampled = run_command("sample", process.pid, "--duration", "0.2", "--format", "folded").stdout
    assert "no_tables;" in sampled
    offsets = {int(digits, 16) for digits in re.findall(r"no_tables\+0x([0-9a-f]+)", sampled)}
    assert offsets <= {at for at, name in functions.items() if name == "_start"}


def test_blocked_threads_of_musl_are_not_named_after_the_function_before(
    start, wait_blocked, tmp_path
):
    """In musl's stripped library the code of blocking system calls follows ``memset``."""
    compiler = shutil.which("musl-gcc")
    if compiler is None:
        pytest.skip("musl-gcc is not installed; it links the program with musl")
    program = tmp_path / "musl"
    subprocess.run([compiler, "-O2", SOURCE, "-o", program], check=True)
    process = start(program)
    wait_blocked(process.pid)
    stacks = mt.backtraces(process.pid)
    assert len(stacks) == 4
    innermost = [stack.frames[0] for stack in stacks]
    assert {frame.image.label for frame in innermost} == {"libc.so"}
    assert [frame.symbol for frame in innermost] == [None] * 4
