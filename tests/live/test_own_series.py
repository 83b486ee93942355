"""Captures of this process at a rate, while its Python threads run."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import TargetError

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")

from machtrace.targets.inprocess.linux import SelfTarget
from machtrace.targets.inprocess.series import CaptureSeries
from machtrace.unwinder.unwinder import Unwinder


def wait_for_captures(series: CaptureSeries, count: int) -> None:
    """Return seconds to wait for the captures: on a busy machine most may be late."""
    deadline = time.monotonic() + 30
    while series.counts.captures < count:
        assert time.monotonic() < deadline, series.counts
        time.sleep(0.01)


def test_contention_for_the_interpreters_lock_does_not_slow_captures() -> None:
    """A capture needs no turn of the interpreter; all stacks reach their root."""
    done = threading.Event()

    def fight() -> None:
        while not done.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=fight) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        with SelfTarget() as target, target.series(50) as series:
            time.sleep(1)
            wait_for_captures(series, 20)
            series.stop()
            done.set()  # captures are read without contention for each call
            captures = list(series.take())
    finally:
        done.set()
        for thread in threads:
            thread.join()
    counts = series.counts
    assert len(captures) == counts.captures >= 20
    assert captures[-1].tick < counts.captures + counts.late + counts.lost
    ticks = [capture.tick for capture in captures]
    assert ticks == sorted(set(ticks))
    unwinder = Unwinder()
    for capture in captures:
        ids = {thread.info.id for thread in capture.snapshot.threads}
        # On a busy machine some are not scheduled in time to handle the signal.
        ids |= {problem.thread for problem in capture.snapshot.problems if problem.thread}
        assert ids >= {thread.native_id for thread in threads}
        assert all(walked.stop.is_complete for walked in unwinder.unwind(capture.snapshot))


def test_a_thread_that_holds_the_interpreters_lock_is_captured_there() -> None:
    """No Python code runs for all of that time."""
    libc = ctypes.PyDLL(None)  # keeps the lock, unlike CDLL
    with SelfTarget() as target, target.series(200) as series:
        wait_for_captures(series, 1)
        before, deadline = series.counts.captures, time.monotonic() + 30
        began = time.monotonic_ns()
        while series.counts.captures < before + 50:
            assert time.monotonic() < deadline, series.counts
            libc.usleep(500_000)  # a capture ends it early, as it does any sleep
        ended = time.monotonic_ns()
        captures = [one for one in series.take() if began < one.began_ns < ended]
    assert len(captures) >= 20
    main = threading.get_native_id()
    unwinder = Unwinder()
    names = mt.Symbolicator(lines=False)
    seen = 0
    for capture in captures:
        for walked in unwinder.unwind(capture.snapshot):
            if walked.thread.info.id == main:
                frames = (names.frame(address, capture.snapshot) for address in walked.addresses)
                seen += any(f.symbol and "sleep" in f.symbol.name for f in frames)
    assert seen > len(captures) // 2


def test_captures_lost_to_a_full_ring_are_counted() -> None:
    """The ring retains the first captures and loses later ones."""
    with SelfTarget() as target:
        threads = [threading.Thread(target=time.sleep, args=(2,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        with target.series(1000, room=1 << 20) as series:
            deadline = time.monotonic() + 20
            while not series.counts.lost:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            series.stop()
            captures = list(series.take())
        assert len(captures) == series.counts.captures > 0
        assert not list(series.take())
        for thread in threads:
            thread.join()


def test_records_are_read_in_chunks() -> None:
    """Each read returns at most the requested bytes; another reader decodes the same captures."""
    from machtrace.targets.inprocess.records import RecordReader

    with SelfTarget() as target, target.series(200) as series:
        wait_for_captures(series, 20)
        series.stop()
        # The largest indivisible record has the text of the mappings.
        maps = Path("/proc/self/maps")
        most = 200_000 + (len(maps.read_bytes()) if maps.exists() else 0)
        reader, ticks = RecordReader(), []
        while True:
            part = series.take_records(most)
            if not part:
                break
            assert len(part) <= most
            ticks += [one.tick for one in reader.read(part)]
    assert len(ticks) == series.counts.captures > 0


def test_all_threads_are_stopped_at_one_time() -> None:
    """The last thread was stopped before the first was resumed."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with SelfTarget() as target, target.series(100, together=True) as series:
            wait_for_captures(series, 10)
            series.stop()
            captures = list(series.take())
    finally:
        done.set()
    assert len(captures) >= 10
    for capture in captures:
        spans = [
            (one.taken_at_ns, one.taken_at_ns + one.stopped_for_ns)
            for one in capture.snapshot.threads
            if one.taken_at_ns and one.stopped_for_ns
        ]
        assert max(start for start, _ in spans) <= min(end for _, end in spans)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("hz", [0, -1, math.nan, math.inf, 1e9])
