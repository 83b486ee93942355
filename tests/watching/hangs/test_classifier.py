"""Verdicts on recorded polls: each table is doing /proc showed, poll by poll."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import Verdict, VerdictCertainty
from machtrace.model.polls import SystemCall, ThreadPoll
from machtrace.watching.hangs.absences import Absence
from machtrace.watching.hangs.classifier import (
    Ended,
    Event,
    HangClassifier,
    LearnWait,
    Seen,
    TakeSample,
)
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.wait_roles import NamedWait, WaitRole

MS = 1_000_000
T = 100 * MS
POLL = 20 * MS
CALLS = {
    "idle": SystemCall(232, (4, 5), Avma(0x7FFF_0000), Avma(0x1000)),
    "sleep": SystemCall(230, (0, 0), Avma(0x7FFE_F000), Avma(0x2000)),
    "futex": SystemCall(202, (9, 0), Avma(0x7FFE_E000), Avma(0x3000)),
    "modal": SystemCall(232, (4, 5), Avma(0x7FFE_D000), Avma(0x1000)),
    "stopped": SystemCall(-1, (), Avma(0x7FFE_C000), Avma(0x4000)),
}
ROLES = {
    "idle": WaitRole.ROOT,
    "sleep": WaitRole.OTHER,
    "futex": WaitRole.OTHER,
    "modal": WaitRole.OTHER,
}


def poll(
    at_ms: float,
    doing: str,
    *,
    voluntary: int = 0,
    run_ms: float = 0,
    delay_ms: float = 0,
    state: str | None = None,
    late_ms: float = 0,
    slept_ms: float = 0,
    throttled_ms: float = 0,
    frozen: bool = False,
) -> ThreadPoll:
    call = CALLS.get(doing)
    return ThreadPoll(
        at_ns=round(at_ms * MS),
        boot_ns=round((at_ms + slept_ms) * MS) + 7_000_000 * MS,
        is_running=call is None,
        call=call,
        run_ns=round(run_ms * MS),
        delay_ns=round(delay_ms * MS),
        switches=(voluntary, 0),
        state=state or ("R" if call is None else "S"),
        throttled_ns=round(throttled_ms * MS),
        is_frozen=frozen,
        late_ns=round(late_ms * MS),
    )


def classifier(launch_ns: int = 0) -> HangClassifier:
    waits = RootWaits(Arch.X86_64)
    for name, role in ROLES.items():
        waits.add(CALLS[name].place, NamedWait(role, name))
    return HangClassifier(T, POLL, waits, launch_ns=launch_ns)


def events(polls: Sequence[ThreadPoll]) -> list[Event]:
    machine = classifier()
    return [event for each in polls for event in machine.add(each)]


def seen(polls: Sequence[ThreadPoll]) -> list[Absence]:
    return [event.absence for event in events(polls) if isinstance(event, Seen)]


def ended(polls: Sequence[ThreadPoll]) -> Absence:
    (absence,) = [
        event.absence for event in events(polls) if isinstance(event, Ended) and event.was_seen
    ]
    return absence


def every_20_ms(doing: str, start: int, end: int, **changes: float) -> list[ThreadPoll]:
    """Return polls from ``start`` to ``end``; fields grow by ``changes`` from poll to poll."""
    return [
        poll(at, doing, **{key: value * number for key, value in changes.items()})  # type: ignore[arg-type]
        for number, at in enumerate(range(start, end + 1, 20), 1)
    ]


IDLE = every_20_ms("idle", 0, 40)


def test_an_idle_loop_is_never_a_hang() -> None:
    assert not events(every_20_ms("idle", 0, 60_000))


def test_a_timed_wait_that_is_entered_again_is_idle() -> None:
    assert not events(every_20_ms("idle", 0, 2_000, voluntary=1, run_ms=0.1))


def learning(polls: Sequence[ThreadPoll], launch_ns: int = 0) -> tuple[HangClassifier, list[Event]]:
    """Return a classifier that does not know the loop's wait yet, after some polls."""
    waits = RootWaits(Arch.X86_64)
    waits.add(CALLS["sleep"].place, NamedWait(WaitRole.OTHER, "sleep"))
    machine = HangClassifier(T, POLL, waits, launch_ns=launch_ns)
    return machine, [event for each in polls for event in machine.add(each)]


