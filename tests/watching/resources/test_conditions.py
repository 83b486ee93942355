"""Conditions of processor time and memory, on recorded and synthetic polls."""

import random

import pytest

from machtrace.model.incident.facts import IncidentKind, VerdictCertainty
from machtrace.model.polls import MemoryLimit, ProcessPoll, ThreadCount
from machtrace.watching.resources.conditions import (
    ConditionMet,
    ConditionOver,
    ProcessSeries,
    ThreadHistory,
)
from machtrace.watching.resources.cpu import CpuCondition
from machtrace.watching.resources.memory import MemoryCondition
from machtrace.watching.thresholds import parse_cpu, parse_memory

MS = 1_000_000
SECOND = 1000 * MS
MIB = 1 << 20
BOOT = 50 * SECOND
"""CLOCK_BOOTTIME is ahead by the system's sleep."""


def poll(at_ns, *, cpu_ns=0, resident=0, threads=None, virtual=0):
    return ProcessPoll(at_ns, at_ns + BOOT, resident, virtual, cpu_ns, threads)


def cpu_events(text, shares, *, poll_ns=100 * MS, jitter=None, processors=8):
    """Feed polls of threads with given shares of a processor; return the events with their times.

    ``shares`` has, by thread, a function of the time in seconds.
    """
    history = ThreadHistory(200 * SECOND)
    condition = CpuCondition(parse_cpu(text, processors=processors), history)
    run = dict.fromkeys(shares, 0)
    events, at = [], 0
    last_threads = -SECOND
    end = shares.pop("end") * SECOND
    run.pop("end")
    while at < end:
        step = poll_ns if jitter is None else jitter()
        for thread, share in shares.items():
            run[thread] += round(share((at + step / 2) / SECOND) * step)
        at += step
        counts = None
        if at - last_threads >= SECOND or condition.wants_threads:
            counts = {thread: ThreadCount(used, 0) for thread, used in run.items()}
            last_threads = at
        new = poll(at, cpu_ns=sum(run.values()), threads=counts)
        history.add(new)
        events += condition.add(new)
        if condition.wants_threads:
            new = new._replace(
                threads={thread: ThreadCount(used, 0) for thread, used in run.items()}
            )
            history.add(new)
            events += condition.add(new)
    return events


def burns(begin, end=10**9, share=1.0):
    return lambda at: share if begin <= at < end else 0.0


@pytest.mark.parametrize(("text", "window"), [("80%/60s", 60), ("90%/5s", 5), ("50%/180s", 180)])
def test_a_burning_thread_is_seen_within_the_window_and_a_poll(text, window):
    begin = 20
    (met,) = cpu_events(text, {7: burns(begin), 8: burns(0, share=0.02), "end": begin + window + 2})
    assert met.kind is IncidentKind.CPU
    assert met.seen_ns - BOOT <= (begin + window + 0.1) * SECOND
    assert abs(met.began.best_ns - BOOT - begin * SECOND) <= window * SECOND / 40
    assert met.threads[0].thread == 7
    assert met.threads[0].share == pytest.approx(0.99, abs=0.02)
    assert met.threshold == text


def test_only_threads_of_five_percent_of_a_processor_are_hot():
    shares = {1: burns(0, share=0.9), 2: burns(0, share=0.06), 3: burns(0, share=0.04)}
    (met,) = cpu_events("90%/5s", {**shares, "end": 7})
    assert [share.thread for share in met.threads] == [1, 2]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.78])
def test_less_than_the_threshold_is_no_incident(share):
    assert not cpu_events("80%/60s", {1: burns(0, share=share), "end": 300})


def test_a_burst_of_many_threads_is_no_long_use():
    burst = {thread: burns(10, 10.8) for thread in range(16)}
    assert not cpu_events("90%/5s", {**burst, "end": 40}, processors=16)


def test_short_bursts_do_not_add_up_to_a_window():
    def pulses(at):
        return 1.0 if at % 10 < 4 else 0.0

    assert not cpu_events("90%/5s", {1: pulses, "end": 200})
    assert not cpu_events("80%/60s", {1: pulses, "end": 200})


def test_an_incident_ends_when_the_use_ends_and_has_its_duration():
    met, over = cpu_events("90%/5s", {1: burns(10, 30), "end": 60})
    assert isinstance(met, ConditionMet)
    assert isinstance(over, ConditionOver)
    assert over.ended.earliest_ns - BOOT <= 30 * SECOND <= over.ended.latest_ns - BOOT
    assert over.duration_ns == pytest.approx(20 * SECOND, abs=2 * SECOND)


