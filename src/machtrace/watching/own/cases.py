"""Incidents of the watching process itself, from what its watchdog recorded.

The watchdog decides only when to copy threads. Here its events, polls and captures become cases,
and these incidents: in the process while it runs, or from the record of one that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from machtrace.frozen import dataclass
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import (
    GIL,
    Culprit,
    IncidentKind,
    LockOwner,
    TimedStack,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.polls import CallPlace, ThreadPoll
from machtrace.model.symbol import CallStack
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogCause,
    WatchdogEvent,
    WatchdogItem,
    WatchdogPhase,
)
from machtrace.watching.hangs.absences import Absence
from machtrace.watching.hangs.classifier import Ended, HangClassifier, LearnWait, Seen
from machtrace.watching.hangs.representative import path_of, representative
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.tasks import TaskCallers, judge, timed_stacks
from machtrace.watching.hangs.wait_roles import role_of
from machtrace.watching.naming import Namer, RawCopy

_ITEMS_AT_ONCE = 256
_MAX_CASES = 1024
"""More than the watchdog suspects at once; a damaged record may have more."""
_MAX_CAPTURES = 64
"""The same of the captures of one incident."""

NumberedPoll = tuple[int, int, ThreadPoll]
"""Number, thread and poll."""


class CaseSource(Protocol):
    """Where the facts of cases come from."""

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        """Return the threads of a capture, to be unwound."""

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        """Yield the recorded polls from this number on."""

    def thread(self, thread: int) -> WatchedThread:
        """Describe a thread."""

    def is_watcher(self, thread: int) -> bool:
        """Whether a thread is one of the watcher's own."""


@dataclass(slots=True)
class Case:
    """Something that the watchdog suspected."""

    event: WatchdogEvent
    """The latest one."""
    next_poll: int
    boot_offset: int
    """``CLOCK_BOOTTIME`` less ``CLOCK_MONOTONIC`` at its beginning."""
    classifier: HangClassifier | None = None
    """None if the thread is not polled."""
    seen: WatchdogEvent | None = None
    ended: WatchdogEvent | None = None
    captures: list[WatchdogCapture] = field(default_factory=list)
    absence: Absence | None = None
    """The decision, once there is one."""
    pending: list[CallPlace] = field(default_factory=list)
    """Waits that no capture has shown yet."""
    gil: Case | None = None
    """The case of the lock that the thread holds or waits for."""
    hang: Case | None = None
    """The case that has it as :attr:`gil` and reports both, unless that turns out to be no hang."""
    last: ThreadPoll | None = None
    stacks: list[tuple[int, CallStack]] = field(default_factory=list)
    """Named stacks of the thread and their times (``CLOCK_BOOTTIME``)."""
    named: int = 0
    """The number of captures that were named."""
    facts: dict[str, str] = field(default_factory=dict)
    """Further evidence."""
    reported: tuple[Verdict | None, bool] | None = None
    """The verdict that was reported last, and whether that was the end."""

    @property
    def is_waiting(self) -> bool:
        """Whether most copies of the thread found it waiting in the kernel."""
        rows = [
            row
            for capture in self.captures
            for row in capture.recorded.threads
            if row[0] == self.event.thread and not row[1]
        ]
        waiting = sum(len(row[4]) == _WAITING_SIZE for row in rows)
        return waiting * 2 > len(rows)


_WAITING_SIZE = 16
"""Bytes of the registers of a thread that was copied while it waited."""


