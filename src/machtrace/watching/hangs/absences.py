"""Absences: the time that a thread spends away from its root wait, and the evidence of it."""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.incident.facts import AppliedRule, TimeRange, Verdict, VerdictCertainty
from machtrace.model.polls import UNKNOWN_CALL, CallPlace, SystemCall, ThreadPoll

_SLEEP_NS = 5_000_000
"""Differences of the two clocks below this are no system sleep."""
_BLOCKED_SHARE = 0.6
_ENOUGH_SHARE = 0.8
"""The share of its time that a thread has to use, by running or waiting, to hang itself."""
_RAN_SHARE = _NESTED_SHARE = 0.5
_STARVED_SHARE = 0.2
"""The share of queues from which on they are stated beside another verdict."""
_MIN_CAPTURE_NS = 1_000_000
_REPEATED = 3
"""Entries to one wait, or equal samples, that are a repetition."""
_STOPPED = frozenset("Tt")
_UNINTERRUPTIBLE = frozenset("DK")


class ThreadUse(NamedTuple):
    """How a thread spent a time, in nanoseconds."""

    ran: int
    queued: int
    """Ready to run without a processor, or throttled by a quota."""
    waited: int


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

    @property
    def is_certain(self) -> bool:
        """Whether the evidence excludes other verdicts."""
        return self.certainty is VerdictCertainty.CERTAIN


