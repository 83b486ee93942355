"""Classifies the polls of a watched thread: a state machine without a clock of its own.

Polls come in, requests and hangs come out. A thread is *away* from its last poll in a root wait
(:mod:`machtrace.watching.root_waits`) until the next one. It hangs once it was away for the
threshold, unless the cause lies outside of the program.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple, TypeAlias

from machtrace.frozen import dataclass
from machtrace.model.incident import AppliedRule, TimeRange, Verdict, VerdictCertainty
from machtrace.model.polls import CallPlace, SystemCall, ThreadPoll
from machtrace.watching.root_waits import NamedWait, RootWaits, WaitRole

_FIRST_SAMPLE = 0.6
"""The share of the threshold after which a thread that is away is sampled."""
_SAMPLE_STEP = 0.1
"""The share of the threshold from sample to sample."""
_MOST_SAMPLES = 40
_BACK_OFF, _SLOW_BACK_OFF = 1.6, 1.15
_CLOSE_SAMPLES = 8
"""Samples after which different stacks are taken less often, too."""
_LONGEST_STEP_NS = 1_000_000_000
_SLEEP_NS = 5_000_000
"""Differences of the two clocks below this are no system sleep."""
_STARVED_SHARE = 0.5
"""A thread that queued for more of its time is starved, unless it worked for the threshold."""
_BLOCKED_SHARE = 0.6
_RAN_SHARE = _NESTED_SHARE = 0.5
_LATE_LIMIT = 10
"""A poll that is late by more intervals is not evidence of anything."""
_STOPPED = frozenset("Tt")
_UNINTERRUPTIBLE = frozenset("DK")


class LearnWait(NamedTuple):
    """A request to find out what a thread waits for at a new place: :meth:`RootWaits.add`."""

    place: CallPlace


class TakeSample(NamedTuple):
    """A request for the thread's stack."""

    number: int
    """From 0 in each absence."""
    is_waiting: bool
    """Whether it waits, so that it can be copied without a stop."""
    is_same: bool
    """Whether it provably did not run since the last sample: the stack is the same."""
    at_ns: int


class Seen(NamedTuple):
    """A thread has been away for the threshold, or the verdict on it changed."""

    absence: Absence


class Ended(NamedTuple):
    """It is back."""

    absence: Absence
    was_seen: bool


