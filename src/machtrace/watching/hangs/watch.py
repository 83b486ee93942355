"""Watching threads for hangs: their polls, the samples of those that are away, and incidents."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType

from machtrace.errors import TargetAccessError, TargetSpecError, ThreadGoneError
from machtrace.frozen import dataclass
from machtrace.model.incident.facts import (
    AppliedRule,
    IncidentKind,
    Verdict,
    WaitsFor,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.polls import CallPlace, IdleRequest, IdleWait, ThreadPoll
from machtrace.model.symbol import CallStack
from machtrace.targets.base import ALL_THREADS, select_threads
from machtrace.watching.copies import StackCopies
from machtrace.watching.hangs.absences import Absence, is_stopped
from machtrace.watching.hangs.classifier import (
    Ended,
    Event,
    HangClassifier,
    LearnWait,
    Seen,
    TakeSample,
)
from machtrace.watching.hangs.representative import path_of
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.tasks import TaskCallers, blame_holder, judge, timed_stacks
from machtrace.watching.hangs.wait_roles import NamedWait, role_of
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.target import WatchedTarget
from machtrace.watching.thresholds import WatchOptions

_NEVER_NS = 365 * 86_400_000_000_000
_OWNER_ATTEMPTS, _OWNER_DELAY = 6, 0.001
"""A thread that waits for the interpreter lock wakes every 5 ms."""
_MAX_LEARNT = 4
"""Lookups of waits that are under way at once."""


@dataclass(slots=True)
class _Sample:
    at_ns: int
    copy: RawCopy | None
    """None if the stack is that of the sample before."""
    stack: CallStack | None = None


@dataclass(slots=True)
class _Incident:
    id: str
    samples: list[_Sample]
    absence: int
    """The number of the thread's absence."""
    rules: tuple[AppliedRule, ...] = ()
    """Those of this watcher."""
    everything: list[RawCopy] = field(default_factory=list)
    waits_for: WaitsFor | None = None
    reported: WatchIncident | None = None


class _Watched:
    """A watched thread."""

    def __init__(self, thread: WatchedThread, classifier: HangClassifier) -> None:
        self.thread = thread
        self.classifier = classifier
        self.callers = TaskCallers()
        """The naming thread's."""
        self.samples: list[_Sample] = []
        self.incident: _Incident | None = None
        self.last: ThreadPoll | None = None


