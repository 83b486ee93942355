"""The watcher: drives a target by the clock, and publishes incidents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from machtrace.clocks import boot_ns, process_time_ns
from machtrace.errors import TargetGoneError
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.incident.facts import (
    STILL_OPEN,
    AppliedRule,
    HostLoad,
    IncidentKind,
    SeriesPoint,
    WaitsFor,
    WatchedThread,
    WatcherCost,
    WatchIncident,
)
from machtrace.model.polls import IdleRequest
from machtrace.model.snapshot import Snapshot
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.linux.process_polls import ProcessEnd, host_load
from machtrace.watching.copies import StackCopies
from machtrace.watching.crash_watch import Crash, CrashWatch, StubCrashes, crash_incident
from machtrace.watching.hangs.watch import HangWatch
from machtrace.watching.incidents import IncidentIds, Incidents
from machtrace.watching.locks.watch import (
    DeadlockEvent,
    DeadlockWatch,
    deadlock_id,
    deadlock_incident,
)
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.resources.watch import ResourceIncident, ResourceWatch, resource_incident
from machtrace.watching.target import can_trace, interrupts, open_watched
from machtrace.watching.thresholds import WatchOptions

FOREVER_NS = 1 << 62
_CHECK_NS = 900_000_000
"""Time between two lists of the threads, and two checks for another program."""
_UNUSED_NS = 4_000_000_000
"""Time by which polls of a process that uses no processor time are postponed."""
_MAX_CPU_NS = 1_000_000
"""Processor time of a process after which its memory and its locks may be others."""
_LAUNCH_NS = 5_000_000_000
"""The time in which programs are launched, by default."""


class _Circumstances(NamedTuple):
    """The facts of an incident that are not about it."""

    cost: WatcherCost
    host: HostLoad | None
    series: tuple[SeriesPoint, ...]
    missing: tuple[str, ...]
    capture: Capture
    """The process, without threads."""


class Watcher(ClosedWhenLeft):
    """Watches a process until it is closed or its time is over.

    Args:
        spec: the process; see :func:`~machtrace.watching.target.open_watched`.
        options: what is watched.
        on_incident: called for each incident when it is seen, and when it ended, in the naming
            thread.

    Raises:
        TargetError: the process cannot be watched.
    """

    def __init__(
        self,
        spec: int | str,
        options: WatchOptions,
        on_incident: Callable[[WatchIncident], None] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._target = open_watched(spec, options)
        least_ns = self._target.least_poll_ns
        if options.hang_ns is not None and options.poll_ns < least_ns:
            try:
                options = replace(options, poll_ns=least_ns)
            except BaseException:
                self._target.close()
                raise
        self.options = options
        self.pid = self._target.process.pid or 0
        self._on_incident = on_incident
        self._namer = Namer(options.search, lines=options.lines)
        self._crashes = self._watch_crashes()
        self._copies = StackCopies(self._target, self._described, self._stopped, self._crashes)
        self._incidents = Incidents()
        self._ids = IncidentIds(self.pid, options.daily_limit)
        self._name = next(
            (thread.name for thread in self._target.threads() if thread.is_main), None
        )
        self._program = self._target.program_start()
        self._check_ns = 0
        self._polls = self._late_polls = self._latest_ns = 0
        self._cpu_ns = time.process_time_ns()
        self.has_ended = False
        """Whether the process exited."""
        self._locks = self._watch_locks()
        self._resources = self._watch_resources()
        self._hangs = self._watch_hangs(self._target.started_ns())
        self._hangs.begin(looks_up=True)

    @property
    def incidents(self) -> tuple[WatchIncident, ...]:
        """All incidents so far, as they were reported last; of old ones without stacks."""
        return self._incidents.all

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        locks = () if self._locks is None else self._locks.missing
        return (*self._target.missing, *locks)

    @property
    def wait_status(self) -> int | None:
        """The process's wait status, if it has ended; None if that is unknown.

        It is known of a process that was traced for crashes, of a child of this process, of one
        that its parent has not waited for, and of every process since Linux 6.15.
        """
        return self._crashes.status

    @property
    def killed_for_memory(self) -> bool:
        """Whether the process has ended, and the kernel killed it, or one beside it, for memory."""
        return self._crashes.killed_for_memory

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
        return self._hangs.states

    @property
    def cost(self) -> WatcherCost:
        """The cost so far."""
        return WatcherCost(
            polls=self._polls,
            late_polls=self._late_polls,
            latest_ns=self._latest_ns,
            cpu_ns=time.process_time_ns() - self._cpu_ns,
            stops=self._copies.stops,
            stopped_ns=self._copies.longest_ns,
        )

    def begin(self) -> None:
        """Attach what the watching thread has to attach; :meth:`run` does it otherwise.

        Raises:
            TargetError: crashes were requested, and the process cannot be traced; or deadlocks
                alone, and its locks cannot be read.
        """
        self._crashes.begin()
        locks = self._locks
        if self.options.has_only_deadlocks and locks is not None:
            self._report_deadlocks(locks.poll())
            if locks.refusal is not None:
                raise locks.refusal

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
                    idle = self._wait_idle(due, end)
                    if idle is None:
                        self._crashes.sleep(min(due - now, end - now))
                    else:
                        tick = due = idle
                    continue
                self._tick(now - due)
            except TargetGoneError:
                self.has_ended = True
                break
            if now >= tick:
                tick += self.options.poll_ns * max(1, -(-(now - tick + 1) // self.options.poll_ns))
                on_tick()
            due = min(tick, self._resources.next_ns, self._hangs.next_ns or tick)
        self._finish()

    def wake(self) -> None:
        """Let :meth:`run` check whether it should stop; for other threads."""
        self._target.wake()

    def close(self) -> None:
        """Finish the incidents and close everything; a second call does nothing."""
        self._namer.close()
        self._crashes.close()
        if self._locks is not None:
            self._locks.close()
        self._resources.close()
        self._target.close()
        if self._namer.failure is not None:
            raise self._namer.failure

    # --- polls ---

    def _tick(self, late_ns: int) -> None:
        self._polls += 1
        if late_ns >= self.options.poll_ns:
            self._late_polls += 1
        self._latest_ns = max(self._latest_ns, late_ns)
        if time.monotonic_ns() >= self._check_ns:
            self._check_ns = time.monotonic_ns() + _CHECK_NS
            self._check_program()
            self._hangs.choose_threads()
        self._hangs.poll(late_ns, self._crashes.stopped)
        if self.options.deadlocks and self._locks is not None:
            self._report_deadlocks(self._locks.poll())
        self._resources.tick(self._hangs.main_state)

    def _wait_idle(self, due_ns: int, end_ns: int) -> int | None:
        """Wait while all threads are idle; return when the next poll is due, or None at once."""
        last, resources = self._resources.last, self._resources
        if last is None or last.cpu_ns is None:
            return None
        cpu_ns, most_cpu_ns = process_time_ns(self.pid), _MAX_CPU_NS
        if cpu_ns is None:
            return None
        # A process that uses no processor time executes no other program, and starts no thread.
        has_run = cpu_ns - last.cpu_ns > _MAX_CPU_NS
        check = resources.next_ns if has_run else resources.next_needed_ns
        until = check if has_run or resources.is_needed else check + _UNUSED_NS
        locks = self._locks if self.options.deadlocks else None
        if locks is not None:
            if locks.is_suspicious:
                return None
            if locks.has_run(cpu_ns):
                until = min(until, locks.due_ns)
            elif locks.due_ns <= due_ns:
                most_cpu_ns = 0
            check = min(check, locks.due_ns)
        until = min(end_ns, until)
        if until <= due_ns:
            return None
        idle = self._hangs.wait_idle(
            IdleRequest(
                self.options.idle_poll_ns,
                due_ns,
                check,
                until,
                cpu_ns,
                most_cpu_ns,
                bool(self._crashes.tracer_id),
            )
        )
        if idle is None:
            return None
        self._polls += idle.polls
        self._late_polls += idle.late_polls
        self._latest_ns = max(self._latest_ns, idle.latest_ns)
        return min(idle.due_ns, until)

    def _watch_crashes(self) -> CrashWatch | StubCrashes:
        if interrupts(self._spec):
            from machtrace.targets.gdbremote.watched import WatchedStub

            if isinstance(self._target, WatchedStub):
                return StubCrashes(self._target, is_wanted=self.options.crash)
        is_local = can_trace(self._spec)
        return CrashWatch(
            self.pid,
            self._target.process_polls(),
            end=ProcessEnd(self.pid) if is_local else None,
            is_wanted=is_local and bool(self.options.crash),
        )

    def _watch_locks(self) -> DeadlockWatch | None:
        source = self._target.locks()
        return None if source is None else DeadlockWatch(self.pid, source)

    def _watch_resources(self) -> ResourceWatch:
        return ResourceWatch(
            self._target.process_polls(),
            self.options.cpu,
            self.options.memory,
            new_id=lambda: self._ids.new()[0],
            copies=self._copies.several,
            copy_all=self._copies.all,
            report=self._report_resources,
        )

    def _watch_hangs(self, started_ns: int) -> HangWatch:
        grace = self.options.launch_grace_ns
        return HangWatch(
            self._target,
            self._copies,
            self._namer,
            self.options,
            launch_ns=started_ns + (_LAUNCH_NS if grace is None else grace),
            new_id=self._ids.new,
            waits_for=self._waits_for,
            is_deadlocked=self._is_deadlocked,
            report=self._report,
        )

    def _check_program(self) -> None:
        """Watch the program that the process executes now, if that is another one."""
        program = self._target.program_start()
        if not program or program == self._program:
            return
        self._program = program
        self._end_parts()
        if self._locks is not None:
            self._locks.close()
        self._resources.close()
        self._target.close()
        self._target = self._copies.target = open_watched(self._spec, self.options)
        self._locks = self._watch_locks()
        self._resources = self._watch_resources()
        self._hangs = self._watch_hangs(time.monotonic_ns())
        self._hangs.begin(looks_up=False)

    def _end_parts(self) -> None:
        self._hangs.end()
        if self._locks is not None:
            self._report_deadlocks(self._locks.ended())
        self._resources.end()

    def _finish(self) -> None:
        if self.has_ended:
            self._report_crash(self._crashes.end())
            self._end_parts()
        else:
            self._hangs.finish()
            self._resources.finish()
            now_ns, facts = boot_ns(), self._circumstances()
            self._namer.submit(lambda: self._publish_open(now_ns, facts))

    # --- for the parts ---

    def _described(self, snapshot: Snapshot) -> Snapshot:
        return snapshot if self._locks is None else self._locks.described(snapshot)

    def _waits_for(self, thread: int) -> tuple[WaitsFor | None, tuple[AppliedRule, ...]]:
        """Return what a thread waits for, and the rule that its owner is deadlocked."""
        if self._locks is None:
            return None, ()
        wait = self._locks.wait(thread)
        owner = None if wait is None or wait.owner is None else wait.owner.thread
        number = self._locks.threads.get(owner or 0)
        if number is None:
            return wait, ()
        text = f"its owner is part of the deadlock {deadlock_id(self.pid, number)}"
        return wait, (AppliedRule("deadlock", text),)

    def _is_deadlocked(self, thread: int) -> bool:
        """Whether a thread that hangs is part of a deadlock, which is reported if it is new."""
        if self._locks is None or not self.options.deadlocks:
            return False
        if thread not in self._locks.threads and self._locks.refusal is None:
            self._report_deadlocks(self._locks.prove())
        return thread in self._locks.threads

    def _stopped(self, thread: int, duration_ns: int) -> None:
        self._hangs.stopped(thread, duration_ns)

    # --- incidents ---

    def _report_resources(self, incident: ResourceIncident) -> None:
        samples = [*incident.samples]
        self._report(
            partial(resource_incident, incident, samples, incident.over, self._namer, self.pid)
        )

    def _report_deadlocks(self, events: Sequence[DeadlockEvent]) -> None:
        for event in events:
            if event.ended is None:
                identifier = deadlock_id(self.pid, event.number)
                rule = AppliedRule("deadlock", f"it has become the deadlock {identifier}")
                for blocked in event.cycle.threads:
                    self._hangs.apply(blocked.thread, rule)
            copies = [] if event.ended is not None else self._copies.all()
            now_ns = boot_ns()
            self._report(partial(self._name_deadlock, event, copies, now_ns))

    def _report_crash(self, crash: Crash | None) -> None:
        if crash is not None:
            self._report(partial(self._name_crash, crash))

    def _report(self, name: Callable[[], WatchIncident]) -> None:
        """Let the naming thread make an incident, and publish it."""
        facts = self._circumstances()
        self._namer.submit(lambda: self._publish(name(), facts))

    def _circumstances(self) -> _Circumstances:
        host = host_load() if self._target.is_local else None
        process = Capture(process=self._target.process, images=ImageList(), stacks=())
        return _Circumstances(self.cost, host, self._resources.series, self.missing, process)

    # --- in the naming thread ---

    def _name_deadlock(
        self, event: DeadlockEvent, copies: Sequence[RawCopy], taken_ns: int
    ) -> WatchIncident:
        incident = deadlock_incident(event, self.pid, self._namer.capture(copies), taken_ns)
        before = self._incidents.get(incident.id)
        if before is not None:
            incident = replace(before, ended=event.ended, duration_ns=incident.duration_ns)
        return incident

    def _name_crash(self, crash: Crash) -> WatchIncident:
        before = self._incidents.get(f"{self.pid}-crash")
        capture = None if before is None else before.capture
        if capture is None and crash.copy is not None:
            capture = self._namer.capture([crash.copy])
        return crash_incident(crash, self.pid, self._name, capture)

    def _publish_open(self, now_ns: int, now: _Circumstances) -> None:
        """Publish the incidents that last when watching ends."""
        for incident in self.incidents:
            if incident.ended is None and incident.kind is not IncidentKind.CRASH:
                passed_ns = incident.duration_ns
                if incident.kind is not IncidentKind.HANG:
                    passed_ns = max(0, now_ns - incident.began.best_ns)
                missing = (*incident.missing, STILL_OPEN)
                self._publish(replace(incident, duration_ns=passed_ns, missing=missing), now)

    def _publish(self, incident: WatchIncident, now: _Circumstances) -> None:
        before = self._incidents.get(incident.id)
        wall_ns = time.time_ns() - boot_ns() + incident.seen_ns
        incident = replace(
            incident,
            seen_wall_ns=wall_ns if before is None else before.seen_wall_ns,
            series=now.series,
            host=now.host,
            cost=now.cost,
            missing=tuple(dict.fromkeys((*incident.missing, *now.missing, *self._namer.errors))),
            capture=incident.capture or now.capture,
        )
        self._incidents.add(incident)
        self._on_incident(incident)
        self.wake()