Event: TypeAlias = LearnWait | TakeSample | Seen | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A time that a thread spends away from its root wait, as far as it is known."""

    began: TimeRange
    seen_ns: int
    verdict: Verdict
    certainty: VerdictCertainty
    duration_ns: int
    """Counted time."""
    evidence: dict[str, int | float | str | bool | None]
    rules: tuple[AppliedRule, ...] = ()
    ended: TimeRange | None = None
    call: SystemCall | None = None
    """The call that it waits in, if it is blocked."""


@dataclass(slots=True)
class _Away:
    """The absence of now."""

    first: ThreadPoll
    before: ThreadPoll | None
    """The last poll in the root wait; None if the thread was never seen there."""
    began_ns: int
    """Best estimate (``CLOCK_MONOTONIC``)."""
    base: ThreadPoll | None = None
    """The first poll with a status."""
    last: ThreadPoll | None = None
    polls: int = 0
    running_polls: int = 0
    wait_polls: int = 0
    """Polls in a wait that is no root wait."""
    blocked_ns: int = 0
    """Time in waits proven by equal switches."""
    likely_blocked_ns: int = 0
    not_counted_ns: int = 0
    nested_ns: int = 0
    """Time in which another wait for events than the root wait was entered again."""
    stopped_ns: int = 0
    slept_ns: int = 0
    late_ns: int = 0
    uninterruptible_ns: int = 0
    queued_ns: int = 0
    """Time between polls that both found it ready to run, in which it did not run."""
    one_wait: bool = True
    """Whether all polls were in one call, with the same switches."""
    calls: dict[CallPlace, int] = field(default_factory=dict)
    call: SystemCall | None = None
    samples: int = 0
    stops: int = 0
    """Stops by this watcher, each of which is a voluntary switch."""
    next_sample_ns: int = 0
    step_ns: int = 0
    sampled_switches: tuple[int, int] | None = None
    sampled_call: SystemCall | None = None
    seen_ns: int | None = None
    verdict: Verdict | None = None
    rules: dict[str, AppliedRule] = field(default_factory=dict)


class HangClassifier:
    """Classifies the polls of one thread.

    Args:
        threshold_ns: the time away that is a hang.
        interval_ns: from poll to poll.
        waits: the roles of places, which several threads of a program do not share.
    """

    def __init__(self, threshold_ns: int, interval_ns: int, waits: RootWaits) -> None:
        self.threshold_ns = threshold_ns
        self.interval_ns = interval_ns
        self.waits = waits
        self._away: _Away | None = None
        self._last: ThreadPoll | None = None
        self._last_idle: ThreadPoll | None = None
        self._place: CallPlace | None = None
        """The place of the last poll."""
        self._requested: set[CallPlace] = set()
        self._entered: tuple[CallPlace, _Away | None, ThreadPoll] | None = None
        """The place that is being looked up, and the absence before the thread entered it."""

    @property
    def wants_status(self) -> bool:
        """Whether the next poll needs the status."""
        return self._away is not None

    @property
    def state(self) -> str | None:
        """``idle``, the verdict's value if it was seen, ``away``, or None before the first poll."""
        if self._away is None:
            return None if self._last is None else "idle"
        return "away" if self._away.verdict is None else self._away.verdict.value

    @property
    def next_ns(self) -> int | None:
        """The time of the next decision (``CLOCK_MONOTONIC``), which a poll should not miss."""
        away = self._away
        if away is None or self._last is None:
            return None
        times = [away.next_sample_ns] if away.samples < _MOST_SAMPLES else []
        if away.seen_ns is None:
            times.append(away.began_ns + away.not_counted_ns + self.threshold_ns)
        after = [time for time in times if time > self._last.at_ns]
        return min(after, default=None)

    def add(self, poll: ThreadPoll) -> list[Event]:
        """Take the next poll; return what it means and what is needed."""
        events: list[Event] = []
        last, self._last = self._last, poll
        is_call = poll.call is not None and poll.call.number >= 0 and not _is_stopped(poll)
        place = poll.call.place if poll.call is not None and is_call else None
        self.waits.visit(place)
        role = None if place is None else self.waits.role(place)
        if place is not None and role is None and place not in self._requested:
            self._requested.add(place)
            events.append(LearnWait(place))
        if self._is_idle(poll, role):
            if self._away is not None:
                events += self._back(self._away, poll)
            self._last_idle = poll
            self._place = place
            return events
        away = self._away
        before = None if away is None else replace(away, calls=dict(away.calls))
        if away is None:
            away = self._away = self._gone(poll, last)
        else:
            self._advance(away, away.last or away.first, poll)
        if place != self._place:
            self._entered = None if role is not None or place is None else (place, before, poll)
        if poll.switches is not None and away.base is None:
            away.base = poll
        away.last = poll
        away.polls += 1
        self._place = place
        if poll.call is not None and place is not None:
            away.wait_polls += 1
            away.call = poll.call
            away.calls[poll.call.place] = away.calls.get(poll.call.place, 0) + 1
        elif poll.is_running:
            away.running_polls += 1
        events += self._samples(away, poll)
        events += self._decide(away, poll)
        return events

    def learnt(self, place: CallPlace, wait: NamedWait | None) -> list[Event]:
        """Take the wait at a place that was requested; None if the thread left it meanwhile."""
        self._requested.discard(place)
        if wait is None:
            return []
        self.waits.add(place, wait)
        last, entered, self._entered = self._last, self._entered, None
        if not self.waits.is_idle(place):
            return []
        if self._away is None or last is None or entered is None or entered[0] != place:
            return []
        # It is in its root wait since it entered this place, which was not known then.
        _, before, entry = entered
        self._away, self._last_idle = None, last
        return [] if before is None else self._back(before, entry)

    def end(self, poll: ThreadPoll) -> list[Event]:
        """Take the end of the thread, or of watching; ``poll`` is the last one."""
        return [] if self._away is None else self._back(self._away, poll)

    def _is_idle(self, poll: ThreadPoll, role: WaitRole | None) -> bool:
        if poll.busy_since_ns is not None:
            return poll.busy_since_ns == 0
        if poll.is_running is None:
            return True  # it is hidden: whether it waits or hangs cannot be determined
        return role is not None and role.is_idle

    def _gone(self, poll: ThreadPoll, last: ThreadPoll | None) -> _Away:
        before = self._last_idle if last is self._last_idle else None
        began = poll.at_ns
        if poll.busy_since_ns:
            began = poll.busy_since_ns
        elif before is not None:
            ran = _grown(before.run_ns, poll.run_ns)
            if poll.is_running and ran is not None:
                began = max(before.at_ns, poll.at_ns - max(ran, 0))
            else:
                began = (before.at_ns + poll.at_ns) // 2
        step = max(1, round(self.threshold_ns * _SAMPLE_STEP))
        return _Away(
            first=poll,
            before=before,
            began_ns=began,
            next_sample_ns=began + round(self.threshold_ns * _FIRST_SAMPLE),
            step_ns=step,
        )

    def _advance(self, away: _Away, last: ThreadPoll, poll: ThreadPoll) -> None:
        """Account for the time between two polls."""
        passed = poll.at_ns - last.at_ns
        slept = (poll.boot_ns - last.boot_ns) - passed
        if slept > _SLEEP_NS:
            away.slept_ns += slept
            away.rules["system-sleep"] = AppliedRule(
                "system-sleep", f"the system slept for {slept / 1e9:.1f} s, which do not count"
            )
        is_same = (
            poll.call is not None
            and poll.call == last.call
            and poll.switches is not None
            and poll.switches == last.switches
        )
        if _is_stopped(poll) or _is_stopped(last):
            away.stopped_ns += passed
            away.not_counted_ns += passed
            away.one_wait = False
            return
        excess = poll.late_ns if poll.late_ns >= self.interval_ns else 0
        ran = _grown(last.run_ns, poll.run_ns) or 0
        is_proven = excess <= _LATE_LIMIT * self.interval_ns and (
            is_same or ran >= passed - self.interval_ns
        )
        if excess and not is_proven:
            away.late_ns += excess
            away.not_counted_ns += min(excess, passed)
            away.rules["late-watcher"] = AppliedRule(
                "late-watcher",
                f"this watcher was not scheduled for {away.late_ns / 1e6:.0f} ms, which do not "
                "count",
            )
            passed = max(0, passed - excess)
        if poll.state in _UNINTERRUPTIBLE:
            away.uninterruptible_ns += passed
        if is_same:
            away.blocked_ns += passed
        elif poll.call is not None and last.call is not None:
            away.likely_blocked_ns += max(0, passed - ran)
            if poll.call.place == last.call.place and self.waits.is_event(poll.call.place):
                away.nested_ns += passed
            away.one_wait = away.one_wait and last.switches is None and poll.call == last.call
        else:
            away.one_wait = False
            if poll.is_running and last.is_running and ran < _RAN_SHARE * passed:
                away.queued_ns += passed - ran

    def _samples(self, away: _Away, poll: ThreadPoll) -> list[Event]:
        if poll.at_ns < away.next_sample_ns or away.samples >= _MOST_SAMPLES:
            return []
        if _is_stopped(poll):
            return []
        is_waiting = poll.call is not None
        is_same = (
            is_waiting
            and away.samples > 0
            and poll.switches is not None
            and poll.switches == away.sampled_switches
            and poll.call == away.sampled_call
        )
        if is_same:
            away.step_ns = min(round(away.step_ns * _BACK_OFF), _LONGEST_STEP_NS)
        away.sampled_switches, away.sampled_call = poll.switches, poll.call
        away.next_sample_ns = poll.at_ns + away.step_ns
        away.samples += 1
        return [TakeSample(away.samples - 1, is_waiting, is_same, poll.boot_ns)]

    def stopped(self, count: int) -> None:
        """Count stops of the thread by this watcher."""
        if self._away is not None:
            self._away.stops += count

    def sampled(self, *, is_same: bool) -> None:
        """State whether the stack of the last sample was that of the one before."""
        away = self._away
        if away is None:
            return
        least = max(1, round(self.threshold_ns * _SAMPLE_STEP))
        step = least
        if is_same or away.samples > _CLOSE_SAMPLES:
            factor = _BACK_OFF if is_same else _SLOW_BACK_OFF
            step = min(round(away.step_ns * factor), _LONGEST_STEP_NS)
        away.next_sample_ns += step - away.step_ns
        away.step_ns = step

    def _decide(self, away: _Away, poll: ThreadPoll) -> list[Event]:
        wall = self._counted(away, poll.at_ns)
        total = poll.at_ns - away.began_ns
        if away.seen_ns is not None or self._entered is not None:
            return []
        if total >= self.threshold_ns and away.stopped_ns > total - self.threshold_ns:
            return self._see(away, poll, Verdict.STOPPED) if away.verdict is None else []
        if wall < self.threshold_ns:
            return []
        verdict = self._verdict(away, poll)
        if not verdict.is_hang and away.verdict is verdict:
            return []
        return self._see(away, poll, verdict)

    def _see(self, away: _Away, poll: ThreadPoll, verdict: Verdict) -> list[Event]:
        away.verdict = verdict
        if away.nested_ns >= _NESTED_SHARE * self._counted(away, poll.at_ns):
            away.rules["nested-loop"] = AppliedRule(
                "nested-loop",
                "a loop within a task waits for events again and again, as that of a modal dialog",
            )
        if verdict.is_hang:
            away.seen_ns = poll.boot_ns
        return [Seen(self._absence(away, poll))]

    def _verdict(self, away: _Away, poll: ThreadPoll) -> Verdict:
        wall = max(1, self._counted(away, poll.at_ns))
        ran, delayed = self._use(away, poll)
        queued = max(delayed, away.queued_ns)
        proven = away.blocked_ns + away.likely_blocked_ns
        # A thread that neither runs nor queues waits, if only for short times.
        blocked = max(proven, wall - ran - queued)
        if away.uninterruptible_ns >= _BLOCKED_SHARE * wall:
            return Verdict.UNINTERRUPTIBLE
        if ran + proven < self.threshold_ns and queued > _STARVED_SHARE * wall:
            return Verdict.STARVED
        if blocked >= _BLOCKED_SHARE * wall:
            return Verdict.BLOCKED
        return Verdict.BUSY

    def _use(self, away: _Away, poll: ThreadPoll) -> tuple[int, int]:
        """Return the time that the thread ran, and the time that it queued or was throttled."""
        start = away.before or away.first
        ran = _grown(start.run_ns, poll.run_ns) or 0
        delayed = _grown(start.delay_ns, poll.delay_ns) or 0
        if away.base is not None:
            delayed += _grown(away.base.throttled_ns, poll.throttled_ns) or 0
        return ran, delayed

    def _counted(self, away: _Away, now_ns: int) -> int:
        return now_ns - away.began_ns - away.not_counted_ns

    def _absence(self, away: _Away, poll: ThreadPoll, ended: TimeRange | None = None) -> Absence:
        verdict = away.verdict or self._verdict(away, poll)
        ran, delayed = self._use(away, poll)
        base, end = away.base, away.last or away.first
        voluntary = involuntary = None
        if base is not None and base.switches is not None and end.switches is not None:
            voluntary = max(0, end.switches[0] - base.switches[0] - away.stops)
            involuntary = end.switches[1] - base.switches[1]
        boot = poll.boot_ns - poll.at_ns
        earliest = away.began_ns if away.first.busy_since_ns else away.first.at_ns
        if away.before is not None and not away.first.busy_since_ns:
            earliest = away.before.at_ns
        latest = away.began_ns if away.first.busy_since_ns else away.first.at_ns
        is_certain = voluntary == 0 and (
            (verdict is Verdict.BLOCKED and away.one_wait)
            or (verdict is Verdict.BUSY and not away.wait_polls and ran > 0)
            or (verdict is Verdict.UNINTERRUPTIBLE and away.one_wait)
        )
        is_certain = is_certain or verdict is Verdict.STOPPED
        until = poll.at_ns
        if ended is not None:
            until = ended.best_ns - boot
        evidence: dict[str, int | float | str | bool | None] = {
            "polls": away.polls,
            "polls_running": away.running_polls,
            "polls_waiting": away.wait_polls,
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            "run_ns": ran,
            "delay_ns": delayed,
            "idle_seen": self._last_idle is not None,
        }
        if away.stopped_ns:
            evidence["stopped_ns"] = away.stopped_ns
        if away.slept_ns:
            evidence["slept_ns"] = away.slept_ns
        if away.late_ns:
            evidence["late_ns"] = away.late_ns
        call = away.call if verdict in (Verdict.BLOCKED, Verdict.UNINTERRUPTIBLE) else None
        if call is not None:
            evidence["system_call"] = call.number
        return Absence(
            began=TimeRange(earliest + boot, latest + boot, away.began_ns + boot),
            seen_ns=away.seen_ns or poll.boot_ns,
            verdict=verdict,
            certainty=VerdictCertainty.CERTAIN if is_certain else VerdictCertainty.LIKELY,
            duration_ns=max(0, self._counted(away, until)),
            evidence=evidence,
            rules=tuple(away.rules.values()),
            ended=ended,
            call=call,
        )

    def _back(self, away: _Away, poll: ThreadPoll) -> list[Event]:
        self._away = None
        last = away.last or away.first
        boot = poll.boot_ns - poll.at_ns
        ran = _grown(last.run_ns, poll.run_ns)
        if last.is_running and ran is not None:
            ended = min(poll.at_ns, last.at_ns + ran)
        else:
            ended = (last.at_ns + poll.at_ns) // 2
        absence = self._absence(
            away,
            poll,
            ended=TimeRange(last.at_ns + boot, poll.at_ns + boot, ended + boot),
        )
        return [Ended(absence, away.verdict is not None)]


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _is_stopped(poll: ThreadPoll) -> bool:
    return poll.is_frozen or poll.state in _STOPPED