ROOT = NamedWait(WaitRole.ROOT, "idle")


def test_an_absence_begins_where_the_thread_left_a_wait_that_is_known_later() -> None:
    machine, asked = learning([*every_20_ms("idle", 0, 400), *every_20_ms("sleep", 420, 460)])
    assert [type(event) for event in asked if not isinstance(event, TakeSample)] == [LearnWait]
    (ended,) = machine.learnt(CALLS["idle"].place, ROOT)
    assert isinstance(ended, Ended)
    assert not ended.was_seen
    later = [event for each in every_20_ms("sleep", 480, 540) for event in machine.add(each)]
    (absence,) = [event.absence for event in later if isinstance(event, Seen)]
    assert absence.verdict is Verdict.BLOCKED
    assert absence.duration_ns <= 130 * MS
    assert absence.evidence["idle_seen"]


def test_a_wait_before_the_threshold_need_not_be_known() -> None:
    machine, events = learning([*every_20_ms("idle", 0, 40), *every_20_ms("sleep", 60, 160)])
    (absence,) = [event.absence for event in events if isinstance(event, Seen)]
    assert absence.verdict is Verdict.BLOCKED
    assert machine.learnt(CALLS["idle"].place, ROOT) == []
    (ended,) = machine.add(poll(200, "idle"))
    assert isinstance(ended, Ended)
    assert (ended.was_seen, ended.absence.verdict) == (True, Verdict.BLOCKED)
    assert 120 * MS <= ended.absence.duration_ns <= 160 * MS


def test_a_thread_whose_idle_wait_is_known_late_is_not_launching() -> None:
    polls = [*every_20_ms("idle", 0, 40), *every_20_ms("sleep", 60, 220)]
    machine, events = learning(polls, launch_ns=5000 * MS)
    assert not any(isinstance(event, Seen) for event in events)
    machine.learnt(CALLS["idle"].place, ROOT)
    assert any(isinstance(event, Seen) for event in machine.add(poll(240, "sleep")))


def test_a_busy_thread_that_mostly_waits_is_withdrawn_if_that_is_its_loops_wait() -> None:
    machine = classifier()
    polls = [
        poll(at, "running" if number % 5 == 0 else "futex", voluntary=number, run_ms=number * 12)
        for number, at in enumerate(range(60, 400, 20))
    ]
    events = [event for each in [*IDLE, *polls] for event in machine.add(each)]
    assert [e.absence.verdict for e in events if isinstance(e, Seen)] == [Verdict.BUSY]
    machine.waits.add(CALLS["futex"].place, NamedWait(WaitRole.WORKER, "futex"))
    (ended,) = machine.add(poll(400, "futex", voluntary=30, run_ms=200))
    assert isinstance(ended, Ended)
    assert ended.absence.verdict is Verdict.IDLE


def test_one_wait_with_equal_switches_is_certainly_blocked() -> None:
    (absence,) = seen([*IDLE, *every_20_ms("sleep", 60, 200)])
    assert (absence.verdict, absence.certainty) == (Verdict.BLOCKED, VerdictCertainty.CERTAIN)
    assert absence.evidence["voluntary_switches"] == 0
    assert absence.call == CALLS["sleep"]


def test_a_loop_of_short_sleeps_is_likely_blocked() -> None:
    polls = [*IDLE, *every_20_ms("sleep", 60, 300, voluntary=1, run_ms=0.02)]
    (absence,) = seen(polls)
    assert (absence.verdict, absence.certainty) == (Verdict.BLOCKED, VerdictCertainty.LIKELY)


def test_a_thread_that_never_slept_is_certainly_busy() -> None:
    (absence,) = seen([*IDLE, *every_20_ms("run", 60, 200, run_ms=20)])
    assert (absence.verdict, absence.certainty) == (Verdict.BUSY, VerdictCertainty.CERTAIN)