def test_an_invalid_rate_is_refused(hz: float) -> None:
    with SelfTarget() as target, pytest.raises(TargetError, match="per second") as raised:
        target.series(hz)
    assert raised.value.remedy


@pytest.mark.parametrize("room", [0, 1 << 40, -1])
def test_an_invalid_ring_size_is_refused(room: int) -> None:
    with SelfTarget() as target, pytest.raises(TargetError, match="cannot copy threads"):
        target.series(10, room=room)


def test_a_forked_child_has_no_series_and_can_start_one() -> None:
    """It can read earlier captures, and stop the series that it does not have."""
    code = """
import os, time
from machtrace.targets.inprocess.linux import SelfTarget
with SelfTarget() as target, target.series(200) as series:
    time.sleep(0.2)
    for _ in range(10):
        child = os.fork()
        if not child:
            series.stop()
            list(series.take())
            with SelfTarget() as own, own.series(100) as other:
                while not other.counts.captures:
                    time.sleep(0.01)
                other.stop()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        list(series.take())
    while series.counts.captures < 20:
        time.sleep(0.01)
print("well")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


def test_a_process_can_end_during_a_series() -> None:
    """By returning from main or by a signal, without stopping the series first."""
    code = """
import os, sys, time
from machtrace.targets.inprocess.linux import SelfTarget
series = SelfTarget().series(1000)
time.sleep(0.1)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["series(2000)", "watchdog(10**9, 10**6)"])
def test_all_threads_that_stop_it_at_once_return(how: str) -> None:
    """One of them joins the thread, and the others wait; closing it is the same, and again."""
    if how.startswith("watchdog") and sys.platform != "linux":
        pytest.skip("the watchdog is for Linux")
    code = f"""
import threading
from machtrace.targets.inprocess.linux import SelfTarget
with SelfTarget() as target:
    for _ in range(20):
        one, barrier = target.{how}, threading.Barrier(4)
        stop = getattr(one, "stop", one.close)
        def end(call):
            barrier.wait()
            call()
            counts.append(one.counts)
        counts = []
        threads = [
            threading.Thread(target=end, args=(call,))
            for call in (stop, one.close, stop, one.close)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop()
        assert set(counts) == {{one.counts}}, counts
print("well")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


def test_two_series_capture_each_others_threads() -> None:
    """They take turns; neither captures its own thread."""
    with SelfTarget() as target, target.series(100) as first, target.series(100) as second:
        wait_for_captures(first, 6)
        wait_for_captures(second, 6)
        # Names are those that threads have when captures are taken.
        captures = [*first.take(), *second.take()]
    assert first.counts.captures > 5
    assert second.counts.captures > 5
    names = {thread.info.name for capture in captures for thread in capture.snapshot.threads}
    assert "machtrace" in names
    reasons = {str(problem.error) for capture in captures for problem in capture.snapshot.problems}
    # The other's thread blocks signals while it ends, and a library's for good; other tests'
    # threads may end meanwhile; and on a busy machine one may be late.
    expected = ("in time", "blocks", "has exited")
    assert all(any(part in reason for part in expected) for reason in reasons), reasons
