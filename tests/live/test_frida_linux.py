"""Stacks through Frida equal those read by ptrace(2), and nothing is left in the process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.cli.main import main
from machtrace.errors import (
    ConnectionLostError,
    MissingExtraError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.model.stack import StopReason
from machtrace.targets.frida.process import FridaTarget
from machtrace.targets.frida.script import within
from machtrace.targets.linux.process import LinuxProcessTarget

DEEP = 250


@pytest.fixture(scope="module", autouse=True)
def can_attach():
    """Return whether Frida is installed and may attach to a process of this user."""
    pytest.importorskip("frida", reason="frida:// needs the extra 'frida'")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            FridaTarget(f"frida://local/{process.pid}").close()
        except TargetError as error:
            pytest.skip(f"Frida cannot attach here: {error}")
        finally:
            process.kill()


def through_frida(pid, *threads, **options):
    """Capture a snapshot, and the number of threads Frida had in the process."""
    with FridaTarget(f"frida://local/{pid}") as target:
        copied = target.snapshot(threads or None, **options)
        return copied, target.hidden_threads


def from_outside(pid):
    """Capture a snapshot by ptrace(2)."""
    with LinuxProcessTarget(pid) as target:
        return target.snapshot()


def walks(snapshot):
    """Return every thread's addresses, with the source of each."""
    return {
        one.thread.info.id: [(frame.address, frame.kind, frame.trust) for frame in one.addresses]
        for one in mt.unwind(snapshot)
    }


def tasks(pid):
    """Return the ids of a process' threads."""
    return {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}


def names_of(stack):
    """Return the names of a thread's frames."""
    return [frame.symbol.name if frame.symbol else None for frame in stack.frames]


def test_a_deep_stack_is_complete(build, start, wait_blocked):
    """All frames are captured, not 16, from the blocking call to the thread's start."""
    process = start(build("deep"), str(DEEP))
    wait_blocked(process.pid)
    with FridaTarget(f"frida://local/{process.pid}") as target:
        _, deep = mt.backtraces(target)
    names = names_of(deep)
    inner = names.index("recurse")
    assert names[inner - 1] == "wait_here"
    assert names[inner : inner + DEEP] == ["recurse"] * DEEP
    assert names[inner + DEEP] == "start"
    assert deep.stop.reason is StopReason.ROOT


@pytest.fixture
def wait_without_frida(wait_until, wait_blocked):
    """Wait until a process has only these threads, all blocked again except "spin"."""

    def wait(pid, threads):
        wait_until(lambda: tasks(pid) == threads, "Frida's threads end")
        wait_blocked(pid, "spin")

    return wait


@pytest.mark.parametrize("program", ["threads", "deep"])
def test_blocked_threads_equal_a_capture_by_ptrace(build, start, wait_blocked, program):
    """Registers, addresses and their sources, names of threads, images and their files."""
    process = start(build(program), "3")
    wait_blocked(process.pid, "spin")
    before = from_outside(process.pid)
    wait_blocked(process.pid, "spin")  # until then they are about to restart their calls
    copied, hidden = through_frida(process.pid)
    running = {item.info.id for item in copied.threads if item.info.name == "spin"}
    assert copied.problems == ()
    assert hidden > 0
    known = {item.info.id for item in before.threads}
    # Frida names its threads after they have started: one may be listed that has no name yet.
    found = [item for item in copied.threads if item.info.id in known]
    assert [item.info for item in found] == [item.info for item in before.threads]
    for thread, expected in zip(found, before.threads, strict=True):
        if thread.info.id not in running:
            assert thread.registers.values[6:8] == expected.registers.values[6:8]
            assert (thread.registers.pc, thread.registers.sp) == (
                expected.registers.pc,
                expected.registers.sp,
            )
            assert thread.stopped_for_ns > 0
    there, here = walks(copied), walks(before)
    for thread in known - running:
        assert there[thread] == here[thread]
    images = {image.path: image for image in copied.images}
    for image in before.images:
        if image.path.startswith("/"):
            assert images[image.path].uuid == image.uuid
            assert images[image.path].load_address == image.load_address
            assert images[image.path].local_path == image.path


def test_a_handler_on_an_alternate_stack_does_not_end_the_walk(
    build, start, wait_blocked, wait_without_frida
):
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    before = tasks(process.pid)
    copied, _ = through_frida(process.pid)
    wait_without_frida(process.pid, before)
    outside = walks(from_outside(process.pid))
    (handling,) = [thread.info.id for thread in copied.threads if thread.info.name == "handler"]
    found = walks(copied)[handling]
    assert found == outside[handling]
    assert len(found) > 5