def test_the_minute_after_an_incident_is_quiet_and_the_next_one_states_it():
    def bursts(at):
        return 1.0 if any(begin <= at < begin + 8 for begin in (10, 30, 50, 120)) else 0.0

    events = cpu_events("90%/5s", {1: bursts, "end": 150})
    met = [event for event in events if isinstance(event, ConditionMet)]
    assert [round((event.seen_ns - BOOT) / SECOND) for event in met] == [14, 124]
    assert not met[0].rules
    assert [rule.name for rule in met[1].rules] == ["quiet"]
    assert "2 more times" in met[1].rules[0].text


def test_several_windows_are_one_incident_that_names_all():
    met, over = cpu_events("80%/60s,90%/5s", {1: burns(0, 100), "end": 130})
    assert met.threshold == "90%/5s"
    assert over.threshold == "90%/5s,80%/60s"


def test_uneven_polls_have_the_same_result():
    seed = random.randrange(1 << 30)  # noqa: S311
    chance = random.Random(seed)  # noqa: S311
    for _ in range(20):
        share = chance.choice([0.6, 0.75, 0.85, 0.97])
        events = cpu_events(
            "80%/60s",
            {1: burns(5, share=share), "end": 100},
            jitter=lambda: chance.choice([20, 100, 100, 100, 900, 3000]) * MS,
        )
        assert bool(events) == (share > 0.8), seed


def test_clock_ticks_do_not_hide_a_thread_that_always_runs():
    """A running thread's time is added up at ticks of 10 ms, so polls see 90 to 110 ms of 100."""
    chance = random.Random(1)  # noqa: S311
    history = ThreadHistory(10 * SECOND)
    condition = CpuCondition(parse_cpu("100%/5s", processors=2), history)
    events = []
    for number in range(1, 100):
        at = number * 100 * MS
        cpu = (at + chance.randrange(10 * MS)) // (10 * MS) * 10 * MS
        new = poll(at, cpu_ns=cpu, threads={1: ThreadCount(cpu, 0)})
        history.add(new)
        events += condition.add(new)
    (met,) = events
    assert met.seen_ns - BOOT <= 5.3 * SECOND


def test_a_thread_that_started_within_the_window_has_all_of_its_time():
    history = ThreadHistory(10 * SECOND)
    condition = CpuCondition(parse_cpu("90%/5s", processors=2), history)
    events = []
    for number in range(1, 80):
        at = number * 100 * MS
        used = max(0, at - SECOND)
        threads = {1: ThreadCount(90 * SECOND, 0)}
        if used:
            threads[2] = ThreadCount(used, 0)
        new = poll(at, cpu_ns=90 * SECOND + used, threads=threads)
        history.add(new)
        events += condition.add(new)
    assert [share.thread for share in events[0].threads] == [2]