def test_a_busy_thread_with_switches_is_likely_busy() -> None:
    (absence,) = seen([*IDLE, *every_20_ms("run", 60, 200, run_ms=18, voluntary=1)])
    assert (absence.verdict, absence.certainty) == (Verdict.BUSY, VerdictCertainty.LIKELY)


def test_stops_by_the_watcher_are_no_switches_of_the_program() -> None:
    machine = classifier()
    absences = []
    for number, each in enumerate([*IDLE, *every_20_ms("run", 60, 220, run_ms=20)]):
        stops = max(0, number - 5)
        happened = machine.add(each._replace(switches=(stops, 0)))
        absences += [event.absence for event in happened if isinstance(event, Seen)]
        if number >= 5:
            machine.stopped(1)
    assert [absence.certainty for absence in absences] == [VerdictCertainty.CERTAIN]


def test_a_thread_that_queues_is_starved() -> None:
    polls = [*IDLE, *every_20_ms("run", 60, 400, run_ms=2, delay_ms=18)]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.STARVED]


def test_a_queue_that_schedstat_does_not_show_yet_is_starvation() -> None:
    polls = [*IDLE, *every_20_ms("run", 60, 200)]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.STARVED]


def test_a_quota_is_starvation() -> None:
    polls = [*IDLE, *every_20_ms("run", 60, 200, run_ms=2, throttled_ms=18)]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.STARVED]


def test_a_starved_thread_that_ran_for_the_threshold_hangs() -> None:
    polls = [*IDLE, *every_20_ms("run", 60, 600, run_ms=5, delay_ms=15)]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.STARVED, Verdict.BUSY]


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_thread_does_not_hang(state: str) -> None:
    polls = [*IDLE, *(poll(at, "stopped", state=state) for at in range(60, 1_000, 20))]
    (absence,) = seen(polls)
    assert absence.verdict is Verdict.STOPPED
    assert absence.duration_ns <= 20 * MS


def test_a_frozen_group_does_not_hang() -> None:
    polls = [*IDLE, *(poll(at, "sleep", state="D", frozen=True) for at in range(60, 1_000, 20))]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.STOPPED]


def test_a_task_that_a_stop_interrupts_is_as_long_as_it_ran() -> None:
    polls = [
        *IDLE,
        poll(60, "run", run_ms=15),
        *(poll(at, "stopped", state="T", run_ms=20) for at in range(80, 500, 20)),
        poll(500, "run", run_ms=25),
        poll(520, "run", run_ms=45),
        poll(540, "idle", run_ms=60),
    ]
    assert not [absence for absence in seen(polls) if absence.verdict.is_hang]


def test_a_wait_for_a_device_is_uninterruptible() -> None:
    polls = [*IDLE, *(poll(at, "futex", state="D") for at in range(60, 260, 20))]
    assert [absence.verdict for absence in seen(polls)] == [Verdict.UNINTERRUPTIBLE]


def test_system_sleep_does_not_count() -> None:
    polls = [
        *IDLE,
        *every_20_ms("sleep", 60, 100),
        *(poll(at, "sleep", slept_ms=3_600_000) for at in range(120, 260, 20)),
        poll(260, "idle", slept_ms=3_600_000),
    ]
    absence = ended(polls)
    assert absence.duration_ns == pytest.approx(200 * MS, abs=20 * MS)
    assert [rule.name for rule in absence.rules] == ["system-sleep", "same-stack"]


def test_a_late_poll_of_a_thread_that_may_have_been_idle_does_not_count() -> None:
    polls = [
        *IDLE,
        poll(60, "run", run_ms=2),
        poll(460, "run", run_ms=4, voluntary=3, late_ms=380),
        poll(480, "run", run_ms=6, voluntary=3),
    ]
    assert not seen(polls)


def test_a_late_poll_counts_where_switches_prove_the_wait() -> None:
    polls = [*IDLE, poll(60, "sleep"), poll(220, "sleep", late_ms=140)]
    (absence,) = seen(polls)
    assert absence.certainty is VerdictCertainty.CERTAIN