class Cases:
    """Follows cases; see the module.

    Args:
        source: of their facts.
        namer: unwinds and names copies.
        arch: of the process.
        interval_ns: from poll to poll.
        on_idle: called with a thread and the places where it is idle, when they changed.
    """

    def __init__(
        self,
        source: CaseSource,
        namer: Namer,
        arch: Arch,
        interval_ns: int,
        on_idle: Callable[[int, Sequence[CallPlace]], None] = lambda _thread, _places: None,
    ) -> None:
        self._source = source
        self._namer = namer
        self._arch = arch
        self._interval_ns = interval_ns
        self._on_idle = on_idle
        self._cases: dict[int, Case] = {}
        self._waits: dict[int, RootWaits] = {}
        self._places: dict[int, list[CallPlace]] = {}
        self._callers: dict[int, TaskCallers] = {}

    @property
    def states(self) -> Mapping[int, str | None]:
        """The states of the threads of cases that last; see :attr:`HangClassifier.state`."""
        return {
            case.event.thread: case.classifier.state
            for case in self._cases.values()
            if case.classifier is not None and case.ended is None
        }

    def take(self, items: Iterable[WatchdogItem]) -> list[Case]:
        """Take new records; return the cases with news that are incidents."""
        changed: dict[int, Case] = {}
        rest = iter(items)
        while some := [*islice(rest, _ITEMS_AT_ONCE)]:
            self._take(some, changed)
        self._take((), changed)
        return [case for case in changed.values() if self._is_incident(case)]

    def _take(self, items: Iterable[WatchdogItem], changed: dict[int, Case]) -> None:
        for item in items:
            if isinstance(item, WatchdogEvent):
                case = self._follow(item)
                if case.seen is not None:
                    changed[item.incident] = case
            else:
                known = self._cases.get(item.incident)
                if known is not None and len(known.captures) < _MAX_CAPTURES:
                    known.captures.append(item)
        for number, case in [*self._cases.items()]:
            if self._classify(case):
                changed[number] = case
            hang = case.hang
            if case.ended is not None and (hang is None or hang.ended is not None):
                if hang is not None:
                    changed[number] = case  # to be reported if the hang is not
                del self._cases[number]

    def suspected(self) -> list[Case]:
        """Return the cases that last, whose limits were not exceeded yet."""
        cases = [case for case in self._cases.values() if case.seen is None]
        for case in cases:
            if case.classifier is None or case.last is None:
                continue
            for event in case.classifier.end(case.last):
                if isinstance(event, Ended):
                    case.absence = replace(event.absence, ended=None)
        return [case for case in cases if case.absence is not None or case.classifier is None]

    def _follow(self, event: WatchdogEvent) -> Case:
        case = self._cases.get(event.incident)
        if case is None:
            if len(self._cases) >= _MAX_CASES:
                del self._cases[next(iter(self._cases))]
            case = self._cases[event.incident] = self._begun(event)
        case.event = event
        if event.phase is WatchdogPhase.SEEN:
            case.seen = case.seen or event  # one that lasts is recorded again
            self._fold(case)
        elif event.phase is WatchdogPhase.ENDED:
            case.ended = event
        return case

    def _begun(self, event: WatchdogEvent) -> Case:
        classifier = None
        first = event.first_poll
        if event.cause is WatchdogCause.THREAD:
            waits = self._waits.setdefault(event.thread, RootWaits(self._arch))
            classifier = HangClassifier(event.limit_ns, self._interval_ns, waits)
            first = max(1, first - 2 * (1 + len(self._waits)))  # with the last idle poll
        return Case(event, first, event.boot_ns - event.at_ns, classifier)

    def _fold(self, case: Case) -> None:
        """Join the cases of the lock and of the threads that hold it or wait for it."""
        for other in self._cases.values():
            if other.ended is not None or other.event.cause is case.event.cause:
                continue
            if case.event.cause is WatchdogCause.GIL and other.event.cause is WatchdogCause.THREAD:
                lock, hang = case, other
            elif case.event.cause is WatchdogCause.THREAD and other.seen is not None:
                lock, hang = other, case
            else:
                continue
            if lock.event.cause is WatchdogCause.GIL and hang.event.thread in (
                lock.event.thread,
                lock.event.waiter,
            ):
                hang.gil = lock
                # What is reported already is reported once.
                lock.hang = hang if hang.seen is not None and lock.reported is None else None

    def _is_incident(self, case: Case) -> bool:
        """Whether there is something to report that was not reported yet."""
        if case.event.cause is WatchdogCause.THREAD:
            if case.absence is None:
                return False
            verdict: Verdict | None = case.absence.verdict
            is_over = case.absence.ended is not None
        else:
            hang = case.hang
            if case.seen is None or (hang and (hang.ended is None or hang.absence is not None)):
                return False
            if self._source.is_watcher(case.event.thread):
                return False  # it names incidents with the lock: nothing that the program did
            verdict, is_over = None, case.ended is not None
        state = verdict, is_over
        before, case.reported = case.reported, state
        return before != state and not (before is not None and before[1])

    # --- polls ---

    def _classify(self, case: Case) -> bool:
        """Feed new polls to the case's classifier; whether there is a decision."""
        classifier = case.classifier
        if classifier is None:
            return False
        until = case.ended.poll if case.ended is not None else None
        before = case.absence
        self._learn(case)
        for number, thread, poll in self._source.polls(case.next_poll):
            if until is not None and number > until:
                break
            case.next_poll = number + 1
            if thread != case.event.thread:
                continue
            if _is_other_task(case, poll):
                continue
            case.last = poll
            self._handle(case, classifier.add(poll))
            self._learn(case)
        if case.ended is not None and case.last is not None:
            for place in case.pending:  # no copy shows it, so the thread did not stay there
                self._handle(case, classifier.learnt(place, None))
            if case.pending:
                self._handle(case, classifier.add(case.last))
            last = case.last._replace(at_ns=case.ended.at_ns, boot_ns=case.ended.boot_ns)
            self._handle(case, classifier.end(last))
        return case.absence is not before

    def _handle(self, case: Case, events: Sequence[object]) -> None:
        for event in events:
            if isinstance(event, LearnWait):
                case.pending.append(event.place)
            elif isinstance(event, Seen) or (isinstance(event, Ended) and event.was_seen):
                case.absence = event.absence

    def _learn(self, case: Case) -> None:
        """Look up waits that captures show."""
        classifier, thread = case.classifier, case.event.thread
        if classifier is None:
            return
        for place in [*case.pending]:
            stack = self._stack_at(case, place)
            if stack is None:
                continue
            case.pending.remove(place)
            places = self._places.setdefault(thread, [])
            places.append(place)
            wait = role_of(stack)
            callers = self._callers.setdefault(thread, TaskCallers())
            absence = 0 if wait.role.is_idle else case.event.incident
            callers.add_wait(place, path_of(stack), absence)
            self._handle(case, classifier.learnt(place, wait))
            waits = self._waits[thread]
            idle = [each for each in places if waits.is_idle(each)]
            callers.set_loop(idle)
            self._on_idle(thread, idle)

    def _stack_at(self, case: Case, place: CallPlace) -> CallStack | None:
        for capture in case.captures:
            copy: RawCopy | None = None
            for row in capture.recorded.threads:
                if row[0] != case.event.thread or len(row[4]) != _WAITING_SIZE:
                    continue
                if row[4] == place.sp.to_bytes(8, "little") + place.pc.to_bytes(8, "little"):
                    copy = self._source.copy_of(capture)
            if copy is not None:
                stacks = self._namer.stacks(copy, lines=False)
                return next(
                    (stack for stack in stacks if stack.thread.id == case.event.thread), None
                )
        return None

    # --- incidents ---

    def name(self, case: Case) -> None:
        """Unwind and name the captures that came since, of the thread of the case."""
        offset = case.boot_offset
        for capture in case.captures[case.named :]:
            if capture.is_late or (capture.is_all and case.named):
                continue
            for stack in self._namer.stacks(self._source.copy_of(capture)):
                if stack.thread.id == case.event.thread:
                    case.stacks.append((capture.recorded.began_ns + offset, stack))
        case.named = len(case.captures)

    def incident(self, case: Case, *, number: str, pid: int) -> WatchIncident:
        """Return the incident of a case.

        Args:
            case: named.
            number: the incident's id.
            pid: the process.
        """
        offset = case.boot_offset
        absence = case.absence or _absence(case)
        stacks = timed_stacks(case.stacks, absence)
        callers = self._callers.setdefault(case.event.thread, TaskCallers())
        limit_ns = case.event.limit_ns
        judged = judge(callers, case.event.incident, absence, stacks, limit_ns)
        culprit = None if judged.chosen is None else judged.chosen.culprit
        waits_for = None
        evidence = {**absence.evidence, **case.facts}
        lock = case if case.event.cause is WatchdogCause.GIL else case.gil
        if lock is not None:
            evidence |= _lock_evidence(lock)
        if case.gil is not None and case.gil.event.thread != case.event.thread:
            owner = LockOwner(pid, case.gil.event.thread, recorded=True)
            waits_for = WaitsFor(GIL, owner=owner)
            culprit = self._holder(case.gil, offset) or culprit
        everything = [capture for capture in case.captures if capture.is_all][:1]
        copies = [self._source.copy_of(each) for each in everything]
        label = f" {case.event.label}" if case.event.label else ""
        return WatchIncident(
            id=number,
            kind=IncidentKind.HANG,
            certainty=judged.certainty,
            began=absence.began,
            seen_ns=absence.seen_ns,
            ended=absence.ended,
            pid=pid,
            verdict=absence.verdict,
            threshold=f"{limit_ns / 1e6:g}ms{label}",
            thread=self._source.thread(case.event.thread),
            duration_ns=absence.duration_ns,
            evidence=MappingProxyType(evidence),
            culprit=culprit,
            waits_for=waits_for,
            stacks=stacks,
            representative=None if judged.chosen is None else judged.chosen.stack,
            capture=self._namer.capture(copies),
            rules=(*absence.rules, *judged.rules),
            missing=tuple(dict.fromkeys(self._namer.errors)),
        )

    def _holder(self, lock: Case, offset: int) -> Culprit | None:
        self.name(lock)
        timed = [TimedStack(at + offset, 1, stack) for at, stack in lock.stacks]
        chosen = representative(timed)
        return None if chosen is None else chosen.culprit


