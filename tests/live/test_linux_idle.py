"""Polls of idle threads without Python: they end when a thread is elsewhere."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from machtrace.model.polls import IdleRequest, ThreadPoll
from machtrace.targets.linux.watched import WatchedProcess
from tests.live.conftest import PROGRAMS

Start = Callable[..., subprocess.Popen[str]]
FOREVER_NS = 1 << 62


@pytest.fixture
def process(start: Start) -> subprocess.Popen[str]:
    return start(sys.executable, PROGRAMS / "watched.py")


@pytest.fixture
def target(process: subprocess.Popen[str]) -> Iterator[WatchedProcess]:
    with WatchedProcess(process.pid) as target:
        yield target


def idle_poll(target: WatchedProcess, thread: int) -> ThreadPoll:
    """Poll a thread until it waits in its loop."""
    while True:
        poll = target.poll_thread(thread, with_status=False)
        if poll.call is not None and poll.call.number > 0:
            return poll


def requested(
    *, until_ns: int = FOREVER_NS, most_cpu_ns: int = FOREVER_NS, is_traced: bool = False
) -> IdleRequest:
    """Return a request; processor time counts from the process's start."""
    return IdleRequest(
        interval_ns=1_000_000,
        due_ns=time.monotonic_ns(),
        check_ns=FOREVER_NS,
        until_ns=until_ns,
        cpu_ns=0,
        most_cpu_ns=most_cpu_ns,
        is_traced=is_traced,
    )


def test_an_idle_thread_is_polled_until_the_time_is_over(
    process: subprocess.Popen[str], target: WatchedProcess
) -> None:
    first = idle_poll(target, process.pid)
    until = time.monotonic_ns() + 20_000_000
    waited = target.wait_idle({process.pid: first}, requested(until_ns=until))
    assert waited is not None
    outcome, polls = waited
    assert outcome.due_ns >= until
    assert outcome.polls >= 1
    last = polls[process.pid]
    assert last.call == first.call
    assert first.at_ns < last.at_ns < time.monotonic_ns()
    assert last.run_ns is not None
    assert last.late_ns == 0


def test_processor_time_from_before_the_wait_ends_it(
    process: subprocess.Popen[str], target: WatchedProcess
) -> None:
    """The process may have done something between its last poll and the wait."""
    first = idle_poll(target, process.pid)
    for request in (requested(most_cpu_ns=0), requested()._replace(check_ns=0)):
        waited = target.wait_idle({process.pid: first}, request)
        assert waited is not None


def test_it_ends_when_the_thread_is_elsewhere(
    process: subprocess.Popen[str], target: WatchedProcess
) -> None:
    first = idle_poll(target, process.pid)
    assert process.stdin is not None
    process.stdin.write("block\n")
    process.stdin.flush()
    assert target.wait_idle({process.pid: first}, requested()) is not None
    now = target.poll_thread(process.pid, with_status=False)
    assert now.call is None or first.call is None or now.call.place != first.call.place


def test_another_thread_ends_it(process: subprocess.Popen[str], target: WatchedProcess) -> None:
    first = idle_poll(target, process.pid)
    waker = threading.Timer(0.01, target.wake)
    waker.start()
    assert target.wait_idle({process.pid: first}, requested()) is not None
    waker.join()
    # The request is used up: the next wait lasts.
    until = time.monotonic_ns() + 5_000_000
    waited = target.wait_idle({process.pid: first}, requested(until_ns=until))
    assert waited is not None
    assert waited[0].polls >= 1


def test_the_end_of_the_process_ends_it(
    process: subprocess.Popen[str], target: WatchedProcess
) -> None:
    first = idle_poll(target, process.pid)
    process.kill()
    assert target.wait_idle({process.pid: first}, requested()) is not None


def test_a_thread_that_runs_is_not_waited_for(
    process: subprocess.Popen[str], target: WatchedProcess
) -> None:
    first = idle_poll(target, process.pid)
    assert target.wait_idle({process.pid: first._replace(call=None)}, requested()) is None