def test_very_late_polls_prove_nothing() -> None:
    assert not seen([*IDLE, poll(60, "sleep"), poll(5_060, "sleep", late_ms=4_980)])


@pytest.mark.parametrize("length", range(20, 76, 5))
@pytest.mark.parametrize("offset", [1, 7, 13, 19])
def test_a_task_of_three_quarters_of_the_threshold_is_no_hang(length: int, offset: int) -> None:
    began = 40 + offset
    polls = [
        poll(at, "sleep" if began <= at < began + length else "idle") for at in range(0, 400, 20)
    ]
    assert not seen(polls)


@pytest.mark.parametrize("length", [125, 150, 400])
@pytest.mark.parametrize("offset", [1, 7, 13, 19])
def test_a_hang_of_five_quarters_is_seen_in_time(length: int, offset: int) -> None:
    """Decisions come when they are due, not at the next poll."""
    machine, began = classifier(), 40 + offset
    at, absences = 0.0, []
    while at < 700:
        doing = "sleep" if began <= at < began + length else "idle"
        absences += [
            event.absence for event in machine.add(poll(at, doing)) if isinstance(event, Seen)
        ]
        tick = (at // 20 + 1) * 20
        at = min(tick, (machine.next_ns or 1 << 60) / MS)
    (absence,) = absences
    latency = absence.seen_ns - 7_000_000 * MS - began * MS
    assert latency <= T + 20 * MS
    assert abs(absence.began.best_ns - 7_000_000 * MS - began * MS) <= 10 * MS


def test_a_busy_hang_begins_when_it_began_to_run() -> None:
    polls = [*IDLE, *(poll(at, "run", run_ms=at - 46) for at in range(60, 240, 20))]
    (absence,) = seen(polls)
    assert absence.began.best_ns == 7_000_000 * MS + 46 * MS


def test_an_end_is_between_two_polls() -> None:
    absence = ended([*IDLE, *every_20_ms("sleep", 60, 300), poll(320, "idle")])
    assert absence.ended is not None
    assert absence.ended.best_ns - 7_000_000 * MS == 310 * MS
    assert absence.duration_ns == 260 * MS


def test_one_hang_is_seen_once_and_ends_once() -> None:
    happened = events([*IDLE, *every_20_ms("sleep", 60, 30_000), poll(30_020, "idle")])
    assert [type(event) for event in happened if not isinstance(event, TakeSample)] == [Seen, Ended]


def test_samples_begin_before_the_threshold_and_back_off() -> None:
    happened = events([*IDLE, *every_20_ms("sleep", 60, 60_000)])
    samples = [event for event in happened if isinstance(event, TakeSample)]
    times = [sample.at_ns // MS - 7_000_000 for sample in samples]
    assert times[0] - 60 <= 0.7 * T / MS
    assert not samples[0].is_same
    assert all(sample.is_same and sample.is_waiting for sample in samples[1:])
    assert len(samples) <= 40
    gaps = [after - before for before, after in pairwise(times[2:])]
    assert gaps == sorted(gaps)
    assert max(gaps) <= 1_000


def test_a_new_place_is_looked_up_once() -> None:
    machine = HangClassifier(T, POLL, RootWaits(Arch.X86_64))
    happened = [event for each in IDLE for event in machine.add(each)]
    assert happened == [LearnWait(CALLS["idle"].place)]
    assert machine.learnt(CALLS["idle"].place, NamedWait(WaitRole.ROOT, "loop")) == []
    assert machine.state == "idle"


def test_nothing_is_reported_while_the_place_is_looked_up() -> None:
    machine = HangClassifier(T, POLL, RootWaits(Arch.X86_64))
    happened = [event for each in every_20_ms("idle", 0, 2_000) for event in machine.add(each)]
    assert not [event for event in happened if isinstance(event, Seen)]


def test_a_hang_ends_where_an_unknown_wait_turns_out_to_be_the_loops() -> None:
    machine = classifier()
    for each in [*IDLE, *every_20_ms("sleep", 60, 200)]:
        machine.add(each)
    other = SystemCall(232, (4, 5), Avma(0x7FFE_FF00), Avma(0x1000))
    for at in (220, 240, 260):
        machine.add(poll(at, "sleep")._replace(call=other))
    (end,) = machine.learnt(other.place, NamedWait(WaitRole.ROOT, "loop"))
    assert isinstance(end, Ended)
    assert end.absence.ended is not None
    assert end.absence.ended.latest_ns == 7_000_000 * MS + 220 * MS
    assert end.absence.certainty is VerdictCertainty.CERTAIN


def test_a_loop_within_a_task_is_named() -> None:
    polls = [*IDLE, *every_20_ms("modal", 60, 400, voluntary=2, run_ms=0.5)]
    (absence,) = seen(polls)
    assert [rule.name for rule in absence.rules] == ["nested-loop"]


def test_hidden_system_calls_report_no_blocked_thread() -> None:
    hidden = [
        poll(at, "sleep")._replace(call=None, is_running=False if at % 40 else None)
        for at in range(0, 400, 20)
    ]
    assert not seen([each._replace(is_running=None) for each in hidden])


def test_a_beacon_states_the_beginning() -> None:
    polls = [poll(at, "run", run_ms=at)._replace(busy_since_ns=0) for at in (0, 20)]
    polls += [
        poll(at, "run", run_ms=at)._replace(busy_since_ns=27 * MS) for at in range(40, 160, 20)
    ]
    (absence,) = seen(polls)
    assert absence.began.best_ns == 7_000_000 * MS + 27 * MS
    assert absence.began.earliest_ns == absence.began.latest_ns


# --- rules against false reports ---


def rules_of(absence: Absence) -> list[str]:
    return [rule.name for rule in absence.rules]


def test_half_of_the_processor_time_is_starvation() -> None:
    """55 ms of 116 ms, and no voluntary switch: the rest of the time it queued."""
    polls = [*IDLE, *(poll(at, "run", run_ms=(at - 42) * 0.47) for at in range(60, 180, 20))]
    (absence,) = seen(polls)
    assert (absence.verdict, rules_of(absence)) == (Verdict.STARVED, ["starvation"])


def test_a_stopped_task_needs_its_processor_time() -> None:
    polls = [
        *IDLE,
        poll(60, "run", run_ms=15),
        *(poll(at, "stopped", state="T", run_ms=20, voluntary=1) for at in range(80, 400, 20)),
        *(poll(at, "run", run_ms=20 + (at - 400) / 3, voluntary=1) for at in range(400, 500, 20)),
        poll(500, "idle", run_ms=60, voluntary=2),
    ]
    assert not [absence for absence in seen(polls) if absence.verdict.is_hang]


@pytest.mark.parametrize(
    ("state", "frozen", "rule"),
    [("T", False, "stopped"), ("t", False, "debugger"), ("D", True, "frozen")],
)
def test_the_reason_of_a_stop_is_named(state: str, *, frozen: bool, rule: str) -> None:
    polls = [poll(at, "stopped", state=state, frozen=frozen) for at in range(60, 300, 20)]
    (absence,) = seen([*IDLE, *polls])
    assert (absence.verdict, rules_of(absence)) == (Verdict.STOPPED, [rule])


def test_stops_by_this_watcher_are_no_debugger_s() -> None:
    """As of a thread that is traced for crashes, at one poll of three."""
    polls = [
        poll(at, "stopped", state="t", run_ms=at - 60)._replace(is_own_stop=True)
        if at % 60 == 0
        else poll(at, "run", run_ms=at - 60)
        for at in range(60, 600, 20)
    ]
    (absence,) = seen([*IDLE, *polls])
    assert (absence.verdict, rules_of(absence)) == (Verdict.BUSY, ["capture-time"])
    assert "stopped_ns" not in absence.evidence
    only_stops = [each._replace(is_own_stop=True, state="t") for each in polls]
    assert not seen([*IDLE, *only_stops])


def test_a_debugger_is_named_while_the_program_runs_below_it() -> None:
    polls = [each._replace(tracer=77) for each in every_20_ms("run", 60, 200, run_ms=20)]
    (absence,) = seen([*IDLE, *polls])
    assert absence.verdict is Verdict.BUSY
    assert absence.rules[0].text.startswith("process 77 traces it")


def test_a_late_poll_begins_the_measure_again() -> None:
    polls = [
        *IDLE,
        poll(60, "run", run_ms=2),
        poll(160, "run", run_ms=4, voluntary=3, late_ms=80),
        *(poll(at, "run", run_ms=4 + at - 160, voluntary=3) for at in range(180, 300, 20)),
    ]
    (absence,) = seen(polls)
    assert absence.began.best_ns - 7_000_000 * MS == 160 * MS
    assert rules_of(absence) == ["late-watcher"]


def test_a_late_poll_counts_where_the_thread_never_slept() -> None:
    """As on a busy host: it got half of the time, and no voluntary switch let it be idle."""
    polls = [
        *IDLE,
        *every_20_ms("run", 60, 100, run_ms=10),
        poll(200, "run", run_ms=80, late_ms=80),
        *(poll(at, "run", run_ms=80 + at - 200) for at in (220, 240)),
    ]
    (absence,) = seen(polls)[-1:]
    assert absence.verdict is Verdict.BUSY
    assert absence.began.best_ns - 7_000_000 * MS <= 60 * MS


def test_the_time_of_captures_does_not_count() -> None:
    machine = classifier()
    absences = []
    for each in [*IDLE, *every_20_ms("run", 60, 260, run_ms=20)]:
        absences += [event.absence for event in machine.add(each) if isinstance(event, Seen)]
        if each.at_ns == 100 * MS:
            machine.stopped(1, 30 * MS)
    (absence,) = absences
    assert absence.seen_ns - absence.began.best_ns >= T + 30 * MS
    assert absence.evidence["capture_ns"] == 30 * MS
    assert "capture-time" in rules_of(absence)


def launched(polls: Sequence[ThreadPoll], launch_ms: int) -> list[Absence]:
    machine = classifier(launch_ms * MS)
    return [
        event.absence for each in polls for event in machine.add(each) if isinstance(event, Seen)
    ]


def test_a_launch_is_no_hang() -> None:
    polls = [*every_20_ms("run", 0, 2_000, run_ms=20), poll(2_020, "idle", run_ms=2_000)]
    assert not launched(polls, 5_000)


def test_a_launch_that_never_ends_is_one() -> None:
    (absence,) = launched(every_20_ms("run", 0, 6_000, run_ms=20), 5_000)
    assert absence.seen_ns - 7_000_000 * MS == 5_000 * MS
    assert rules_of(absence) == ["launch-grace"]


def test_a_hang_after_the_first_idle_wait_is_reported_while_the_program_is_young() -> None:
    assert launched([*IDLE, *every_20_ms("sleep", 60, 300)], 5_000)


def test_equal_samples_are_one_report() -> None:
    absence = ended([*IDLE, *every_20_ms("sleep", 60, 3_000), poll(3_020, "idle")])
    assert rules_of(absence) == ["same-stack"]


def nested(polls: Sequence[ThreadPoll]) -> list[Absence]:
    machine = classifier()
    machine.waits.add(CALLS["modal"].place, NamedWait(WaitRole.NESTED, "uv_run"))
    return [
        event.absence for each in polls for event in machine.add(each) if isinstance(event, Seen)
    ]


def test_a_nested_loop_that_wakes_again_and_again_is_alive() -> None:
    assert not nested([*IDLE, *every_20_ms("modal", 60, 4_000, voluntary=1, run_ms=0.1)])


def test_one_wait_of_a_nested_loop_is_reported_apart() -> None:
    """As of ``execFileSync``, whose loop waits for a child process alone."""
    (absence,) = nested([*IDLE, *every_20_ms("modal", 60, 400)])
    assert (absence.verdict, absence.certainty) == (Verdict.BLOCKED, VerdictCertainty.CERTAIN)
    assert rules_of(absence) == ["nested-loop"]


def test_a_task_of_a_nested_loop_that_hangs_is_reported() -> None:
    polls = [
        *IDLE,
        *every_20_ms("modal", 60, 400, voluntary=1),
        *(poll(at, "sleep", voluntary=18) for at in range(420, 600, 20)),
    ]
    (absence,) = nested(polls)
    assert absence.began.best_ns - 7_000_000 * MS >= 400 * MS


# --- the loop's own wait ---


def undecided(*polls: ThreadPoll) -> tuple[HangClassifier, list[Event]]:
    """Feed polls to a classifier whose lookups find no names that decide."""
    machine = HangClassifier(T, POLL, RootWaits(Arch.X86_64))
    happened: list[Event] = []
    for each in polls:
        for event in machine.add(each):
            happened.append(event)
            if isinstance(event, LearnWait):
                happened += machine.learnt(event.place, NamedWait(WaitRole.UNKNOWN, ""))
    return machine, happened


def test_a_loop_that_reads_is_idle_though_its_tasks_wait_for_events() -> None:
    read = SystemCall(0, (0,), Avma(0x7FFF_1000), Avma(0x5000))
    polls = []
    for at, doing in enumerate(["idle", "idle", "modal", "idle", "sleep", "idle"] * 4):
        for part in range(10):
            each = poll(at * 200 + 20 * part, doing, voluntary=at)
            polls.append(each._replace(call=read) if doing == "idle" else each)
    _, happened = undecided(*polls)
    absences = [event.absence for event in happened if isinstance(event, Seen)]
    calls = {absence.call.number for absence in absences if absence.call is not None}
    assert calls == {232, 230}  # its tasks' waits alone


def test_a_report_of_the_loops_own_wait_is_withdrawn() -> None:
    """Watching began within a task, whose wait seems to be the loop's until others are seen."""
    loop = SystemCall(35, (), Avma(0x7FFF_1000), Avma(0x5000))
    polls = every_20_ms("modal", 0, 200)
    for number in range(4):
        other = SystemCall(0, (), Avma(0x7FFE_0000 + number), Avma(0x6000))
        for call, part, end in ((loop, 0, 300), (other, 300, 400)):
            polls += [
                poll(220 + number * 400 + at, "sleep", voluntary=number)._replace(call=call)
                for at in range(part, end, 20)
            ]
    machine, happened = undecided(*polls)
    verdicts = [event.absence.verdict for event in happened if isinstance(event, Seen)]
    ends = [event.absence for event in happened if isinstance(event, Ended) and event.was_seen]
    assert verdicts == [Verdict.BLOCKED]
    assert [end.verdict for end in ends] == [Verdict.IDLE]
    assert "idle-wait" in rules_of(ends[0])
    assert machine.waits.is_idle(loop.place)


def test_a_wait_that_recurs_is_not_reported_before_its_role_is_known() -> None:
    """It may be that of the loop: nothing names it, and it is entered again and again."""
    machine, _ = undecided(*every_20_ms("idle", 0, 40))
    machine.waits.add(CALLS["futex"].place, NamedWait(WaitRole.UNKNOWN, ""))
    happened = [
        event
        for each in every_20_ms("futex", 60, 2_000, voluntary=1, run_ms=0.5)
        for event in machine.add(each)
    ]
    assert not [event for event in happened if isinstance(event, Seen)]


def test_a_thread_that_states_that_it_is_away_hangs_though_its_wait_recurs() -> None:
    """A thread waits for the interpreter lock in calls of 5 ms."""
    machine = HangClassifier(T, POLL, RootWaits(Arch.X86_64))
    polls = [each._replace(busy_since_ns=0) for each in IDLE]
    polls += [
        poll(at, "futex", voluntary=at, run_ms=at / 100)._replace(busy_since_ns=50 * MS)
        for at in range(60, 300, 20)
    ]
    found = [each for one in polls for each in machine.add(one) if isinstance(each, Seen)]
    assert [each.absence.verdict for each in found] == [Verdict.BLOCKED]
