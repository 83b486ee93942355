"""A process whose threads are all stopped together: nothing leaves it stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

_ptrace = pytest.importorskip("machtrace._native._ptrace", reason="the extension is not built")

SECOND_NS = 1_000_000_000
CALLER = """
import os, sys
from array import array
from machtrace._native import _ptrace
folder = os.open(f"/proc/{sys.argv[1]}/task", os.O_RDONLY)
frozen = _ptrace.FrozenProcess(folder, None, array("Q"), 4096, 10**10, 10**10)
print("ready", frozen.is_whole, flush=True)
input()
"""


@pytest.fixture
def freeze(start):  # noqa: ARG001 - a frozen program cannot be ended
    """Freezes a process, until the test is over at most."""
    frozen = []

    def run(pid, threads=None):
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY)
        try:
            ranges = array("Q", [0, (1 << 47) - 4096])
            limits = (10 * SECOND_NS, 10 * SECOND_NS)
            frozen.append(_ptrace.FrozenProcess(folder, threads, ranges, 4096, *limits))
        finally:
            os.close(folder)
        return frozen[-1]

    yield run
    while frozen:
        frozen.pop().resume()


def tracers(pid):
    """The state letter and the tracer of each thread."""
    texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    fields = [dict(line.partition(":\t")[::2] for line in text.splitlines()) for text in texts]
    return {(status["State"][0], int(status["TracerPid"])) for status in fields}


def assert_frozen_by(pid, tracer):
    """All threads of a process are stopped by the same thread of another."""
    ((state, thread),) = tracers(pid)
    assert state == "t"
    assert Path(f"/proc/{tracer}/task/{thread}").exists()


def test_all_threads_are_stopped_until_the_process_is_resumed(build, start, freeze):
    process = start(build("threads"))
    frozen = freeze(process.pid)
    assert frozen.is_whole
    assert len(frozen.threads) > 1
    assert_frozen_by(process.pid, os.getpid())
    rows = frozen.resume()
    assert [row[0] for row in rows] == frozen.threads
    assert {row[1] for row in rows} == {0}
    assert all(row[4] and row[5] for row in rows)
    assert {tracer for _, tracer in tracers(process.pid)} == {0}
    assert frozen.resume() == rows
    with pytest.raises(ValueError, match="resumed"):
        frozen.read(4096, 1)


def test_only_wanted_threads_are_copied(build, start, freeze):
    process = start(build("threads"))
    frozen = freeze(process.pid, (process.pid,))
    assert_frozen_by(process.pid, os.getpid())
    assert [row[0] for row in frozen.resume()] == [process.pid]


def test_a_dropped_object_resumes_the_process(build, start):
    process = start(build("threads"))
    folder = os.open(f"/proc/{process.pid}/task", os.O_RDONLY)
    _ptrace.FrozenProcess(folder, None, array("Q"), 4096, SECOND_NS, SECOND_NS)
    os.close(folder)
    assert {tracer for _, tracer in tracers(process.pid)} == {0}


def test_a_killed_caller_leaves_nothing_stopped(build, start, wait_until):
    process = start(build("threads"))
    command = [sys.executable, "-c", CALLER, str(process.pid)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as caller:
        assert caller.stdout.readline() == "ready True\n"
        assert_frozen_by(process.pid, caller.pid)
        caller.kill()
    wait_until(
        lambda: {tracer for _, tracer in tracers(process.pid)} == {0}, "the kernel resumes it"
    )
    assert "t" not in {state for state, _ in tracers(process.pid)}


def test_a_process_that_is_gone_is_reported(build, start):
    process = start(build("threads"))
    folder = os.open(f"/proc/{process.pid}/task", os.O_RDONLY)
    process.kill()
    process.wait()
    try:
        with pytest.raises(OSError, match="process"):
            _ptrace.FrozenProcess(folder, None, array("Q"), 4096, SECOND_NS, SECOND_NS)
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    ("threads", "stack_limit"), [((0,), 4096), ((-5,), 4096), ((1 << 40,), 4096), (None, 1 << 50)]
)
def test_invalid_arguments_stop_nothing(threads, stack_limit):
    with pytest.raises((ValueError, OverflowError)):
        _ptrace.FrozenProcess(-1, threads, array("Q"), stack_limit, SECOND_NS, SECOND_NS)