def test_nothing_of_frida_is_left_in_the_process(
    build, start, wait_blocked, wait_until, wait_without_frida
):
    """No thread, no tracer, no signal handler and no code; blocked threads are blocked again."""
    process = start(build("threads"))
    wait_blocked(process.pid, "spin")
    before = tasks(process.pid)

    def facts():
        text = Path(f"/proc/{process.pid}/status").read_text()
        return [
            line
            for line in text.splitlines()
            if line.startswith(("SigP", "SigB", "SigI", "SigC", "Shd", "Tra"))
        ]

    signals = facts()
    for _ in range(2):
        with FridaTarget(f"frida://local/{process.pid}") as target:
            for _ in range(5):
                target.snapshot()
    wait_without_frida(process.pid, before)
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: "frida" not in maps.read_text(), "Frida's code goes")
    wait_until(lambda: facts() == signals, "signals and tracer are as before")


def test_system_calls_continue(build, start, wait_blocked):
    """None returns early, and none reports EINTR."""
    process = start(build("calls"))
    wait_blocked(process.pid)
    sleeping = [
        int(task.name)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        if (task / "comm").read_text() == "nanosleep\n"
    ]
    with FridaTarget(f"frida://local/{process.pid}") as target:
        for _ in range(10):
            # On a busy machine the sleeping thread's time may be over, and its call returns.
            for problem in target.snapshot().problems:
                assert isinstance(problem.error, ThreadGoneError)
                assert problem.thread in sleeping
    out, _ = process.communicate("x")
    results = dict(line.split(" ", 1) for line in out.splitlines())
    assert results == {
        "read": "1 0",
        "poll": "1 0",
        "nanosleep": "0 0",
        "futex": "0 0",
        "epoll": "1 0",
        "semop": "0 0",
        "sigwait": "0 0",
    }


def test_signals_are_not_lost(build, start):
    """Signals that arrive while threads are copied reach their handlers and stop nothing."""
    process = start(build("signals"))
    done = threading.Event()
    sent = 0
    looks = []

    def look():
        with FridaTarget(f"frida://local/{process.pid}") as target:
            while not done.is_set():
                looks.append(len(target.snapshot().threads))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        deadline = time.monotonic() + 30
        while len(looks) < 20 and time.monotonic() < deadline:
            # One at a time: the queue of pending signals is bounded, and kill reports no overflow.
            os.kill(process.pid, signal.SIGRTMIN + 1)
            sent += 1
            time.sleep(0.001)
    finally:
        done.set()
        looking.join()
    assert set(looks) == {3}
    out, _ = process.communicate(f"{sent}\n")
    assert int(out) == sent


def test_only_requested_threads_are_copied(build, start, wait_blocked):
    """A thread that does not exist is reported."""
    process = start(build("deep"), "3")
    wait_blocked(process.pid)
    (second,) = tasks(process.pid) - {process.pid}
    copied, _ = through_frida(process.pid, second, 1)
    assert [thread.info.id for thread in copied.threads] == [second]
    assert [thread.info.index for thread in copied.threads] == [2]
    assert [(problem.thread, str(problem.error)) for problem in copied.problems] == [
        (1, "thread 1 does not exist")
    ]


def test_no_more_of_a_stack_than_the_limit_is_copied(build, start, wait_blocked):
    """The red zone comes on top of it."""
    process = start(build("deep"), "1000")
    wait_blocked(process.pid)
    copied, _ = through_frida(process.pid, stack_limit=4096)
    deep = copied.threads[1]
    assert len(deep.stack.data) == 4096 + 128
    assert deep.stack.start == deep.registers.sp - 128


def test_a_traced_thread_is_reported_and_copied_from_the_kernel(build, start, wait_blocked):
    """It is blocked, so that the kernel's record of its registers holds."""
    process = start(build("deep"), "40")
    wait_blocked(process.pid)
    (second,) = tasks(process.pid) - {process.pid}
    expected = walks(from_outside(process.pid))
    wait_blocked(process.pid)
    start(build("tracer"), str(second))
    copied, _ = through_frida(process.pid)
    (problem,) = copied.problems
    assert problem.thread == second
    assert "EPERM" in str(problem.error)
    assert "debugger" in problem.error.remedy
    found = walks(copied)
    assert [one[0] for one in found[second]] == [one[0] for one in expected[second]]


def test_an_uninterruptible_thread_does_not_block_the_capture(build, start, wait_until):
    """The kernel's record of its registers gives its stack."""
    process = start(build("vfork"))
    (thread,) = tasks(process.pid) - {process.pid}
    task = Path(f"/proc/{process.pid}/task/{thread}")
    wait_until(lambda: ") D " in (task / "stat").read_text(), "the thread waits for its child")
    copied, _ = through_frida(process.pid)
    outside = from_outside(process.pid)
    process.stdin.write("x")
    process.stdin.flush()
    (problem,) = copied.problems
    assert problem.thread == thread
    assert "uninterruptible sleep" in str(problem.error)
    assert [one[0] for one in walks(copied)[thread]] == [one[0] for one in walks(outside)[thread]]
    wait_until(lambda: not task.exists(), "the thread runs on and ends")


def test_a_saved_core_gives_the_same_stacks(build, start, wait_blocked, tmp_path):
    process = start(build("deep"), "60")
    wait_blocked(process.pid)
    copied, _ = through_frida(process.pid)
    mt.save_snapshot(copied, tmp_path / "copied.core")
    with mt.open_target(tmp_path / "copied.core") as core:
        again = walks(core.snapshot())
    assert [[one[0] for one in thread] for thread in again.values()] == [
        [one[0] for one in thread] for thread in walks(copied).values()
    ]