class HangWatch:
    """Watches the chosen threads of a target.

    Args:
        target: the target.
        copies: copies its threads.
        namer: names them.
        options: what is watched.
        launch_ns: the end of the program's launch (``CLOCK_MONOTONIC``).
        new_id: returns the identifier of an incident and the rules that applied; no identifier if
            no more are reported today.
        waits_for: returns what a thread waits for, and rules that apply to that.
        is_deadlocked: returns whether a thread that hangs is part of a deadlock, which is an
            incident of its own.
        report: takes a job of the naming thread that returns an incident.

    Raises:
        TargetSpecError: the options choose no thread.
    """

    def __init__(  # noqa: PLR0913 - a callback each
        self,
        target: WatchedTarget,
        copies: StackCopies,
        namer: Namer,
        options: WatchOptions,
        *,
        launch_ns: int,
        new_id: Callable[[], tuple[str, tuple[AppliedRule, ...]]],
        waits_for: Callable[[int], tuple[WaitsFor | None, tuple[AppliedRule, ...]]],
        is_deadlocked: Callable[[int], bool],
        report: Callable[[Callable[[], WatchIncident]], None],
    ) -> None:
        self._target, self._copies, self._namer = target, copies, namer
        self._options, self._launch_ns = options, launch_ns
        self._new_id, self._waits_for, self._report = new_id, waits_for, report
        self._is_deadlocked = is_deadlocked
        self._watched: dict[int, _Watched] = {}
        self._learnt: deque[tuple[_Watched, CallPlace, NamedWait | None]] = deque()
        self._learning = 0
        self._is_new = True
        self._poll_ns = 0
        """When threads may be polled again (``CLOCK_MONOTONIC``)."""

    def begin(self, *, looks_up: bool) -> None:
        """Choose the threads.

        Args:
            looks_up: whether to look up their waits first: mostly these are those of their loops.
                A thread that is stopped is left to :meth:`poll`: it may be that of a program that
                has yet to be started, whose time has not begun.
        """
        self.choose_threads()
        self._is_new = False
        for watched in [*self._watched.values()] if looks_up else ():
            for _ in range(2):  # the second poll has the lookup's result
                poll = self._target.poll_thread(watched.thread.id, with_status=True)
                if is_stopped(poll):
                    break
                self._handle(watched, watched.classifier.add(poll))
                self._namer.wait()
                self._take_learnt()
        if looks_up and self._watched:
            with suppress(TargetAccessError):
                copy = self._copies.waiting([*self._watched][:1])
                # Names and lines are read before the first incident needs them.
                self._namer.submit(partial(self._namer.capture, [copy]))

    @property
    def states(self) -> dict[WatchedThread, str | None]:
        """The state of each watched thread; see :attr:`HangClassifier.state`."""
        return {each.thread: each.classifier.state for each in self._watched.values()}

    @property
    def main_state(self) -> str | None:
        """The main thread's state; None if it is not watched."""
        return next((state for thread, state in self.states.items() if thread.is_main), None)

    @property
    def next_ns(self) -> int | None:
        """The time of the next decision (``CLOCK_MONOTONIC``), which a poll should not miss."""
        times = (watched.classifier.next_ns for watched in self._watched.values())
        first = min((at for at in times if at is not None), default=None)
        return None if first is None else max(first, self._poll_ns)

    def choose_threads(self) -> None:
        """Watch the chosen threads that exist; a choice that matches none raises at first."""
        choice = self._options.threads
        choices = (choice,) if isinstance(choice, str) else choice
        if self._watched and ALL_THREADS not in choices:
            return
        wanted: Sequence[int] | None = None
        if ALL_THREADS not in choices:
            try:
                wanted = select_threads(self._target.threads(), choices)
            except TargetSpecError:
                if self._is_new:
                    raise
                return
        for thread in self._target.thread_ids() if wanted is None else wanted:
            if thread not in self._watched:
                info = self._target.thread_info(thread)
                classifier = HangClassifier(
                    self._options.hang_ns or _NEVER_NS,
                    self._options.poll_ns,
                    RootWaits(self._target.process.arch),
                    launch_ns=self._launch_ns,
                )
                described = WatchedThread(thread, info.name, info.is_main)
                self._watched[thread] = _Watched(described, classifier)

    def poll(self, late_ns: int, stopped: Collection[int] = ()) -> None:
        """Poll all watched threads.

        Args:
            late_ns: the delay of this poll.
            stopped: threads that job control has stopped while this watcher traces them.

        Raises:
            TargetGoneError: the process has exited.
        """
        self._take_learnt()
        now = time.monotonic_ns()
        if now < self._poll_ns:
            return
        self._poll_ns = now + self._target.least_poll_ns
        for watched in [*self._watched.values()]:
            try:
                # A thread that is stopped in its idle wait looks idle without a status.
                with_status = watched.last is None or watched.classifier.wants_status
                poll = self._target.poll_thread(watched.thread.id, with_status=with_status)
            except ThreadGoneError:
                self._forget(watched)
                continue
            if poll.is_own_stop and watched.thread.id in stopped:
                poll = poll._replace(state="T", is_own_stop=False)
            watched.last = poll = poll._replace(late_ns=late_ns)
            self._handle(watched, watched.classifier.add(poll))

    def wait_idle(self, request: IdleRequest) -> IdleWait | None:
        """Wait while all threads are idle; None, at once, if one is not or nothing is watched."""
        idle: dict[int, ThreadPoll] = {}
        for thread, watched in self._watched.items():
            if watched.last is None or watched.last.call is None or not watched.classifier.is_idle:
                return None
            idle[thread] = watched.last
        if not idle or self._learning:
            return None
        waited = self._target.wait_idle(idle, request)
        if waited is None:
            return None
        outcome, polls = waited
        for thread, poll in polls.items():
            watched = self._watched[thread]
            watched.last = poll
            self._handle(watched, watched.classifier.add(poll))
        return outcome

    def stopped(self, thread: int, duration_ns: int) -> None:
        """Take a stop of a thread by this watcher."""
        if thread in self._watched:
            self._watched[thread].classifier.stopped(1, duration_ns)

    def apply(self, thread: int, rule: AppliedRule) -> None:
        """Add a rule to the incident of a thread, if it has one."""
        watched = self._watched.get(thread)
        if watched is not None and watched.incident is not None:
            watched.incident.rules += (rule,)

    def end(self) -> None:
        """End all incidents: the process has exited, or executes another program."""
        for watched in [*self._watched.values()]:
            self._forget(watched)

    def finish(self) -> None:
        """Report the incidents so far that still last: watching ends."""
        for watched in self._watched.values():
            absence = watched.classifier.absence
            if watched.incident is not None and absence is not None:
                self._submit(watched, watched.incident, absence)

    # --- events ---

    def _forget(self, watched: _Watched) -> None:
        self._target.forget(watched.thread.id)
        self._watched.pop(watched.thread.id, None)
        if watched.last is not None:
            self._handle(watched, watched.classifier.end(watched.last))

    def _take_learnt(self) -> None:
        while self._learnt:
            watched, place, wait = self._learnt.popleft()
            self._learning -= 1
            self._handle(watched, watched.classifier.learnt(place, wait))

    def _handle(self, watched: _Watched, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, LearnWait):
                self._learn(watched, event.place)
            elif isinstance(event, TakeSample):
                self._sample(watched, event)
            elif isinstance(event, Seen):
                self._see(watched, event.absence)
            else:
                self._end(watched, event)

    def _learn(self, watched: _Watched, place: CallPlace) -> None:
        copy = None
        if self._learning < _MAX_LEARNT:
            with suppress(TargetAccessError):
                copy = self._copies.waiting([watched.thread.id])
        self._learning += 1
        if copy is None or not copy.snapshot.threads or not _is_at(copy, place):
            self._learnt.append((watched, place, None))
            return
        number = watched.classifier.absences
        self._namer.submit(partial(self._look_up, watched, place, copy, number))

    def _look_up(self, watched: _Watched, place: CallPlace, copy: RawCopy, absence: int) -> None:
        wait = None
        try:
            stack = self._namer.stacks(copy, lines=False)[0]
            wait = role_of(stack)
            # The loop's wait is no part of an absence.
            watched.callers.add_wait(place, path_of(stack), 0 if wait.role.is_idle else absence)
        finally:
            self._learnt.append((watched, place, wait))

    def _sample(self, watched: _Watched, request: TakeSample) -> None:
        if request.number == 0:
            watched.samples = []
        if request.is_same and watched.samples:
            watched.samples.append(_Sample(request.at_ns, None))
            return
        copy = self._copies.one(watched.thread.id, is_waiting=request.is_waiting)
        if copy is None or not copy.snapshot.threads:
            return
        registers = copy.snapshot.threads[0].registers
        if watched.classifier.waits.is_idle_at(registers.sp, registers.pc):
            return  # it is back
        before = next((sample.copy for sample in reversed(watched.samples) if sample.copy), None)
        watched.samples.append(_Sample(request.at_ns, copy))
        watched.classifier.sampled(is_same=before is not None and _are_equal(before, copy))

    def _see(self, watched: _Watched, absence: Absence) -> None:
        if watched.incident is None:
            if _is_hidden(watched.last, absence):
                return
            if absence.verdict.is_hang and self._is_deadlocked(watched.thread.id):
                return
            identifier, rules = self._new_id()
            if not identifier:
                return
            number = watched.classifier.absences
            watched.incident = _Incident(identifier, watched.samples, number, rules)
        incident = watched.incident
        if absence.verdict.is_hang and not incident.everything:
            if absence.verdict is Verdict.BLOCKED:
                # Copies may interrupt the wait.
                self._find_owner(watched, incident, wakes=not absence.is_certain)
            incident.everything = self._copies.all()
        self._submit(watched, incident, absence)

    def _find_owner(self, watched: _Watched, incident: _Incident, *, wakes: bool) -> None:
        for _ in range(_OWNER_ATTEMPTS):
            incident.waits_for, rules = self._waits_for(watched.thread.id)
            if incident.waits_for is not None or not (wakes and self._target.has_python):
                break
            time.sleep(_OWNER_DELAY)
        incident.rules += rules

    def _end(self, watched: _Watched, event: Ended) -> None:
        incident, watched.incident = watched.incident, None
        watched.samples = []
        if incident is not None and event.was_seen:
            self._submit(watched, incident, event.absence)

    def _submit(self, watched: _Watched, incident: _Incident, absence: Absence) -> None:
        waits = watched.classifier.waits
        idle = [place for place in [*watched.callers.waits] if waits.is_idle(place)]
        self._report(partial(self._name, watched, incident, absence, [*incident.samples], idle))

    # --- in the naming thread ---

    def _name(
        self,
        watched: _Watched,
        incident: _Incident,
        absence: Absence,
        samples: Sequence[_Sample],
        idle: Sequence[CallPlace],
    ) -> WatchIncident:
        watched.callers.set_loop(idle)
        named: list[tuple[int, CallStack]] = []
        for sample in samples:
            if sample.stack is None and sample.copy is not None:
                found = self._namer.stacks(sample.copy)
                sample.stack, sample.copy = found[0] if found else None, None
            if sample.stack is None and named:
                sample.stack = named[-1][1]
            if sample.stack is not None:
                named.append((sample.at_ns, sample.stack))
        hang_ns = self._options.hang_ns
        stacks = timed_stacks(named, absence)
        judged = judge(watched.callers, incident.absence, absence, stacks, hang_ns)
        reported = WatchIncident(
            id=incident.id,
            kind=IncidentKind.HANG,
            certainty=judged.certainty,
            began=absence.began,
            seen_ns=absence.seen_ns,
            ended=absence.ended,
            pid=self._target.process.pid,
            verdict=absence.verdict,
            threshold=f"{(hang_ns or 0) / 1e6:g}ms",
            thread=watched.thread,
            duration_ns=absence.duration_ns,
            evidence=MappingProxyType(absence.evidence),
            culprit=None if judged.chosen is None else judged.chosen.culprit,
            waits_for=incident.waits_for,
            stacks=stacks,
            representative=None if judged.chosen is None else judged.chosen.stack,
            rules=(*absence.rules, *incident.rules, *judged.rules),
        )
        if incident.reported is not None and incident.reported.capture is not None:
            reported = replace(reported, capture=incident.reported.capture)
        elif incident.everything:
            reported = replace(reported, capture=self._namer.capture(incident.everything))
            incident.everything = incident.everything[:1]
        incident.reported = reported = blame_holder(reported)
        return reported


def _is_hidden(poll: ThreadPoll | None, absence: Absence) -> bool:
    """Whether a thread waits for something unknown, and not for a processor."""
    if poll is None or poll.is_running or poll.call is not None:
        return False
    queued = absence.evidence.get("delay_ns") or 0
    return absence.verdict is Verdict.STARVED and 2 * int(queued) < absence.duration_ns


def _is_at(copy: RawCopy, place: CallPlace) -> bool:
    registers = copy.snapshot.threads[0].registers
    return (registers.sp, registers.pc) == (place.sp, place.pc)


def _are_equal(before: RawCopy, copy: RawCopy) -> bool:
    """Whether two copies of a thread have the same registers and stack."""
    first, second = before.snapshot.threads[0], copy.snapshot.threads[0]
    if before.python and copy.python:
        return [*before.python.values()] == [*copy.python.values()]
    return first.registers.pc == second.registers.pc and first.stack.data == second.stack.data
