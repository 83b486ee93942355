"""Classifies the polls of a watched thread: a state machine without a clock of its own.

Polls come in, requests and hangs come out. A thread is *away* from its last poll in a root wait
(:mod:`machtrace.watching.hangs.root_waits`) until the next one. It hangs once it was away for the
threshold, unless the cause lies outside of the program.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from machtrace.model.incident.facts import TimeRange, Verdict, VerdictCertainty
from machtrace.model.polls import CallPlace, ThreadPoll
from machtrace.watching.hangs.absences import Absence, Away, grown, is_one_wait, is_stopped
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.wait_roles import NamedWait, WaitRole

_FIRST_SAMPLE = 0.6
"""The share of the threshold after which a thread that is away is sampled."""
_SAMPLE_STEP = 0.1
"""The share of the threshold from sample to sample."""
_MAX_SAMPLES = 40
_BACK_OFF, _SLOW_BACK_OFF = 1.6, 1.3
_CLOSE_SAMPLES = 4
"""Samples after which different stacks are taken less often, too."""
_MAX_STEP_NS = 1_000_000_000
_LATE_LIMIT = 10
"""A poll that is late by more intervals is no evidence of a wait."""


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


class HangClassifier:
    """Classifies the polls of one thread.

    Args:
        threshold_ns: the time away that is a hang.
        interval_ns: from poll to poll.
        waits: the roles of places, which several threads of a program do not share.
        launch_ns: the end of the program's launch (``CLOCK_MONOTONIC``): until then a thread that
            was never idle does not hang.
    """

    def __init__(
        self, threshold_ns: int, interval_ns: int, waits: RootWaits, *, launch_ns: int = 0
    ) -> None:
        self.threshold_ns = threshold_ns
        self.interval_ns = interval_ns
        self.waits = waits
        self.absences = 0
        """The number of absences so far."""
        self._launch_ns = launch_ns
        self._away: Away | None = None
        self._next_sample_ns = self._step_ns = 0
        self._sampled: ThreadPoll | None = None
        """The poll of the last sample in this absence."""
        self._last: ThreadPoll | None = None
        self._last_idle: ThreadPoll | None = None
        self._place: CallPlace | None = None
        """The place of the last poll."""
        self._requested: set[CallPlace] = set()
        self._left: dict[CallPlace, tuple[ThreadPoll, ThreadPoll | None]] = {}
        """The last poll in each place that is being looked up, and the one after it."""
        self._entered: tuple[CallPlace, Away | None, ThreadPoll] | None = None
        """The place that is being looked up, and the absence before the thread entered it."""

    @property
    def wants_status(self) -> bool:
        """Whether the next poll needs the status."""
        return self._away is not None

    @property
    def is_idle(self) -> bool:
        """Whether the thread was in a root wait at the last poll."""
        return self._away is None and self._last is not None

    @property
    def state(self) -> str | None:
        """``idle``, the verdict's value if it was seen, ``away``, or None before the first poll."""
        if self._away is None:
            return None if self._last is None else "idle"
        return "away" if self._away.verdict is None else self._away.verdict.value

    @property
    def absence(self) -> Absence | None:
        """The absence that lasts, as of the last poll."""
        if self._away is None or self._last is None:
            return None
        return self._away.absence(self._last)

    @property
    def next_ns(self) -> int | None:
        """The time of the next decision (``CLOCK_MONOTONIC``), which a poll should not miss."""
        away = self._away
        if away is None or self._last is None:
            return None
        times = [self._next_sample_ns] if away.samples < _MAX_SAMPLES else []
        if away.seen_ns is None:
            times.append(away.began_ns + away.not_counted_ns + self.threshold_ns)
        after = [time for time in times if time > self._last.at_ns]
        return min(after, default=None)

    def add(self, poll: ThreadPoll) -> list[Event]:
        """Take the next poll; return what it means and what is needed."""
        events: list[Event] = []
        last, self._last = self._last, poll
        is_call = poll.call is not None and poll.call.number >= 0 and not is_stopped(poll)
        place = self.waits.place_of(poll.call) if poll.call is not None and is_call else None
        role = self._look_up(place, poll, events)
        if self._is_idle(poll, role):
            if self._away is not None:
                events += self._back(self._away, poll)
            self._last_idle = poll
            self._place = place
            return events
        if role is WaitRole.NESTED and self._has_woken(poll, place):
            # A nested loop that wakes again and again is alive: each of its waits is measured.
            events += [] if self._away is None else self._back(self._away, poll)
        away = self._away
        before = away
        if away is not None and place is not None and role is None and place != self._place:
            before = away.copy()
        away = self._gone(poll, last) if away is None else self._advance(away, poll)
        if place != self._place:
            self._entered = None
            if place is not None and poll.busy_since_ns is None and self.waits.may_be_idle(place):
                self._entered = place, before, poll
        self._place = place
        away.is_nested = place is not None and self.waits.is_nested(place)
        away.add(poll, place)
        return events + self._samples(away, poll) + self._decide(away, poll)

    def _look_up(
        self, place: CallPlace | None, poll: ThreadPoll, events: list[Event]
    ) -> WaitRole | None:
        """Return the role of the place of a poll; it is requested if it is new."""
        for each, (at, after) in self._left.items():
            if after is None and each != place:
                self._left[each] = at, poll
        if place is None:
            return None
        self.waits.visit(place)
        role = self.waits.role(place)
        if role is None and place not in self._requested and poll.busy_since_ns is None:
            self._requested.add(place)
            events.append(LearnWait(place))
        if place in self._requested and self.waits.may_be_idle(place):
            self._left[place] = poll, None
        return role

    def _may_have_been_idle(self, away: Away, poll: ThreadPoll) -> bool:
        """Whether a wait in this absence, within the threshold, is still being looked up."""
        since = max(away.began_ns, poll.at_ns - self.threshold_ns)
        return self._entered is not None or any(
            after is not None and at.at_ns > since for at, after in self._left.values()
        )

    def learnt(self, place: CallPlace, wait: NamedWait | None) -> list[Event]:
        """Take the wait at a place that was requested; None if the thread left it meanwhile."""
        self._requested.discard(place)
        at, after = self._left.pop(place, (None, None))
        entered = self._entered
        if entered is not None and entered[0] == place:
            # If there is no result, it did not stay there: no idle wait has to be known first.
            self._entered = None
        if wait is None:
            return []
        self.waits.add(place, wait)
        if not self.waits.is_idle(place):
            return []
        away, last = self._away, self._last
        if away is None or last is None:
            return []
        if entered is None or entered[0] != place:
            return self._was_idle(away, at, after)
        # It is in its root wait since it entered this place, which was not known then.
        _, before, entry = entered
        self._away, self._last_idle = None, last
        return [] if before is None else self._back(before, entry)

    def _was_idle(self, away: Away, at: ThreadPoll | None, after: ThreadPoll | None) -> list[Event]:
        """Take the last poll in a wait that turned out to be the loop's, and the one after it."""
        if at is None or after is None or at.at_ns < away.began_ns:
            away.idle_seen = True
            return []
        if away.seen_ns is not None and away.seen_ns > after.boot_ns:
            away.began_ns, away.before, away.first = at.at_ns, at, after
            away.idle_seen = True
            return []
        events = self._back(away, at)
        self._last_idle, self._entered = at, None
        self._gone(after, at)
        return events

    def end(self, poll: ThreadPoll) -> list[Event]:
        """Take the end of the thread, or of watching; ``poll`` is the last one."""
        return [] if self._away is None else self._back(self._away, poll)

    def stopped(self, count: int, duration_ns: int = 0) -> None:
        """Count stops of the thread by this watcher, and leave out their time."""
        if self._away is not None:
            self._away.stops += count
            self._away.new_stops += count
            self._away.capture_ns += duration_ns
            self._away.not_counted_ns += duration_ns

    def sampled(self, *, is_same: bool) -> None:
        """State whether the stack of the last sample was that of the one before."""
        away = self._away
        if away is None:
            return
        step = max(1, round(self.threshold_ns * _SAMPLE_STEP))
        if is_same or away.samples > _CLOSE_SAMPLES:
            factor = _BACK_OFF if is_same else _SLOW_BACK_OFF
            step = min(round(self._step_ns * factor), _MAX_STEP_NS)
        away.same_samples += is_same
        self._next_sample_ns += step - self._step_ns
        self._step_ns = step

    def _is_idle(self, poll: ThreadPoll, role: WaitRole | None) -> bool:
        if poll.busy_since_ns is not None:
            return poll.busy_since_ns == 0
        if poll.is_running is None:
            return True  # it is hidden: whether it waits or hangs cannot be determined
        return role is not None and role.is_idle

    def _has_woken(self, poll: ThreadPoll, place: CallPlace | None) -> bool:
        """Whether the thread, which is in ``place``, was elsewhere at the last poll or since."""
        away = self._away
        if away is None:
            return False
        last = away.last or away.first
        if place != self._place:
            return True
        return None not in (poll.switches, last.switches) and not is_one_wait(last, poll)

    def _gone(self, poll: ThreadPoll, last: ThreadPoll | None) -> Away:
        before = self._last_idle if last is self._last_idle else None
        began = poll.at_ns
        if poll.busy_since_ns:
            began = poll.busy_since_ns
        elif before is not None:
            ran = grown(before.run_ns, poll.run_ns)
            if poll.is_running and ran is not None:
                began = max(before.at_ns, poll.at_ns - max(ran, 0))
            else:
                began = (before.at_ns + poll.at_ns) // 2
        away = Away(
            threshold_ns=self.threshold_ns,
            first=poll,
            before=before,
            began_ns=began,
            idle_seen=self._last_idle is not None,
        )
        if poll.late_ns > _LATE_LIMIT * self.interval_ns:
            # All may have been stopped, this watcher too: only what it ran for is certain.
            ran = 0 if before is None else grown(before.run_ns, poll.run_ns) or 0
            away.miss(min(poll.late_ns, poll.at_ns - began) - ran)
        self.absences += 1
        return self._begin(away)

    def _begin(self, away: Away) -> Away:
        self._away, self._sampled = away, None
        self._next_sample_ns = away.began_ns + round(self.threshold_ns * _FIRST_SAMPLE)
        self._step_ns = max(1, round(self.threshold_ns * _SAMPLE_STEP))
        return away

    def _advance(self, away: Away, poll: ThreadPoll) -> Away:
        """Account for the time since the last poll, or begin again if that proves nothing."""
        last = away.last or away.first
        counts = self._is_evidence(away, last, poll)
        if not counts and away.verdict is None and not (is_stopped(poll) or is_stopped(last)):
            return self._begin(away.restarted(poll))
        is_event = poll.call is not None and self.waits.is_event(poll.call.place)
        away.advance(poll, is_event=is_event, counts=counts)
        return away

    def _is_evidence(self, away: Away, last: ThreadPoll, poll: ThreadPoll) -> bool:
        """Whether the thread was away between two polls, however late the second one is."""
        if poll.late_ns < self.interval_ns:
            return True
        passed = poll.at_ns - last.at_ns
        if is_one_wait(last, poll):
            # Where the whole machine was suspended, the wait seems longer than it was.
            return poll.late_ns <= _LATE_LIMIT * self.interval_ns
        if (grown(last.run_ns, poll.run_ns) or 0) >= passed - self.interval_ns:
            return True
        if last.switches is None or poll.switches is None or last.call or poll.call:
            return False
        # A thread that never slept was in no wait.
        return poll.switches[0] - last.switches[0] <= away.new_stops

    def _is_launching(self, away: Away, poll: ThreadPoll) -> bool:
        return not away.idle_seen and poll.at_ns < self._launch_ns

    def _samples(self, away: Away, poll: ThreadPoll) -> list[Event]:
        if poll.at_ns < self._next_sample_ns or away.samples >= _MAX_SAMPLES:
            return []
        if is_stopped(poll) or self._is_launching(away, poll):
            return []
        is_same = self._sampled is not None and is_one_wait(self._sampled, poll)
        if is_same:
            self._step_ns = min(round(self._step_ns * _BACK_OFF), _MAX_STEP_NS)
            away.same_samples += 1
        self._sampled = poll
        self._next_sample_ns = poll.at_ns + self._step_ns
        away.samples += 1
        return [TakeSample(away.samples - 1, poll.call is not None, is_same, poll.boot_ns)]

    def _decide(self, away: Away, poll: ThreadPoll) -> list[Event]:
        total = poll.at_ns - away.began_ns
        if (
            away.seen_ns is not None
            or total < self.threshold_ns
            or self._may_have_been_idle(away, poll)
        ):
            return []
        if self._is_launching(away, poll):
            away.apply(
                "launch-grace",
                "the thread was not idle since the program started: reported after its launch",
            )
            return []
        if away.stopped_ns > total - self.threshold_ns:
            return self._see(away, poll, Verdict.STOPPED) if away.verdict is None else []
        if away.counted_ns(poll.at_ns) < self.threshold_ns:
            return []
        verdict = away.decide(poll)
        # A thread that waits for a device queues between its waits.
        is_known = away.verdict is verdict or (
            away.verdict is Verdict.UNINTERRUPTIBLE and not verdict.is_hang
        )
        if is_known or self._may_be_idle(away, poll, verdict):
            return []
        return self._see(away, poll, verdict)

    def _may_be_idle(self, away: Away, poll: ThreadPoll, verdict: Verdict) -> bool:
        """Whether a wait that recurs may be the loop's own, as far as is known."""
        place = away.place
        return (
            poll.busy_since_ns is None
            and verdict is Verdict.BLOCKED
            and place is not None
            and away.has_repeated
            and not self.waits.is_proven(place)
            and away.absence(poll).certainty is VerdictCertainty.LIKELY
        )

    def _see(self, away: Away, poll: ThreadPoll, verdict: Verdict) -> list[Event]:
        away.verdict = verdict
        if verdict.is_hang:
            away.seen_ns = poll.boot_ns
        return [Seen(away.absence(poll))]

    def _back(self, away: Away, poll: ThreadPoll) -> list[Event]:
        self._away = None
        last = away.last or away.first
        if last.at_ns > poll.at_ns:
            last = poll  # its end was found later
        boot = poll.boot_ns - poll.at_ns
        ran = grown(last.run_ns, poll.run_ns)
        if last.is_running and ran is not None:
            best = min(poll.at_ns, last.at_ns + ran)
        else:
            best = (last.at_ns + poll.at_ns) // 2
        was_seen = away.verdict is not None
        place = away.place
        is_wait = away.verdict is Verdict.BLOCKED or (
            away.verdict is Verdict.BUSY and away.waits_mostly
        )
        if is_wait and place is not None and self.waits.is_idle(place):
            away.verdict = Verdict.IDLE
            away.apply("idle-wait", "its wait turned out to be that of its own loop: no hang")
        ended = TimeRange(last.at_ns + boot, poll.at_ns + boot, best + boot)
        return [Ended(away.absence(poll, ended), was_seen)]
