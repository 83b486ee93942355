"""A process continues undisturbed after a capture."""

from __future__ import annotations

import ctypes
import operator
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from machtrace.errors import TargetGoneError, ThreadGoneError
from machtrace.targets.linux.process import LinuxProcessTarget


def state(pid: int, thread: int | None = None) -> str:
    """Return the letter of a thread's state."""
    return Path(f"/proc/{pid}/task/{thread or pid}/stat").read_text().rpartition(")")[2].split()[0]


def statuses(pid: int) -> list[dict[str, str]]:
    """Return ``status`` of each thread that still exists."""
    texts = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            texts.append((task / "status").read_text())
    return [
        dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line) for text in texts
    ]


def test_nothing_is_attached_afterwards(build, start, wait_until, copier):
    """No thread has a tracer; blocked ones are blocked again and running ones run."""
    process = start(build("threads"))

    def states() -> dict[str, str]:
        return {task["Name"]: task["State"][0] for task in statuses(process.pid)}

    # They may wait for each other for a moment, in another state.
    wait_until(lambda: sorted(states().values()) == ["R", *"SSSSSSS"], "they wait, and one runs")
    before = states()
    assert before["spin"] == "R"
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        for _ in range(10):
            target.snapshot()
    assert {task["TracerPid"] for task in statuses(process.pid)} == {"0"}
    wait_until(lambda: states() == before, "they wait again, and one runs")


def test_the_processor_time_of_a_running_thread_increases(build, start, wait_until, copier):
    process = start(build("signals"))

    def spent() -> list[int]:
        tasks = Path(f"/proc/{process.pid}/task")
        running = [task for task in tasks.iterdir() if int(task.name) != process.pid]
        assert len(running) == 2
        return [int((task / "schedstat").read_text().split()[0]) for task in running]

    with LinuxProcessTarget(process.pid, copier=copier) as target:
        target.snapshot()
    before = spent()
    wait_until(lambda: all(map(operator.gt, spent(), before)), "threads run")


def test_a_stopped_process_stays_stopped_until_sigcont(build, start, wait_until, copier):
    process = start(build("signals"))
    tasks = sorted(int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir())
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: all(state(process.pid, t) == "T" for t in tasks), "it stops")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        first = target.snapshot()
        wait_until(lambda: all(state(process.pid, t) == "T" for t in tasks), "it is stopped")
        second = target.snapshot()
    assert len(first.threads) == len(tasks)
    assert [t.registers for t in first.threads] == [t.registers for t in second.threads]
    wait_until(lambda: all(state(process.pid, t) == "T" for t in tasks), "it is stopped still")
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert (pid, os.WSTOPSIG(status)) == (process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: all(state(process.pid, t) in "RS" for t in tasks), "it continues")


def test_sigstop_and_sigcont_during_captures_have_their_effect(build, start, wait_until, copier):
    process = start(build("signals"))
    tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    spinning = [task for task in tasks if task != process.pid]
    done = threading.Event()

    def look() -> None:
        with LinuxProcessTarget(process.pid, copier=copier) as target:
            while not done.is_set():
                target.snapshot()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(20):
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: all(state(process.pid, t) in "Tt" for t in tasks), "it stops")
            os.kill(process.pid, signal.SIGCONT)
            wait_until(lambda: all(state(process.pid, t) in "RS" for t in spinning), "it continues")
        os.kill(process.pid, signal.SIGSTOP)
    finally:
        done.set()
        looking.join()
    wait_until(lambda: all(state(process.pid, t) == "T" for t in tasks), "it stays stopped")


def test_system_calls_continue(build, start, wait_blocked, copier):
    """None returns early or with EINTR, and a sleep has its full length."""
    process = start(build("calls"))
    wait_blocked(process.pid)
    names = {task["Name"]: int(task["Pid"]) for task in statuses(process.pid)}
    sleeping = names.get("nanosleep")
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        for _ in range(20):
            # On a busy machine the sleeping thread's time may be over, and its call returns.
            for problem in target.snapshot().problems:
                assert isinstance(problem.error, ThreadGoneError)
                assert problem.thread == sleeping
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


def test_signals_are_not_lost(build, start, copier):
    """Each of thousands of queued signals, sent during captures, reaches a handler."""
    process = start(build("signals"))
    done = threading.Event()
    looks: list[int] = []
    sigqueue = ctypes.CDLL(None).sigqueue
    sigqueue.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)

    def look() -> None:
        with LinuxProcessTarget(process.pid, copier=copier) as target:
            while not done.is_set():
                looks.append(len(target.snapshot().threads))

    looking = threading.Thread(target=look)
    looking.start()
    sent = 0
    try:
        while looking.is_alive() and (len(looks) < 40 or sent < 1000):
            # Unlike kill, it fails if the queue is full and a signal would be lost.
            if sigqueue(process.pid, signal.SIGRTMIN + 1, None) == 0:
                sent += 1
            else:
                os.sched_yield()
    finally:
        done.set()
        looking.join()
    assert len(looks) >= 40
    assert set(looks) == {3}
    out, _ = process.communicate(f"{sent}\n")
    assert int(out) == sent


def test_a_blocked_signal_stays_pending(build, start, wait_blocked, copier):
    process = start(build("calls"))
    wait_blocked(process.pid)
    os.kill(process.pid, signal.SIGRTMIN + 2)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        before = statuses(process.pid)[0]["ShdPnd"]
        target.snapshot()
        assert statuses(process.pid)[0]["ShdPnd"] == before
    assert int(before, 16) & 1 << signal.SIGRTMIN + 1


def capture_until_error(target: LinuxProcessTarget) -> None:
    while True:
        target.snapshot()


def test_a_fatal_signal_during_a_capture_kills_with_its_number(build, start, copier):
    for number in (signal.SIGTERM, signal.SIGSEGV):
        process = start(build("signals"))
        with LinuxProcessTarget(process.pid, copier=copier) as target:
            begun = threading.Event()

            def kill(process=process, begun=begun, number=number) -> None:
                begun.wait()
                os.kill(process.pid, number)

            killer = threading.Thread(target=kill)
            killer.start()
            begun.set()
            with pytest.raises(TargetGoneError):
                capture_until_error(target)
            killer.join()
        assert process.wait() == -number


def test_waiting_for_any_child_neither_hangs_nor_misleads_a_capture(build, start, copier):
    process = start(build("signals"))
    tasks = {int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()}
    done = threading.Event()
    strange = []

    def wait_for_any() -> None:
        while not done.is_set():
            pid, status = os.waitpid(-1, os.WNOHANG)
            # Children of a library that other tests use are excluded.
            if pid in tasks and not os.WIFSTOPPED(status):
                strange.append((pid, status))

    waiting = threading.Thread(target=wait_for_any)
    waiting.start()
    try:
        with LinuxProcessTarget(process.pid, copier=copier) as target:
            counts = {len(target.snapshot().threads) for _ in range(30)}
    finally:
        done.set()
        waiting.join()
    assert counts == {3}
    assert not strange