def test_a_process_is_found_by_name_unless_it_is_ambiguous(build, start, wait_blocked):
    program = build("deep", f"-DNAMED{os.getpid()}")
    process = start(program, "3")
    wait_blocked(process.pid)
    with mt.open_target(f"frida://local/{program.name}") as target:
        assert target.process.pid == process.pid
    start(program, "3")
    with pytest.raises(TargetSpecError, match=f"2 processes.*{process.pid}") as caught:
        mt.open_target(f"frida://local/{program.name}")
    assert "id of one" in caught.value.remedy


def test_the_command_prints_what_it_prints_for_the_process_id(
    build, start, wait_blocked, wait_without_frida, capsys, monkeypatch
):
    """The spec is ``frida://local/PID``; owners of locks are read for a process id only."""
    process = start(build("deep"), "30")
    wait_blocked(process.pid)
    before = tasks(process.pid)
    shown = []
    for spec in (f"frida://local/{process.pid}", str(process.pid)):
        monkeypatch.setattr(sys, "argv", ["machtrace", "backtrace", spec, "--format", "json"])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        shown.append(json.loads(capsys.readouterr().out)["threads"])
        for thread in shown[-1]:
            del thread["stopped_for_ns"]
            thread.pop("waits_for", None)
        wait_without_frida(process.pid, before)
    assert shown[0] == shown[1]
    assert "recurse" in str(shown[0])


# --- errors ---


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("frida://local/2147483647", TargetGoneError, "process id"),
        ("frida://local/no such program", TargetSpecError, "frida-ps"),
        ("frida://usb:no-such-device/Notes", ConnectionLostError, "connect it"),
        (f"frida://local/{os.getpid()}", TargetSpecError, "self"),
    ],
    ids=["no such process", "no such program", "no such device", "this process"],
)
def test_a_missing_target_is_reported_with_a_remedy(spec, kind, words):
    with pytest.raises(kind) as caught:
        mt.open_target(spec)
    assert words in caught.value.remedy


def test_a_port_without_a_server_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else can
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionLostError, match=str(port)) as caught:
            mt.open_target(f"frida://127.0.0.1:{port}/1")
    assert "frida-server" in caught.value.remedy


def test_the_time_limit_holds_for_a_silent_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(ConnectionLostError, match=r"within 0\.5 s") as caught:
            mt.open_target(f"frida://127.0.0.1:{server.getsockname()[1]}/1?timeout=0.5")
        assert time.monotonic() - began < 60
    assert "timeout" in caught.value.remedy


def test_the_remedy_without_frida_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "frida", None)
    with pytest.raises(MissingExtraError, match="extra 'frida'"):
        mt.open_target("frida://local/1")


def test_a_process_that_ends_during_a_capture_is_reported_at_once(build, start, wait_blocked):
    process = start(build("deep"), "3")
    wait_blocked(process.pid)
    with FridaTarget(f"frida://local/{process.pid}") as target:
        target.snapshot()
        process.kill()
        process.wait()
        with pytest.raises(TargetError, match=str(process.pid)):
            target.snapshot()
    with pytest.raises(TargetError, match="closed"):
        target.snapshot()


def test_a_stopped_process_stays_stopped(build, start, wait_blocked, wait_until):
    """Frida would resume it, so it is not used."""
    process = start(build("deep"), "3")
    wait_blocked(process.pid)
    state = Path(f"/proc/{process.pid}/stat")
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: ") T " in state.read_text(), "it stops")
    with pytest.raises(TargetError, match="is stopped") as caught:
        mt.open_target(f"frida://local/{process.pid}")
    assert str(process.pid) in caught.value.remedy
    assert ") T " in state.read_text()
    os.kill(process.pid, signal.SIGCONT)


def test_a_session_that_opens_after_the_time_limit_is_detached():
    undone, may_go_on = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        within(0.05, lambda: may_go_on.wait(10), lambda _: undone.set())
    assert not undone.is_set()
    may_go_on.set()
    assert undone.wait(10)


def test_the_process_runs_without_frida_after_ctrl_c(
    build, start, wait_blocked, wait_without_frida
):
    process = start(build("deep"), "3")
    wait_blocked(process.pid)
    before = tasks(process.pid)
    code = (
        "import signal, sys, machtrace as mt\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"with mt.open_target('frida://local/{process.pid}') as target:\n"
        "    target.snapshot()\n"
        "    print('looking', flush=True)\n"
        "    while True:\n"
        "        target.snapshot()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as looking:
        assert looking.stdout is not None
        assert looking.stdout.readline() == "looking\n"
        time.sleep(0.05)
        looking.send_signal(signal.SIGINT)
        _, said = looking.communicate(timeout=30)
    assert said.rstrip().endswith("KeyboardInterrupt")
    wait_without_frida(process.pid, before)
    assert process.poll() is None
