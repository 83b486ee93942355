"""Profiles without idle samples, and with merged threads."""

from dataclasses import replace

from machtrace.model.profile import RUNNING, STATES, UNKNOWN, SampledThread
from machtrace.model.snapshot import ThreadId, ThreadInfo, ThreadState
from tests.support.reports.models import Seen, function, profile

HOT, WAIT = function("hot", is_leaf=True), function("wait", offset=0x300, is_leaf=True)
RUN, SLEEP = ThreadState.RUNNING, ThreadState.SLEEPING
BUSY = profile(
    [
        Seen(0, [WAIT], 2, SLEEP, 0),
        Seen(1, [HOT], 3, RUN, 7_000_000),
        Seen(1, [WAIT], 1, ThreadState.UNINTERRUPTIBLE, 4_000_000),
        Seen(2, [HOT], 1, None, UNKNOWN),
        Seen(2, [WAIT], 2, ThreadState.STOPPED, 0),
        Seen(3, [HOT], 1, RUN, 1_000_000),
    ],
    names=("main", "worker", None, "worker"),
)


def threads(recorded):
    """Return names, counts and times of threads."""
    return [
        (thread.info.name, thread.samples, thread.running, thread.left_out, thread.cpu_ns)
        for thread in recorded.threads
    ]


def test_samples_of_threads_that_wait_are_left_out():
    """One of an unknown state stays; a thread of idle samples alone is left out."""
    shown = BUSY.without_idle()
    assert threads(shown) == [
        ("worker", 3, 3, 1, 25_000_000),
        (None, 1, 0, 2, 0),
        ("worker", 1, 1, 0, 1_000_000),
    ]
    assert {STATES[state] for state in shown.samples.states if state != UNKNOWN} == {RUN}
    assert [*shown.samples.threads] == [0, 0, 0, 1, 2]
    assert shown.run == BUSY.run
    assert shown.without_idle().threads == shown.threads


def test_nothing_is_left_out_without_states():
    shown = profile([Seen(0, [HOT], 3)])
    assert threads(shown.without_idle()) == threads(shown) == [("main", 3, None, 0, None)]


def test_a_profile_of_idle_samples_is_empty():
    shown = profile([Seen(0, [WAIT], 3, SLEEP, 0)]).without_idle()
    assert (shown.threads, len(shown.samples)) == ((), 0)
    assert shown.stopped_share is None


def test_the_share_of_stops_counts_samples_that_are_left_out():
    """The thread was stopped for them."""
    (thread,) = (one for one in BUSY.without_idle().threads if one.info.id == 260)
    assert (thread.stopped_ns, thread.samples + thread.left_out) == (400_000, 4)


def test_threads_of_a_name_are_merged():
    """Those without a name are one, too; the samples stay in order."""
    shown = BUSY.with_merged_threads()
    assert threads(shown) == [
        ("main", 2, 0, 0, 0),
        ("worker", 5, 4, 0, 26_000_000),
        ("unnamed", 3, 0, 0, 0),
    ]
    assert [thread.merged for thread in shown.threads] == [1, 2, 1]
    assert [thread.label for thread in shown.threads] == ["main", "worker", "unnamed"]
    assert [*shown.samples.threads] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 1]
    assert shown.samples.stacks == BUSY.samples.stacks


def test_all_threads_are_merged():
    (thread,) = BUSY.with_merged_threads(by_name=False).threads
    assert (thread.label, thread.merged, thread.samples) == ("All threads", 4, 10)
    assert thread.stopped_ns == sum(one.stopped_ns for one in BUSY.threads)
    assert thread.is_all


def test_merged_threads_can_be_merged_again():
    (thread,) = BUSY.with_merged_threads().with_merged_threads(by_name=False).threads
    assert thread.merged == 4


def test_a_queue_s_label_stands_for_a_missing_name():
    info = ThreadInfo(id=ThreadId(1), index=1, queue="com.example.work")
    thread = SampledThread(info=info, samples=1, stopped_ns=None, longest_stop_ns=None)
    shown = replace(BUSY, threads=(thread,) * 4).with_merged_threads()
    assert [one.label for one in shown.threads] == ["com.example.work"]


def test_a_thread_states_what_is_known_of_its_time():
    """Nothing is shown of what is unknown."""
    worker = BUSY.with_merged_threads().threads[1]
    assert worker.activity == "2 threads, 4 running, 0.026 s CPU"
    assert BUSY.without_idle().threads[0].activity == "3 running, 1 idle left out, 0.025 s CPU"
    assert profile([Seen(0, [HOT])]).threads[0].activity == ""
    assert RUNNING == STATES.index(RUN)