def memory_events(text, grow, *, limit=None, faults=None, end=10, poll_ns=100 * MS):
    """Feed polls with the resident bytes ``grow(seconds)``; return the events."""
    history = ThreadHistory(120 * SECOND)
    (threshold,) = parse_memory(text)
    condition = MemoryCondition(threshold, history)
    condition.limit = limit
    events, at, base = [], 0, None
    while at < end * SECOND:
        at += poll_ns
        resident = round(grow(at / SECOND))
        base = resident if base is None else base
        counts = None
        if at % SECOND == 0 or condition.wants_threads or condition.is_growing:
            pages = faults(at / SECOND) if faults else {1: 100, 2: 500 + (resident - base) // 4096}
            counts = {thread: ThreadCount(0, count) for thread, count in pages.items()}
        new = poll(at, resident=resident, virtual=2 * resident, threads=counts)
        history.add(new)
        new_events = condition.add(new)
        if condition.wants_threads:
            pages = faults(at / SECOND) if faults else {1: 100, 2: 500 + (resident - base) // 4096}
            new = new._replace(threads={t: ThreadCount(0, count) for t, count in pages.items()})
            history.add(new)
            new_events = condition.add(new)
        events += new_events
    return events


def ramp(begin, rate, end=10**9, base=50 * MIB):
    return lambda at: base + rate * max(0, min(at, end) - begin)


def test_a_jump_is_seen_at_the_poll_that_exceeds_it_with_its_thread():
    met, over = memory_events("+100MiB/1s", ramp(3, 300 * MIB, 4))
    assert met.kind is IncidentKind.MEMORY
    assert met.seen_ns - BOOT <= (3 + 1 / 3 + 0.1) * SECOND
    assert met.threads[0].thread == 2
    assert met.threads[0].share == 1.0
    assert met.certainty is VerdictCertainty.CERTAIN
    assert not met.missing
    assert met.began.earliest_ns - BOOT <= 3 * SECOND <= met.began.latest_ns - BOOT
    assert met.evidence["growth_bytes"] >= 100 * MIB
    assert over.ended.earliest_ns - BOOT <= 4 * SECOND <= over.ended.latest_ns - BOOT


def test_growth_that_is_slower_than_the_jump_is_no_incident():
    assert not memory_events("+100MiB/1s", ramp(1, 90 * MIB), end=30)


def test_a_late_watcher_does_not_turn_slow_growth_into_a_jump():
    assert not memory_events("+100MiB/1s", ramp(1, 60 * MIB), end=60, poll_ns=5 * SECOND)


def test_faults_of_other_threads_before_the_jump_do_not_count():
    """Another thread maps and unmaps all the time: the counts just before the growth exclude it."""

    def faults(at):
        return {1: round(5000 * at), 2: round(max(0, at - 3) * 300 * MIB / 4096)}

    (met, _) = memory_events("+100MiB/1s", ramp(3, 300 * MIB, 4), faults=faults)
    assert met.threads[0].thread == 2
    assert met.threads[0].share > 0.9


def test_huge_pages_are_stated_and_make_the_thread_likely():
    def faults(at):
        return {1: round(at), 2: round(max(0, at - 3) * 150)}

    (met, _) = memory_events("+100MiB/1s", ramp(3, 300 * MIB, 4), faults=faults)
    assert met.threads[0].thread == 2
    assert met.certainty is VerdictCertainty.LIKELY
    assert [rule.name for rule in met.rules] == ["huge-pages"]
    assert met.evidence["bytes_per_fault"] == pytest.approx(2 * MIB, rel=0.1)


def test_memory_without_faults_has_no_thread():
    (met, _) = memory_events("+100MiB/1s", ramp(3, 300 * MIB, 4), faults=lambda _: {1: 9, 2: 9})
    assert not met.threads
    assert any("no thread had page faults" in sentence for sentence in met.missing)


def test_a_level_is_reported_once_and_ends_below_it():
    def grow(at):
        return (600 if 3 <= at < 8 else 400) * MIB

    met, over = memory_events("512MiB", grow, end=20)
    assert met.seen_ns - BOOT == 3 * SECOND
    assert over.ended.latest_ns - BOOT == 8 * SECOND


def test_a_level_that_is_exceeded_from_the_start_is_seen_at_once():
    (met,) = memory_events("100MiB", lambda _: 200 * MIB, end=5)
    assert met.seen_ns - BOOT <= SECOND


def test_a_share_of_the_limit_and_where_the_limit_is_from():
    limit = MemoryLimit(1000 * MIB, "control group")
    (met,) = memory_events("90%", ramp(0, 100 * MIB), limit=limit, end=10)
    assert met.evidence["limit_of"] == "control group"
    assert met.evidence["resident_bytes"] >= 900 * MIB
    assert not memory_events("90%", ramp(0, 100 * MIB), limit=None, end=10)


def test_a_limit_of_the_address_space_is_compared_with_the_address_space():
    limit = MemoryLimit(1000 * MIB, "RLIMIT_AS", is_virtual=True)
    (met,) = memory_events("90%", ramp(0, 100 * MIB), limit=limit, end=5)
    assert met.evidence["resident_bytes"] < 500 * MIB


def test_steady_growth_to_the_limit_is_seen_with_the_time_that_is_left():
    limit = MemoryLimit(4000 * MIB, "control group")
    met = memory_events("limit/5m", ramp(10, 10 * MIB), limit=limit, end=120)[0]
    assert met.seen_ns - BOOT <= 105 * SECOND
    assert met.evidence["limit_reached_in_ns"] <= 300 * SECOND


@pytest.mark.parametrize(
    "grow",
    [ramp(10, 500 * MIB, 12), ramp(10, 2 * MIB), lambda at: (500 + 100 * (at % 20 > 10)) * MIB],
    ids=["jump", "slow", "waves"],
)
def test_growth_that_is_not_steady_or_has_time_left_has_no_slope(grow):
    limit = MemoryLimit(4000 * MIB, "control group")
    assert not memory_events("limit/5m", grow, limit=limit, end=100)


def test_the_series_has_a_point_for_each_second_of_the_last_minute():
    series = ProcessSeries()
    for number in range(1500):
        at = number * 100 * MS
        series.add(poll(at, cpu_ns=at // 2, resident=number))
    assert len(series.points) == 60
    assert {point.cpu_share for point in series.points} == {0.5}
    assert series.points[-1].at_ns - series.points[-2].at_ns == SECOND


def test_the_history_of_threads_is_bounded():
    history = ThreadHistory(180 * SECOND)
    for number in range(10_000):
        history.add(poll(number * 100 * MS, threads={1: ThreadCount(number, number)}))
    assert len(history._counts) < 200  # noqa: SLF001
