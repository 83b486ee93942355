"""Names, states and processor times of threads, from the kernel's files."""

import os
import threading
from pathlib import Path

import pytest

from machtrace.model.snapshot import ThreadState
from machtrace.targets.inprocess.threads import OwnStates
from machtrace.targets.linux.procfs import (
    ActivityReader,
    ProcessDirectory,
    ThreadUse,
    stat_name,
    thread_use,
    was_only_captured,
)

STAT = (
    b"4711 (%s) %c 1 4711 4711 0 -1 4194560 185 0 0 0 250 31 0 0 20 0 5 0 12936 44621824 423 "
    b"18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
SLEEPING, RUNNING = ThreadState.SLEEPING, ThreadState.RUNNING


@pytest.mark.parametrize("name", ["worker", "a) R (b", "", "\udcff"])
def test_a_name_is_the_text_in_the_outer_parentheses(name):
    stat = STAT % (os.fsencode(name), b"S")
    assert stat_name(stat) == name
    assert thread_use(stat, b"") == ThreadUse(SLEEPING, (250 + 31) * TICK_NS, None)


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        ("R", ThreadState.RUNNING),
        ("S", ThreadState.SLEEPING),
        ("I", ThreadState.SLEEPING),
        ("D", ThreadState.UNINTERRUPTIBLE),
        ("T", ThreadState.STOPPED),
        ("t", ThreadState.STOPPED),
        ("Z", None),
        ("X", None),
        ("?", None),
    ],
)
def test_states_are_those_of_the_kernel_s_letters(letter, state):
    assert thread_use(STAT % (b"x", letter.encode()), b"").state is state


def test_schedstat_replaces_ticks_by_nanoseconds():
    stat = STAT % (b"x", b"R")
    assert thread_use(stat, b"123456789 55 7\n") == ThreadUse(RUNNING, 123456789, 7)


@pytest.mark.parametrize("text", [b"", b"0 0 0\n"])
def test_a_kernel_without_schedstat_leaves_the_ticks(text):
    """It has no such file, or one of zeros."""
    stat = STAT % (b"x", b"R")
    assert thread_use(stat, text) == ThreadUse(RUNNING, (250 + 31) * TICK_NS, None)


@pytest.mark.parametrize(("stat", "schedstat"), [(b"", b""), (b"1 (x) R 1", b""), (STAT, b"1 2")])
def test_malformed_files_are_refused(stat, schedstat):
    with pytest.raises((ValueError, IndexError)):
        thread_use(stat, schedstat)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((SLEEPING, 1000, 10), (SLEEPING, 9000, 12), True),  # stopped, then asleep again
        ((SLEEPING, 1000, 10), (SLEEPING, 1000, 10), True),
        ((SLEEPING, 1000, 10), (RUNNING, 9000, 12), True),  # it waits for its turn to sleep again
        ((SLEEPING, 1000, 10), (SLEEPING, 9000, 13), False),  # it had a turn of its own
        ((SLEEPING, 1000, 10), (RUNNING, 9000, 13), False),
        ((SLEEPING, 1000, 10), (SLEEPING, 5_000_000, 12), False),  # too long for a stop
        ((RUNNING, 1000, 10), (SLEEPING, 9000, 12), False),
        ((RUNNING, 1000, 10), (RUNNING, 9000, 10), False),
        ((SLEEPING, 1000, 10), (ThreadState.UNINTERRUPTIBLE, 1000, 10), False),
        ((SLEEPING, 9000, 10), (SLEEPING, 1000, 1), False),  # another thread with its id
        ((SLEEPING, 1000, None), (SLEEPING, 9000, None), False),
    ],
)
def test_a_thread_that_was_only_captured_did_nothing_itself(before, now, expected):
    assert was_only_captured(ThreadUse(*before), ThreadUse(*now)) is expected