@dataclass(slots=True)
class Away:
    """The absence of now: what the polls so far show."""

    threshold_ns: int
    first: ThreadPoll
    before: ThreadPoll | None
    """The last poll in the root wait; None if the thread was never seen there."""
    began_ns: int
    """Best estimate (``CLOCK_MONOTONIC``)."""
    idle_seen: bool
    is_nested: bool = False
    """Whether it waits in a loop within a task."""
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
    """Polls in each wait."""
    entries: dict[CallPlace, int] = field(default_factory=dict)
    """Times that each wait was entered, as far as polls show."""
    call: SystemCall | None = None
    samples: int = 0
    same_samples: int = 0
    stops: int = 0
    """Stops by this watcher, each of which is a voluntary switch."""
    new_stops: int = 0
    """Those since the last poll."""
    capture_ns: int = 0
    """The time of these stops."""
    seen_ns: int | None = None
    verdict: Verdict | None = None
    rules: dict[str, AppliedRule] = field(default_factory=dict)

    def copy(self) -> Away:
        """Return the absence as it is now."""
        return replace(
            self, calls=dict(self.calls), entries=dict(self.entries), rules=dict(self.rules)
        )

    def apply(self, name: str, text: str) -> None:
        """Add a rule, or replace its text."""
        self.rules[name] = AppliedRule(name, text)

    def counted_ns(self, now_ns: int) -> int:
        """Return the time until ``now_ns`` without what does not count."""
        return now_ns - self.began_ns - self.not_counted_ns

    @property
    def place(self) -> CallPlace | None:
        """The wait of most polls."""
        return max(self.calls, key=lambda place: self.calls[place], default=None)

    @property
    def waits_mostly(self) -> bool:
        """Whether most polls found it in one wait."""
        place = self.place
        return place is not None and 2 * self.calls[place] > self.polls

    @property
    def has_repeated(self) -> bool:
        """Whether a wait was entered again and again."""
        return any(count >= _REPEATED for count in self.entries.values())

    def advance(self, poll: ThreadPoll, *, is_event: bool, counts: bool) -> None:
        """Account for the time since the last poll.

        Args:
            poll: the new one.
            is_event: whether it is in a call that waits for events.
            counts: False if the watcher was late, and nothing proves what the thread did.
        """
        last = self.last or self.first
        passed = poll.at_ns - last.at_ns
        slept = (poll.boot_ns - last.boot_ns) - passed
        if slept > _SLEEP_NS:
            self.slept_ns += slept
            seconds = self.slept_ns / 1e9
            self.apply("system-sleep", f"the system slept for {seconds:.1f} s, which do not count")
        if poll.tracer:
            self.apply("debugger", f"process {poll.tracer} traces it; its stops do not count")
        if is_stopped(poll) or is_stopped(last):
            self._stop(passed, poll if is_stopped(poll) else last)
            return
        if not counts:
            excess = min(poll.late_ns, passed)
            self.miss(excess)
            passed -= excess
        ran = grown(last.run_ns, poll.run_ns) or 0
        if poll.state in _UNINTERRUPTIBLE:
            self.uninterruptible_ns += passed
        if is_one_wait(last, poll):
            self.blocked_ns += passed
        elif poll.call is not None and last.call is not None:
            self.likely_blocked_ns += max(0, passed - ran)
            if poll.call.place == last.call.place and is_event:
                self.nested_ns += passed
            self.one_wait = self.one_wait and last.switches is None and poll.call == last.call
        else:
            self.one_wait = False
            if poll.is_running and last.is_running and ran < _RAN_SHARE * passed:
                self.queued_ns += passed - ran

    def add(self, poll: ThreadPoll, place: CallPlace | None) -> None:
        """Count a poll that :meth:`advance` has accounted for, in a wait or running."""
        last = self.last
        self.new_stops = 0
        self.polls += 1
        self.last = poll
        if poll.switches is not None and self.base is None:
            self.base = poll
        if poll.call is not None and place is not None:
            self.wait_polls += 1
            self.call = poll.call
            self.calls[place] = self.calls.get(place, 0) + 1
            if last is None or not _may_be_one_wait(last, poll):
                self.entries[place] = self.entries.get(place, 0) + 1
        elif poll.is_running:
            self.running_polls += 1

    def restarted(self, poll: ThreadPoll) -> Away:
        """Return the absence that begins now, because the watcher missed what was before."""
        again = Away(
            threshold_ns=self.threshold_ns,
            first=poll,
            before=None,
            began_ns=poll.at_ns,
            idle_seen=self.idle_seen,
            is_nested=self.is_nested,
            rules=dict(self.rules),
            late_ns=self.late_ns + poll.late_ns,
        )
        again._late()
        return again

    def miss(self, duration_ns: int) -> None:
        """Leave out a time in which this watcher was late."""
        if duration_ns > 0:
            self.late_ns += duration_ns
            self.not_counted_ns += duration_ns
            self._late()

    def _late(self) -> None:
        milliseconds = self.late_ns / 1e6
        self.apply(
            "late-watcher",
            f"this watcher was not scheduled for {milliseconds:.0f} ms, which do not count",
        )

    def _stop(self, passed: int, poll: ThreadPoll) -> None:
        self.not_counted_ns += passed
        self.one_wait = False
        if poll.is_own_stop:
            self.capture_ns += passed
            return
        self.stopped_ns += passed
        milliseconds = f"{self.stopped_ns / 1e6:.0f} ms, which do not count"
        if poll.is_frozen:
            self.apply("frozen", f"its control group was frozen, in all for {milliseconds}")
        elif poll.state == "t":
            tracer = f"process {poll.tracer}" if poll.tracer else "a tracer"
            self.apply("debugger", f"{tracer} stopped it, in all for {milliseconds}")
        else:
            self.apply("stopped", f"a signal stopped it, in all for {milliseconds}")

    def use(self, poll: ThreadPoll) -> ThreadUse:
        """Return how the thread spent the time until ``poll``."""
        start = self.before or self.first
        ran = grown(start.run_ns, poll.run_ns) or 0
        delayed = grown(start.delay_ns, poll.delay_ns) or 0
        if self.base is not None:
            delayed += grown(self.base.throttled_ns, poll.throttled_ns) or 0
        queued = max(delayed, self.queued_ns)
        waited = self.blocked_ns + self.likely_blocked_ns
        if self.wait_polls or (self.voluntary != 0 and not self.stopped_ns):
            # What neither runs nor queues waits, for short times; polls show how much that may be.
            counted = self.counted_ns(poll.at_ns)
            most = counted * (self.wait_polls + 1) // (self.polls + 1)
            waited = max(waited, min(most, counted - ran - queued))
        return ThreadUse(ran, queued, waited)

    def decide(self, poll: ThreadPoll) -> Verdict:
        """Return the verdict if the thread has been away for the threshold."""
        wall = max(1, self.counted_ns(poll.at_ns))
        ran, queued, waited = self.use(poll)
        if self.uninterruptible_ns >= _BLOCKED_SHARE * wall:
            return Verdict.UNINTERRUPTIBLE
        if waited >= _BLOCKED_SHARE * wall:
            return Verdict.BLOCKED
        is_enough = ran + waited >= min(self.threshold_ns, _ENOUGH_SHARE * wall)
        if not is_enough or queued >= _STARVED_SHARE * wall:
            self.apply(
                "starvation",
                f"it ran for {ran / 1e6:.0f} ms of {wall / 1e6:.0f} ms: it was ready to run, "
                "without a processor",
            )
        return Verdict.BUSY if is_enough else Verdict.STARVED

    @property
    def voluntary(self) -> int | None:
        """Voluntary context switches of the program since the first status; None if unknown."""
        base, end = self.base, self.last or self.first
        if base is None or base.switches is None or end.switches is None:
            return None
        return max(0, end.switches[0] - base.switches[0] - self.stops)

    def absence(self, poll: ThreadPoll, ended: TimeRange | None = None) -> Absence:
        """Return what is known at ``poll``, the last one."""
        verdict = self.verdict or self.decide(poll)
        used = self.use(poll)
        base, end = self.base, self.last or self.first
        voluntary, involuntary = self.voluntary, None
        if base is not None and base.switches is not None and end.switches is not None:
            involuntary = end.switches[1] - base.switches[1]
        boot = poll.boot_ns - poll.at_ns
        earliest = latest = self.began_ns
        if not self.first.busy_since_ns:
            latest = self.first.at_ns
            earliest = latest if self.before is None else self.before.at_ns
        is_certain = voluntary == 0 and (
            (verdict in (Verdict.BLOCKED, Verdict.UNINTERRUPTIBLE) and self.one_wait)
            or (verdict is Verdict.BUSY and not self.wait_polls and used.ran > 0)
        )
        is_certain = is_certain or verdict in (Verdict.STOPPED, Verdict.IDLE)
        evidence: dict[str, int | float | str | bool | None] = {
            "polls": self.polls,
            "polls_running": self.running_polls,
            "polls_waiting": self.wait_polls,
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            "run_ns": used.ran,
            "delay_ns": used.queued,
            "idle_seen": self.idle_seen,
        }
        times = {
            "stopped_ns": self.stopped_ns,
            "slept_ns": self.slept_ns,
            "late_ns": self.late_ns,
            "capture_ns": self.capture_ns,
        }
        evidence |= {name: value for name, value in times.items() if value}
        call = self.call if verdict in (Verdict.BLOCKED, Verdict.UNINTERRUPTIBLE) else None
        if call is not None and call.number != UNKNOWN_CALL:
            evidence["system_call"] = call.number
        until = poll.at_ns if ended is None else ended.best_ns - boot
        return Absence(
            began=TimeRange(earliest + boot, latest + boot, self.began_ns + boot),
            seen_ns=self.seen_ns or poll.boot_ns,
            verdict=verdict,
            certainty=VerdictCertainty.CERTAIN if is_certain else VerdictCertainty.LIKELY,
            duration_ns=max(0, self.counted_ns(until)),
            evidence=evidence,
            rules=self._all_rules(poll),
            ended=ended,
            call=call,
        )

    def _all_rules(self, poll: ThreadPoll) -> tuple[AppliedRule, ...]:
        if self.is_nested or self.nested_ns >= _NESTED_SHARE * max(1, self.counted_ns(poll.at_ns)):
            again = " again and again" if self.has_repeated else ""
            self.apply(
                "nested-loop",
                f"a loop within a task waits for events{again}, as that of a modal dialog does",
            )
        if self.capture_ns >= _MIN_CAPTURE_NS:
            milliseconds = self.capture_ns / 1e6
            self.apply(
                "capture-time",
                f"this watcher stopped it for {milliseconds:.1f} ms, which do not count",
            )
        if self.same_samples >= _REPEATED:
            self.apply(
                "same-stack",
                f"{self.same_samples} of {self.samples} samples had the stack of the one before: "
                "one report, and fewer samples",
            )
        return tuple(self.rules.values())


def grown(before: int | None, after: int | None) -> int | None:
    """Return the difference of two counts; None if one is unknown."""
    return None if before is None or after is None else after - before


def is_stopped(poll: ThreadPoll) -> bool:
    """Whether a signal, a tracer or a frozen control group stops the thread."""
    return poll.is_frozen or poll.state in _STOPPED


def _may_be_one_wait(last: ThreadPoll, poll: ThreadPoll) -> bool:
    """Whether nothing shows that the thread left a wait between two polls."""
    if poll.switches is None and last.switches is None:
        return poll.call is not None and poll.call == last.call
    return is_one_wait(last, poll)


def is_one_wait(last: ThreadPoll, poll: ThreadPoll) -> bool:
    """Whether the thread provably did not run between two polls."""
    return (
        poll.call is not None
        and poll.call == last.call
        and poll.switches is not None
        and poll.switches == last.switches
    )
