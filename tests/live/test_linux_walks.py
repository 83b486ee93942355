"""Stacks of real processes equal those of gdb, down to each thread's start."""

from __future__ import annotations

import shutil
import sys

import pytest

from machtrace.model.stack import AddressKind, FrameTrust, StopReason
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.unwinder.unwinder import unwind

PYTHON = """
import threading
event = threading.Event()

def descend(depth):
    return descend(depth - 1) if depth else event.wait()

for index in range(4):
    threading.Thread(target=descend, args=(index * 5,), name=f"deep {index}").start()
threading.Thread(target=sorted, args=([2, 1],), kwargs={"key": lambda _: event.wait()}).start()
print("ready", flush=True)
event.wait()
"""

NODE = """
const { Worker } = require('node:worker_threads');
const cell = 'new Int32Array(new SharedArrayBuffer(4))';
const worker = new Worker(
  `require('node:worker_threads').parentPort.postMessage(0); Atomics.wait(${cell}, 0, 0)`,
  { eval: true });
worker.on('message', () => {
  console.log('ready');
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
});
"""


def addresses(snapshot):
    """Return the addresses of every thread's stack."""
    return {
        walked.thread.info.id: [frame.address for frame in walked.addresses]
        for walked in unwind(snapshot)
    }


def truth(gdb, pid):
    """Return the addresses that gdb unwinds."""
    return {thread["id"]: thread["addresses"] for thread in gdb(pid)["threads"]}


def test_all_frames_of_a_c_program_without_frame_pointers(build, start, wait_blocked, copier, gdb):
    """Threads that wait, recurse, sort, and handle signals on both kinds of stacks."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
    wait_blocked(process.pid, "spin")  # until then they are about to restart their calls
    actual, expected = addresses(snapshot), truth(gdb, process.pid)
    (running,) = (t.info.id for t in snapshot.threads if t.info.name == "spin")
    # It is in the same function, not at the same instruction.
    assert actual.pop(running)[1:] == expected.pop(running)[1:]
    assert actual == expected
    assert {walked.stop.reason for walked in unwind(snapshot)} == {StopReason.ROOT}
    assert max(map(len, actual.values())) > 60


def test_signal_frames_are_recognised(build, start, wait_blocked, copier):
    """The interrupted frame in the middle of the stack has an exact program counter."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        walks = unwind(target.snapshot())
    counters = {
        walked.thread.info.name: sum(
            f.kind is AddressKind.PROGRAM_COUNTER for f in walked.addresses
        )
        for walked in walks
    }
    # The innermost one, and the one that the signal interrupted.
    assert counters["handler"] == counters["other stack"] == 2
    assert counters["read"] == counters["recursion"] == 1


def test_all_frames_of_cpython_threads(start, wait_blocked, copier, gdb):
    """Several threads, deep ones and one inside a sort in C."""
    process = start(sys.executable, "-c", PYTHON)
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
    assert len(snapshot.threads) == 6
    wait_blocked(process.pid)
    assert addresses(snapshot) == truth(gdb, process.pid)
    assert {walked.stop.reason for walked in unwind(snapshot)} == {StopReason.ROOT}


def test_native_threads_of_node_equal_those_of_gdb(start, wait_blocked, gdb):
    """Except for threads with compiled JavaScript on the stack."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    process = start(node, "-e", NODE)
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid) as target:
        snapshot = target.snapshot()
    wait_blocked(process.pid)
    actual, expected = addresses(snapshot), truth(gdb, process.pid)
    assert set(actual) == set(expected)
    native = {
        thread: stack
        for thread, stack in expected.items()
        if all(snapshot.images.find(address) for address in stack)
    }
    assert len(native) >= 4
    assert {thread: actual[thread] for thread in native} == native


def test_a_snapshot_is_unwound_after_the_process_has_exited(build, start, wait_blocked):
    """Its images are read from their files."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    with LinuxProcessTarget(process.pid) as target:
        snapshot = target.snapshot()
    process.kill()
    process.wait()
    assert {walked.stop.reason for walked in unwind(snapshot)} == {StopReason.ROOT}


@pytest.mark.parametrize("spelling", ["long", "short"])
def test_a_signal_return_without_unwind_table_is_recognised_by_its_instructions(
    build, start, wait_blocked, spelling
):
    process = start(build("restorer"), *(["short"] if spelling == "short" else []))
    interrupted_at = int(process.stdout.readline(), 16)
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid) as target:
        (walked,) = unwind(target.snapshot())
    assert walked.stop.reason is StopReason.ROOT
    (place,) = [n for n, f in enumerate(walked.addresses) if f.address == interrupted_at]
    interrupted = walked.addresses[place]
    assert interrupted.kind is AddressKind.PROGRAM_COUNTER
    assert interrupted.trust is FrameTrust.SIGNAL_FRAME
    recursive = [frame.address for frame in walked.addresses[place + 1 : place + 7]]
    assert len(set(recursive[-6:-1])) <= 2, "five calls of one function lie outside"
    assert len(walked.addresses) - place >= 9