def test_what_captures_cost_a_sleeping_thread_does_not_count(monkeypatch):
    """It slept meanwhile, though the kernel has it as running until it had its turn."""
    readings = [
        (b"S", b"1000 0 10"),
        (b"R", b"9000 0 12"),
        (b"S", b"20000 0 14"),
        (b"S", b"90000 0 20"),
    ]
    reader = ActivityReader(None)
    monkeypatch.setattr(
        reader, "_read", lambda _, file: readings[0][1] if file else STAT % (b"x", readings[0][0])
    )
    activity = []
    while readings:
        reader.begin([7], are_all=True)
        activity.append(reader.end(7))
        del readings[0]
    assert activity == [(SLEEPING, cpu_ns) for cpu_ns in (1000, 1000, 1000, 71000)]


def open_files():
    """Return the number of this process's descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_stay_open_from_the_second_capture_to_the_end_of_the_thread():
    """A thread that exits before it is captured has no state; its id may be used again."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with ProcessDirectory(os.getpid()) as directory:
        reader = ActivityReader(directory)
        before = open_files()
        for opened in (0, 2, 2):
            reader.begin([thread.native_id], are_all=True)
            assert reader.name(thread.native_id)
            state, cpu_ns = reader.end(thread.native_id)
            assert state in (SLEEPING, RUNNING)
            assert cpu_ns > 0
            assert open_files() == before + opened
        done.set()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            pass
        reader.begin([thread.native_id], are_all=True)
        assert reader.name(thread.native_id) == ""
        assert reader.end(thread.native_id) == (None, None)
        assert reader.name(thread.native_id) is None
        assert open_files() == before
        reader.close()


def test_files_of_threads_that_are_not_listed_any_more_are_closed():
    """New ones among others that were listed before do not close theirs."""
    own = threading.get_native_id()
    with ProcessDirectory(os.getpid()) as directory:
        reader = ActivityReader(directory)
        before = open_files()
        for _ in range(2):
            reader.begin([own], are_all=True)
            reader.end(own)
        reader.begin([], are_all=False)
        assert open_files() == before + 2
        reader.begin([], are_all=True)
        assert open_files() == before


def test_the_files_of_few_threads_stay_open(monkeypatch):
    """Those of others are opened for each read, with the same result; files here may be few."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (7, 7))
    own = threading.get_native_id()
    with ProcessDirectory(os.getpid()) as directory:
        reader = ActivityReader(directory)
        before = open_files()
        for _ in range(2):
            reader.begin([own], are_all=True)
            assert reader.end(own)[0] is RUNNING
            assert open_files() == before


def test_a_file_that_the_kernel_lacks_is_empty(monkeypatch):
    """Processor times are those of stat then."""
    own = threading.get_native_id()
    monkeypatch.setattr("machtrace.targets.linux.procfs._FILES", ("stat", "no-schedstat"))
    with ProcessDirectory(os.getpid()) as directory:
        reader = ActivityReader(directory)
        for _ in range(2):
            reader.begin([own], are_all=True)
            state, cpu_ns = reader.end(own)
            assert (state, cpu_ns % TICK_NS) == (RUNNING, 0)
        reader.close()


@pytest.mark.parametrize(
    ("state", "used", "expected"),
    [
        (SLEEPING, 0, SLEEPING),
        (SLEEPING, 99, SLEEPING),
        (SLEEPING, 100, RUNNING),
        (RUNNING, 0, RUNNING),
        (ThreadState.UNINTERRUPTIBLE, 500, ThreadState.UNINTERRUPTIBLE),
        (None, 500, None),
    ],
)
def test_own_threads_that_wait_for_the_lock_of_a_capture_run(state, used, expected):
    """They used a tenth of the time, 1000 ns here, since the capture before."""
    states = OwnStates()
    assert states.state(1, state, 5000, 10_000) is state
    assert states.state(2, state, None, 10_000) is state
    assert states.state(1, state, 5000 + used, 11_000) is expected
