"""Stacks through code that no table describes: no caller is lost, and no root is claimed."""

from __future__ import annotations

import platform
import subprocess
from bisect import bisect_right

import pytest

from machtrace.model.stack import FrameTrust, StopReason
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.sources.of_elf import LazyAnalysis
from machtrace.unwinder.unwinder import unwind

NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
GUESSES = {FrameTrust.FRAME_POINTER, FrameTrust.SCAN}

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="return addresses are scanned for on x86"
)


def functions_of(program):
    """Return a namer of the program's functions, by nm."""
    listed = subprocess.run(["nm", "-n", program], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    symbols = [(int(row[0], 16), row[2]) for row in rows if len(row) == 3]
    starts = [address for address, _ in symbols]
    return lambda offset: symbols[bisect_right(starts, offset) - 1][1]


def own_functions(walked, name, label):
    """Return the names of a stack's frames in the image ``label``."""
    frames = []
    for frame in walked.addresses:
        image = walked.snapshot.images.find(frame.lookup)
        if image is not None and image.label.startswith(label):
            frames.append(name(image.offset_of(frame.lookup)))
    return frames


def stripped_twin(build, tmp_path):
    """Return a program without tables and symbols, and a namer of its functions."""
    program = build("no_tables", *NO_TABLES)
    stripped = tmp_path / "no_tables"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    return stripped, functions_of(program)


@pytest.fixture
def no_analysis(monkeypatch):
    """Leave only conventions for code without tables, as for code that cannot be analysed."""
    monkeypatch.setattr(LazyAnalysis, "rule_for", lambda *_, **__: None)
    monkeypatch.setattr(LazyAnalysis, "rule_at_call", lambda *_: None)
    monkeypatch.setattr(LazyAnalysis, "function_at", lambda *_: None)


@pytest.mark.parametrize("is_analysed", [True, False])
def test_no_caller_is_lost_where_no_table_describes_the_code(
    build, start, wait_blocked, tmp_path, request, is_analysed
):
    """Each thread's stack reaches its start: by analysis, else by a scan, which is marked."""
    if not is_analysed:
        request.getfixturevalue("no_analysis")
    program, name = stripped_twin(build, tmp_path)
    process = start(program)
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid) as target:
        walks = {walked.thread.info.name: walked for walked in unwind(target.snapshot())}
    expected = {
        "deep": ["block", "with_room", *["descend"] * 5, "deep"],
        "shallow": ["block", "shallow"],
        "sleeper": ["sleeper"],
    }
    for thread, functions in expected.items():
        walked = walks[thread]
        assert own_functions(walked, name, "no_tables") == functions
        assert walked.stop.reason is StopReason.ROOT
        images = [walked.snapshot.images.find(frame.lookup) for frame in walked.addresses]
        trusts = [
            frame.trust
            for below, frame in zip(images, walked.addresses[1:], strict=False)
            if below.label.startswith("no_tables")
        ]
        assert set(trusts) <= ({FrameTrust.PROLOGUE} if is_analysed else GUESSES)


@pytest.mark.usefixtures("no_analysis")
def test_a_frame_pointer_of_zero_is_no_root(build, start, wait_blocked, tmp_path, monkeypatch):
    """If nothing on the stack is a return address either, the stack is incomplete."""
    program, _ = stripped_twin(build, tmp_path)
    process = start(program)
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid) as target:
        snapshot = target.snapshot()
    monkeypatch.setattr(RuleCache, "is_code", lambda *_: False)
    for walked in unwind(snapshot):
        assert walked.stop.reason is StopReason.NO_RULE
        assert "no unwind rule" in str(walked)