def _is_other_task(case: Case, poll: ThreadPoll) -> bool:
    """Whether a poll is of another task than that of the case, which is over then."""
    return bool(case.event.key and poll.busy_since_ns and poll.task != case.event.key)


def _lock_evidence(lock: Case) -> dict[str, int | float | str | bool | None]:
    event = lock.event
    return {
        "gil_holder": event.thread,
        "gil_kept_ns": max(0, event.at_ns - event.began_ns),
        "gil_waiters": event.waiters,
        "gil_waiter": event.waiter,
    }


def _absence(case: Case) -> Absence:
    """Return what is known of a scope, or of the lock's holder, which need no polls."""
    event, offset = case.event, case.boot_offset
    seen = case.seen or event
    is_lock = event.cause is WatchdogCause.GIL
    # A lock was taken after the poll before, which is at most a fifth of the limit earlier; a scope
    # states when it began.
    began = TimeRange(event.began_ns + offset, event.began_ns + offset)
    if is_lock:
        began = TimeRange(began.earliest_ns, began.earliest_ns + event.limit_ns // 5)
    ended = None
    if case.ended is not None:
        ended = TimeRange(case.ended.last_ns + offset, case.ended.at_ns + offset)
    until = ended.best_ns if ended is not None else event.boot_ns
    return Absence(
        began=began,
        seen_ns=seen.boot_ns,
        verdict=Verdict.BLOCKED if case.is_waiting else Verdict.BUSY,
        certainty=VerdictCertainty.CERTAIN if is_lock else VerdictCertainty.LIKELY,
        duration_ns=max(0, until - began.best_ns),
        evidence={"scope": event.label} if event.cause is WatchdogCause.SCOPE else {},
        ended=ended,
    )
