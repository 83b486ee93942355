"""The watcher: polls a process, captures stacks while a thread hangs, and yields incidents."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from machtrace.errors import ArgumentError, MachtraceError, TargetGoneError, ThreadGoneError
from machtrace.frozen import dataclass
from machtrace.model.incident import (
    AppliedRule,
    HostLoad,
    IncidentKind,
    SeriesPoint,
    Verdict,
    WaitsFor,
    WatchedThread,
    WatcherCost,
    WatchIncident,
)
from machtrace.model.polls import CallPlace, ThreadPoll
from machtrace.model.snapshot import ThreadId
from machtrace.model.symbol import CallStack
from machtrace.targets.base import ClosedWhenLeft, select_threads
from machtrace.targets.linux.process_polls import host_load
from machtrace.targets.linux.watched import WatchedProcess
from machtrace.watching.absences import Absence
from machtrace.watching.classifier import (
    Ended,
    Event,
    HangClassifier,
    LearnWait,
    Seen,
    TakeSample,
)
from machtrace.watching.conditions import ConditionOver
from machtrace.watching.crash_watch import Crash, CrashWatch, crash_incident
from machtrace.watching.lock_watch import (
    DeadlockEvent,
    DeadlockWatch,
    deadlock_id,
    deadlock_incident,
)
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.representative import path_of
from machtrace.watching.resource_watch import (
    ResourceIncident,
    ResourceSample,
    ResourceWatch,
    resource_incident,
)
from machtrace.watching.root_waits import RootWaits
from machtrace.watching.tasks import TaskCallers, judge, timed_stacks
from machtrace.watching.thresholds import CpuThreshold, MemoryThreshold
from machtrace.watching.wait_roles import NamedWait, role_of

POLL_NS = 20_000_000
FOREVER_NS = 1 << 62
_LEAST_POLL_NS, _MOST_POLL_NS = 1_000_000, 1_000_000_000
_LEAST_HANG_NS = 10_000_000
_THREADS_NS = 1_000_000_000
"""Time between two lists of the threads, and two checks for another program."""
_DAILY_LIMIT = 1000
_DAY_NS = 86_400_000_000_000
_LAUNCH_NS = 5_000_000_000
"""The time in which programs are launched, by default."""
_MOST_LEARNT = 4
"""Lookups of waits that are under way at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The thresholds, and the threads that are watched.

    Raises:
        ArgumentError: a threshold makes no sense.
    """

    hang_ns: int | None = 250_000_000
    """The time away from the loop that is a hang; None to report none."""
    poll_ns: int = POLL_NS
    threads: str | tuple[str, ...] = "main"
    launch_grace_ns: int | None = None
    """The time after the start of the process in which hangs of threads that were never idle are
    not reported; None for some seconds."""
    search: tuple[str, ...] = ()
    lines: bool = True
    daily_limit: int = _DAILY_LIMIT
    deadlocks: bool = True
    """Whether deadlocks are reported."""
    crash: bool | None = None
    """Whether the process is traced for crashes; None if that is possible."""
    cpu: tuple[CpuThreshold, ...] = ()
    memory: tuple[MemoryThreshold, ...] = ()

    def __post_init__(self) -> None:
        if not _LEAST_POLL_NS <= self.poll_ns <= _MOST_POLL_NS:
            raise ArgumentError(
                f"cannot poll every {self.poll_ns / 1e6:g} ms", remedy="pass 1ms to 1s"
            )
        if self.hang_ns is not None and self.hang_ns < max(_LEAST_HANG_NS, 2 * self.poll_ns):
            raise ArgumentError(
                f"a hang of {self.hang_ns / 1e6:g} ms cannot be seen by polls every "
                f"{self.poll_ns / 1e6:g} ms",
                remedy="pass a hang of at least two polls, such as 100ms, or a shorter poll",
            )


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


class _Circumstances(NamedTuple):
    """The facts of an incident that are not about it."""

    cost: WatcherCost
    host: HostLoad
    series: tuple[SeriesPoint, ...]


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


class Watcher(ClosedWhenLeft):
    """Watches a process until it is closed or its time is over.

    Args:
        pid: the process.
        options: what is watched.
        on_incident: called for each incident when it is seen, and when it ended, in the naming
            thread.

    Raises:
        TargetError: the process cannot be watched.
    """

    def __init__(
        self,
        pid: int,
        options: WatchOptions,
        on_incident: Callable[[WatchIncident], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.pid = pid
        self._target = WatchedProcess(pid)
        self._on_incident = on_incident
        self._namer = Namer(options.search, lines=options.lines)
        self._learnt: deque[tuple[_Watched, CallPlace, NamedWait | None]] = deque()
        self._watched: dict[int, _Watched] = {}
        self._incidents: dict[str, WatchIncident] = {}
        self._numbers = count(1)
        self._learning = 0
        self._program = self._target.program_start()
        self._launch_ns = self._launch_end(self._target.started_ns())
        self._name_of_process = self._target.thread_info(pid).name
        self._next_list_ns = 0
        self._polls = self._late_polls = self._latest_ns = 0
        self._stops = self._stopped_ns = 0
        self._cpu_ns = time.process_time_ns()
        self._began_ns = time.monotonic_ns()
        self._seen_today: deque[int] = deque()
        self.has_ended = False
        """Whether the process exited."""
        self._locks = DeadlockWatch(pid)
        self._resources = self._watch_resources()
        polls = self._target.process_polls()
        self._crashes = CrashWatch(pid, polls, is_wanted=options.crash)
        self._choose_threads()

    @property
    def incidents(self) -> tuple[WatchIncident, ...]:
        """All incidents so far, as they were reported last."""
        return tuple(self._incidents.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        return (*self._target.polls.missing, *self._locks.missing, *self._crashes.missing)

    @property
    def wait_status(self) -> int | None:
        """The process's wait status, if it has ended and its end was seen."""
        return self._crashes.status

    @property
    def has_failed(self) -> bool:
        """Whether naming or reporting failed unexpectedly."""
        return self._namer.failure is not None

    @property
    def series(self) -> tuple[SeriesPoint, ...]:
        """The process in the last minute, a point for each second."""
        return self._resources.series

    @property
    def states(self) -> dict[WatchedThread, str | None]:
        """The state of each watched thread; see :attr:`HangClassifier.state`."""
        return {each.thread: each.classifier.state for each in self._watched.values()}

    @property
    def cost(self) -> WatcherCost:
        """The cost so far."""
        return WatcherCost(
            polls=self._polls,
            late_polls=self._late_polls,
            latest_ns=self._latest_ns,
            cpu_ns=time.process_time_ns() - self._cpu_ns,
            stops=self._stops,
            stopped_ns=self._stopped_ns,
        )

    def begin(self) -> None:
        """Attach what the watching thread has to attach; :meth:`run` does it otherwise.

        Raises:
            TargetError: crashes were requested, and the process cannot be traced.
        """
        self._crashes.begin()

    def run(
        self,
        duration_ns: int,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Watch until the time is over, the process exits or ``should_stop`` returns True.

        Raises:
            TargetError: as :meth:`begin`.
        """
        self.begin()
        try:
            self._run(duration_ns, should_stop, on_tick)
        finally:
            self._crashes.close()

    def _run(
        self, duration_ns: int, should_stop: Callable[[], bool], on_tick: Callable[[], None]
    ) -> None:
        due = time.monotonic_ns()
        tick, end = due, due + duration_ns
        while not should_stop():
            now = time.monotonic_ns()
            if now >= end:
                break
            try:
                self._report_crash(self._crashes.poll())
                if now < due:
                    self._crashes.sleep(min(due - now, end - now))
                    continue
                late = now - due
                self._tick(late)
            except TargetGoneError:
                self.has_ended = True
                break
            if now >= tick:
                tick += self.options.poll_ns * max(1, -(-(now - tick + 1) // self.options.poll_ns))
                on_tick()
            due = min([tick, *self._decisions()])
        self._finish()

    def wake(self) -> None:
        """Let :meth:`run` check whether it should stop: it does at each poll."""

    def close(self) -> None:
        """Finish the incidents and close everything; a second call does nothing."""
        self._namer.close()
        self._crashes.close()
        self._locks.close()
        self._resources.close()
        self._target.close()
        if self._namer.failure is not None:
            raise self._namer.failure

    # --- polls ---

    def _decisions(self) -> list[int]:
        times = (watched.classifier.next_ns for watched in self._watched.values())
        return [self._resources.next_ns, *(at for at in times if at is not None)]

    def _tick(self, late_ns: int) -> None:
        self._polls += 1
        if late_ns >= self.options.poll_ns:
            self._late_polls += 1
        self._latest_ns = max(self._latest_ns, late_ns)
        self._take_learnt()
        if time.monotonic_ns() >= self._next_list_ns:
            self._next_list_ns = time.monotonic_ns() + _THREADS_NS
            self._check_program()
            self._choose_threads()
        for watched in [*self._watched.values()]:
            try:
                poll = self._target.polls.poll(
                    watched.thread.id, with_status=watched.classifier.wants_status
                )
            except ThreadGoneError:
                self._forget(watched)
                continue
            if poll.tracer and poll.tracer == self._crashes.tracer_id:
                poll = poll._replace(tracer=0)
            watched.last = poll = poll._replace(late_ns=late_ns)
            self._handle(watched, watched.classifier.add(poll))
        if self.options.deadlocks:
            self._report_deadlocks(self._locks.poll())
        main = self._watched.get(self.pid)
        self._resources.tick(None if main is None else main.classifier.state)

    def _watch_resources(self) -> ResourceWatch:
        return ResourceWatch(
            self._target.process_polls(),
            self.options.cpu,
            self.options.memory,
            new_id=self._new_id,
            copies=self._copies,
            report=self._report_resources,
        )

    def _choose_threads(self) -> None:
        """Watch the chosen threads that exist; a choice that matches none raises the first time."""
        choice = self.options.threads
        if choice == "main":
            wanted = {self.pid}
        else:
            infos = self._target.threads()
            chosen = select_threads(infos, choice) if not self._watched else None
            if not self._watched or choice == "all":
                wanted = {info.id for info in infos} if chosen is None else set(chosen)
            else:
                wanted = set(self._watched)
        for thread in wanted - self._watched.keys():
            info = self._target.thread_info(thread)
            waits = RootWaits(self._target.process.arch)
            classifier = HangClassifier(
                self.options.hang_ns or _DAY_NS * 365,
                self.options.poll_ns,
                waits,
                launch_ns=self._launch_ns,
            )
            watched = self._watched[thread] = _Watched(
                WatchedThread(thread, info.name, info.is_main),
                classifier,
            )
            self._prime(watched)

    def _launch_end(self, started_ns: int) -> int:
        grace = self.options.launch_grace_ns
        return started_ns + (_LAUNCH_NS if grace is None else grace)

    def _prime(self, watched: _Watched) -> None:
        """Look up the wait of a thread before it is watched: mostly it is that of its loop."""
        if self._polls:
            return  # others are watched, and must not wait
        for _ in range(2):  # the second poll has the lookup's result
            poll = self._target.polls.poll(watched.thread.id, with_status=True)
            self._handle(watched, watched.classifier.add(poll))
            self._namer.wait()
            self._take_learnt()

    def _take_learnt(self) -> None:
        while self._learnt:
            watched, place, wait = self._learnt.popleft()
            self._learning -= 1
            self._handle(watched, watched.classifier.learnt(place, wait))

    def _check_program(self) -> None:
        program = self._target.program_start()
        if program and program != self._program:
            self._program = program
            self._launch_ns = self._launch_end(time.monotonic_ns())
            old, self._target = self._target, WatchedProcess(self.pid)
            old.close()
            self._report_deadlocks(self._locks.ended())
            self._locks.close()
            self._locks = DeadlockWatch(self.pid)
            self._resources.end()
            self._resources.close()
            self._resources = self._watch_resources()
            for watched in [*self._watched.values()]:
                self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        self._target.polls.forget(watched.thread.id)
        self._watched.pop(watched.thread.id, None)
        if watched.last is not None:
            self._handle(watched, watched.classifier.end(watched.last))

    def _finish(self) -> None:
        for watched in self._watched.values():
            if watched.incident is not None and self.has_ended and watched.last is not None:
                self._handle(watched, watched.classifier.end(watched.last))
        if self.has_ended:
            self._report_crash(self._crashes.end())
            self._report_deadlocks(self._locks.ended())
            self._resources.end()
        else:
            self._resources.finish()

    # --- events ---

    def _report_resources(self, incident: ResourceIncident) -> None:
        job = partial(
            self._name_resources,
            incident,
            [*incident.samples],
            incident.over,
            self._circumstances(),
        )
        self._namer.submit(job)

    def _report_deadlocks(self, events: Sequence[DeadlockEvent]) -> None:
        for event in events:
            identifier = deadlock_id(self.pid, event.number)
            for blocked in () if event.ended is not None else event.cycle.threads:
                watched = self._watched.get(blocked.thread)
                if watched is not None and watched.incident is not None:
                    rule = AppliedRule("deadlock", f"it has become the deadlock {identifier}")
                    watched.incident.rules += (rule,)
            copies = [] if event.ended is not None else self._copy_all()
            now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            job = partial(self._name_deadlock, event, copies, now_ns, self._circumstances())
            self._namer.submit(job)

    def _report_crash(self, crash: Crash | None) -> None:
        if crash is not None:
            self._namer.submit(partial(self._name_crash, crash, self._circumstances()))

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
        thread = ThreadId(watched.thread.id)
        copy = None
        if self._learning < _MOST_LEARNT:
            copy = RawCopy(*self._target.copy_waiting([thread]))
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
            watched.callers.add(0 if wait.role.is_idle else absence, path_of(stack))
        finally:
            self._learnt.append((watched, place, wait))

    def _sample(self, watched: _Watched, request: TakeSample) -> None:
        if request.number == 0:
            watched.samples = []
        if request.is_same and watched.samples:
            watched.samples.append(_Sample(request.at_ns, None))
            return
        copy = self._copy(watched.thread.id, is_waiting=request.is_waiting)
        if copy is None or not copy.snapshot.threads:
            return
        registers = copy.snapshot.threads[0].registers
        if watched.classifier.waits.is_idle_at(registers.sp, registers.pc):
            return  # it is back
        before = next((each.copy for each in reversed(watched.samples) if each.copy), None)
        watched.samples.append(_Sample(request.at_ns, copy))
        watched.classifier.sampled(is_same=before is not None and _are_equal(before, copy))

    def _copy(self, thread: int, *, is_waiting: bool) -> RawCopy | None:
        """Copy a thread: without a stop if it waits, else with a stop of its own."""
        try:
            if is_waiting:
                copy = RawCopy(*self._target.copy_waiting([thread]))
                if copy.snapshot.threads:
                    return copy
            return self._stopped([ThreadId(thread)])
        except TargetGoneError:
            raise
        except MachtraceError:
            return None

    def _stopped(self, threads: Sequence[ThreadId]) -> RawCopy:
        if self._target.has_python:
            with self._crashes.released():  # all are stopped together
                copy = RawCopy(*self._target.snapshot_with_python(threads))
        else:
            with self._crashes.released(threads):
                copy = RawCopy(self._target.snapshot(threads), {})
        stops = [each.stopped_for_ns for each in copy.snapshot.threads if each.stopped_for_ns]
        self._stops += len(stops)
        for each in copy.snapshot.threads:
            if each.stopped_for_ns and each.info.id in self._watched:
                self._watched[each.info.id].classifier.stopped(1, each.stopped_for_ns)
        self._stopped_ns = max(self._stopped_ns, *stops, 0)
        return copy

    def _see(self, watched: _Watched, absence: Absence) -> None:
        if watched.incident is None:
            if self._is_deadlocked(watched, absence):
                return  # that is the incident
            identifier = self._new_id()
            if not identifier:
                return
            rules = () if len(self._seen_today) < self.options.daily_limit else (_LIMIT_RULE,)
            number = watched.classifier.absences
            watched.incident = _Incident(identifier, watched.samples, number, rules)
        incident = watched.incident
        if absence.verdict.is_hang and not incident.everything:
            incident.everything = self._copy_all()
            if absence.verdict is Verdict.BLOCKED:
                incident.waits_for = self._locks.wait(watched.thread.id)
                incident.rules += self._deadlock_rules(incident.waits_for)
        self._report(watched, incident, absence)

    def _is_deadlocked(self, watched: _Watched, absence: Absence) -> bool:
        """Whether a thread that hangs is part of a deadlock, which is reported if it is new."""
        if not (self.options.deadlocks and absence.verdict.is_hang):
            return False
        if watched.thread.id not in self._locks.threads and not self._target.polls.missing:
            self._report_deadlocks(self._locks.prove())
        return watched.thread.id in self._locks.threads

    def _deadlock_rules(self, wait: WaitsFor | None) -> tuple[AppliedRule, ...]:
        owner = None if wait is None or wait.owner is None else wait.owner.thread
        number = self._locks.threads.get(owner or 0)
        if number is None:
            return ()
        text = f"its owner is part of the deadlock {deadlock_id(self.pid, number)}"
        return (AppliedRule("deadlock", text),)

    def _new_id(self) -> str:
        """Return the identifier of a new incident; empty if too many were reported today."""
        now = time.monotonic_ns()
        while self._seen_today and self._seen_today[0] < now - _DAY_NS:
            self._seen_today.popleft()
        if len(self._seen_today) >= self.options.daily_limit:
            return ""
        self._seen_today.append(now)
        return f"{self.pid}-{next(self._numbers)}"

    def _copy_all(self) -> list[RawCopy]:
        """Copy all threads; see :meth:`_copies`."""
        return self._copies(self._target.thread_ids())

    def _copies(self, ids: Sequence[int]) -> list[RawCopy]:
        """Copy threads: those that wait without a stop, the others with one each."""
        try:
            waiting = RawCopy(*self._target.copy_waiting(ids))
            copied = {thread.info.id for thread in waiting.snapshot.threads}
            rest = [ThreadId(thread) for thread in ids if thread not in copied]
            copies = [waiting, self._stopped(rest)] if rest else [waiting]
            return [copy._replace(snapshot=self._locks.described(copy.snapshot)) for copy in copies]
        except TargetGoneError:
            raise
        except MachtraceError:
            return []

    def _end(self, watched: _Watched, event: Ended) -> None:
        incident, watched.incident = watched.incident, None
        watched.samples = []
        if incident is not None and event.was_seen:
            self._report(watched, incident, event.absence)

    def _report(self, watched: _Watched, incident: _Incident, absence: Absence) -> None:
        samples = [*incident.samples]
        now = self._circumstances()
        self._namer.submit(partial(self._name, watched, incident, absence, samples, now))

    def _circumstances(self) -> _Circumstances:
        return _Circumstances(self.cost, host_load(), self._resources.series)

    # --- in the naming thread ---

    def _name_resources(
        self,
        incident: ResourceIncident,
        samples: Sequence[ResourceSample],
        over: ConditionOver | None,
        now: _Circumstances,
    ) -> None:
        self._publish(resource_incident(incident, samples, over, self._namer, self.pid), now)

    def _name_deadlock(
        self,
        event: DeadlockEvent,
        copies: Sequence[RawCopy],
        taken_ns: int,
        now: _Circumstances,
    ) -> None:
        reported = deadlock_incident(event, self.pid, self._namer.capture(copies), taken_ns)
        before = self._incidents.get(reported.id)
        if before is not None:
            reported = replace(before, ended=event.ended, duration_ns=reported.duration_ns)
        self._publish(replace(reported, missing=self.missing), now)

    def _name_crash(self, crash: Crash, now: _Circumstances) -> None:
        before = self._incidents.get(f"{self.pid}-crash")
        capture = None if before is None else before.capture
        if capture is None and crash.copy is not None:
            capture = self._namer.capture([crash.copy])
        self._publish(crash_incident(crash, self.pid, self._name_of_process, capture), now)

    def _name(
        self,
        watched: _Watched,
        incident: _Incident,
        absence: Absence,
        samples: Sequence[_Sample],
        now: _Circumstances,
    ) -> None:
        named: list[tuple[int, CallStack]] = []
        for sample in samples:
            if sample.stack is None and sample.copy is not None:
                found = self._namer.stacks(sample.copy)
                sample.stack, sample.copy = found[0] if found else None, None
            if sample.stack is None and named:
                sample.stack = named[-1][1]
            if sample.stack is not None:
                named.append((sample.at_ns, sample.stack))
        stacks = timed_stacks(named, absence)
        judged = judge(watched.callers, incident.absence, absence, stacks, self.options.hang_ns)
        reported = WatchIncident(
            id=incident.id,
            kind=IncidentKind.HANG,
            certainty=judged.certainty,
            began=absence.began,
            seen_ns=absence.seen_ns,
            ended=absence.ended,
            pid=self.pid,
            verdict=absence.verdict,
            threshold=f"{(self.options.hang_ns or 0) / 1e6:g}ms",
            thread=watched.thread,
            duration_ns=absence.duration_ns,
            evidence=MappingProxyType(absence.evidence),
            culprit=None if judged.chosen is None else judged.chosen.culprit,
            waits_for=incident.waits_for,
            stacks=stacks,
            representative=None if judged.chosen is None else judged.chosen.stack,
            rules=(*absence.rules, *incident.rules, *judged.rules),
            missing=self.missing,
        )
        if incident.reported is not None and incident.reported.capture is not None:
            reported = replace(reported, capture=incident.reported.capture)
        elif incident.everything:
            reported = replace(reported, capture=self._namer.capture(incident.everything))
        incident.everything = incident.everything[:1]
        incident.reported = reported
        self._publish(reported, now)

    def _publish(self, incident: WatchIncident, now: _Circumstances) -> None:
        incident = replace(
            incident,
            seen_wall_ns=_wall_ns(incident.seen_ns),
            series=now.series,
            host=now.host,
            cost=now.cost,
            missing=(*incident.missing, *self._namer.errors),
        )
        self._incidents[incident.id] = incident
        self._on_incident(incident)


_LIMIT_RULE = AppliedRule("daily-limit", "the last one that is reported today")


def _is_at(copy: RawCopy, place: CallPlace) -> bool:
    registers = copy.snapshot.threads[0].registers
    return (registers.sp, registers.pc) == (place.sp, place.pc)


def _are_equal(before: RawCopy, copy: RawCopy) -> bool:
    """Whether two copies of a thread have the same registers and stack."""
    first, second = before.snapshot.threads[0], copy.snapshot.threads[0]
    if before.python and copy.python:
        return [*before.python.values()] == [*copy.python.values()]
    return first.registers.pc == second.registers.pc and first.stack.data == second.stack.data


def _wall_ns(boot_ns: int) -> int:
    """Convert a recent time of ``CLOCK_BOOTTIME`` to nanoseconds since 1970."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + boot_ns
