"""States and processor times of samples, from those of captures."""

from array import array

import pytest

from machtrace.model.profile import RUNNING, STATES, UNKNOWN, SampleTable
from machtrace.model.snapshot import ThreadId, ThreadInfo, ThreadSnapshot, ThreadState
from machtrace.sampling.collection import ThreadSampling


def captured(state, cpu_ns):
    """Return a capture of which only the activity matters."""
    return ThreadSnapshot(
        info=ThreadInfo(id=ThreadId(1), index=1),
        registers=None,
        stack=None,
        state=state,
        cpu_ns=cpu_ns,
    )


def sampled(*captures):
    """Return the samples of captures at intervals of 100 ns, and the thread."""
    thread = ThreadSampling(0, ThreadInfo(id=ThreadId(1), index=1))
    rows = [
        thread.count_activity(captured(*one), 100 if number else None)
        for number, one in enumerate(captures)
    ]
    return rows, thread


def test_the_processor_time_of_a_sample_is_that_since_the_one_before():
    """That of the first one is unknown: the time before it is not sampled."""
    run, sleep = ThreadState.RUNNING, ThreadState.SLEEPING
    rows, thread = sampled((run, 7000), (run, 7080), (sleep, 7090), (sleep, 7090))
    asleep = STATES.index(sleep)
    assert rows == [(RUNNING, UNKNOWN), (RUNNING, 80), (asleep, 10), (asleep, 0)]
    assert (thread.running, thread.cpu_ns) == (2, 90)


def test_a_thread_that_started_between_two_ticks_used_all_its_time_there():
    """Its first sample has it; more than the time between the ticks is from before."""
    for cpu_ns, expected in ((60, 60), (100, 100), (101, UNKNOWN)):
        thread = ThreadSampling(0, ThreadInfo(id=ThreadId(1), index=1))
        assert thread.count_activity(captured(None, cpu_ns), 100) == (UNKNOWN, expected)


def test_unknown_activity_stays_unknown():
    rows, thread = sampled((None, None), (None, None))
    assert rows == [(UNKNOWN, UNKNOWN)] * 2
    assert (thread.running, thread.cpu_ns) == (None, None)


def test_a_time_that_decreases_is_another_thread_s():
    """The kernel gave the id of an exited thread to a new one."""
    rows, _ = sampled((ThreadState.RUNNING, 7000), (ThreadState.RUNNING, 50))
    assert rows[1] == (RUNNING, UNKNOWN)


@pytest.mark.parametrize("count", [0, 3])
def test_columns_of_unknown_values_are_as_long_as_the_others(count):
    table = SampleTable(*(array("q", [0] * count) for _ in range(4)))
    assert [*table.states] == [*table.cpu_ns] == [UNKNOWN] * count
    assert not table.has_states
    assert not table.has_cpu
