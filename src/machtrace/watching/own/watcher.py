"""The watcher of its own process: a thread of C polls and copies, Python names what it recorded."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

from machtrace.errors import MachtraceError, ThreadGoneError
from machtrace.model.incident.facts import WatchedThread, WatcherCost, WatchIncident
from machtrace.model.polls import CallPlace
from machtrace.model.snapshot import ThreadId
from machtrace.targets.base import ClosedWhenLeft, select_threads
from machtrace.targets.inprocess.beacons import stated_by
from machtrace.targets.inprocess.linux import SelfTarget
from machtrace.targets.inprocess.watchdog import OwnWatchdog
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogCause,
    WatchdogEvent,
    WatchdogItem,
    WatchdogPhase,
)
from machtrace.targets.linux.locks import LinuxLocks
from machtrace.targets.linux.process_polls import host_load
from machtrace.watching.incidents import Incidents
from machtrace.watching.locks.watch import DeadlockEvent, DeadlockWatch, deadlock_incident
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.own.cases import Case, Cases, NumberedPoll
from machtrace.watching.own.loops import LoopBeacons, await_chain
from machtrace.watching.resources.conditions import ConditionOver
from machtrace.watching.resources.watch import (
    ResourceIncident,
    ResourceSample,
    ResourceWatch,
    resource_incident,
)
from machtrace.watching.thresholds import WatchOptions

_POLLS_OF_HANG = 5
"""Polls in the time of a hang, at least."""
_WAIT_NS = 200_000_000
"""Time until new records are taken while something lasts; else news end the wait."""
_IDLE_WAIT_NS = 1_000_000_000
_SURVEY_NS = 100_000_000
"""The same while locks are surveyed."""
_OWN_NAMES = "machtrace"
"""The beginning of the names of machtrace's own threads, which are not watched."""


class OwnWatcher(ClosedWhenLeft):
    """Watches threads of this process until it is closed or its time is over.

    Threads that wait are copied without a signal; those that run copy themselves in the handler of
    one. A thread that keeps the interpreter's lock in C is seen, too; of that, and of every scope
    of :func:`machtrace.deadline`, incidents are reported as soon as Python runs again.

    Args:
        options: what is watched.
        on_incident: called for each incident when it is seen and when it ended, by the naming
            thread.
        record: the path of a file that stays readable if this process is killed; see
            :func:`machtrace.watching.own.record.read_record`.

    Raises:
        TargetError: this process cannot be watched.
        FileAccessError: the record cannot be created.
    """

    def __init__(
        self,
        options: WatchOptions,
        on_incident: Callable[[WatchIncident], None] = lambda _: None,
        *,
        record: str | None = None,
    ) -> None:
        self.options = options
        self.pid = os.getpid()
        self.has_ended = False
        """Always False: this process runs."""
        self._on_incident = on_incident
        self._incidents = Incidents()
        self._numbers = count(1)
        self._ids: dict[int, str] = {}
        self._states: Mapping[int, str | None] = {}
        self._tasks: dict[int, Mapping[str, str]] = {}
        """Facts of tasks that ran when incidents were seen, by incident."""
        self._loops = LoopBeacons()
        self._is_closed = False
        self._running = threading.RLock()
        """Held by :meth:`run`: :meth:`close` waits until it has returned."""
        self._began_ns = time.monotonic_ns()
        self._target = SelfTarget()
        try:
            self._namer = Namer(options.search, lines=options.lines, scan=True)
            hang_ns = options.hang_ns or 0
            interval = options.poll_ns
            if hang_ns:
                interval = min(interval, hang_ns // _POLLS_OF_HANG)
            self._watchdog = self._target.watchdog(hang_ns, interval, record=record)
        except BaseException:
            self._target.close()
            raise
        source = _Source(self._target, self._watchdog)
        self._cases = Cases(
            source, self._namer, self._target.process.arch, interval, self._set_idle
        )
        self._locks = DeadlockWatch(self.pid, LinuxLocks()) if options.deadlocks else None
        self._resources = ResourceWatch(
            self._target.process_polls(),
            options.cpu,
            options.memory,
            new_id=self._new_id,
            copies=self._copies,
            report=self._report_resources,
        )
        self._poll_conditions()  # the first survey of locks takes long
        if hang_ns:
            self._choose_threads()
        self._namer.submit(self._prepare)
        with suppress(RuntimeError):
            self.watch_loop(asyncio.get_running_loop())

    @property
    def incidents(self) -> tuple[WatchIncident, ...]:
        """All incidents so far, as they were reported last; of old ones without stacks."""
        return self._incidents.all

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        missing: tuple[str, ...] = () if self._locks is None else self._locks.missing
        if self._watchdog.layout is None:
            missing += ("Python functions and the interpreter's lock cannot be read",)
        return missing

    @property
    def has_failed(self) -> bool:
        """Whether ``on_incident`` raised; :meth:`close` raises it."""
        return self._namer.failure is not None

    @property
    def states(self) -> dict[WatchedThread, str | None]:
        """The state of each thread that is away."""
        return {described(self._target, thread): state for thread, state in self._states.items()}

    @property
    def cost(self) -> WatcherCost:
        """The cost so far, of the thread that polls."""
        counts = self._watchdog.counts
        return WatcherCost(
            polls=counts.rounds,
            late_polls=counts.late,
            latest_ns=counts.latest_ns,
            cpu_ns=counts.cpu_ns,
            stops=counts.stops,
            stopped_ns=counts.longest_stop_ns,
        )

    def watch_thread(self, thread: int | None = None) -> None:
        """Watch one more thread; None is the calling one.

        Raises:
            ThreadGoneError: it does not exist.
            ArgumentError: too many are watched.
        """
        self._watchdog.watch(threading.get_native_id() if thread is None else thread)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """State the idle waits of an event loop, to know when each task began.

        The loop that runs in the calling thread when the watcher starts is stated already. Other
        loops are watched as well, by where their threads wait. To be called by the loop's thread.

        Returns:
            Whether the loop has a selector; uvloop's have none.
        """
        return self._loops.attach(loop)

    def begin(self) -> None:
        """Do nothing: the watchdog runs already; see :meth:`Watcher.begin`."""

    def run(
        self,
        duration_ns: int,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Report incidents until the time is over or ``should_stop`` returns True."""
        end = time.monotonic_ns() + duration_ns
        with self._running:
            while not should_stop() and not self._is_closed:
                left = end - time.monotonic_ns()
                if left <= 0:
                    break
                self._watchdog.wait(max(0, min(left, self._wait_ns())))
                self._loops.check()
                self._take()
                self._poll_conditions()
                on_tick()
            self._resources.finish()

    def _wait_ns(self) -> int:
        wait = _WAIT_NS if self._states else _IDLE_WAIT_NS
        if self._locks is not None:
            wait = min(wait, _SURVEY_NS)
        return min(wait, self._resources.next_ns - time.monotonic_ns())

    def wake(self) -> None:
        """Let :meth:`run` check whether it should stop."""
        self._watchdog.wake()

    def close(self) -> None:
        """Finish the incidents and close everything; a second call does nothing."""
        if self._is_closed or self.pid != os.getpid():
            return
        self._is_closed = True
        self._watchdog.wake()
        with self._running:
            self._loops.detach_all()
            self._watchdog.close()
            self._take()
            self._namer.close()
            self._resources.close()
            if self._locks is not None:
                self._locks.close()
            self._target.close()
        if self._namer.failure is not None:
            raise self._namer.failure

    # --- in the thread that waits for news ---

    def _take(self) -> None:
        """Take what was recorded since."""
        items = [*self._watchdog.take()]
        if items or self._states:
            self._namer.submit(partial(self._follow, items, self._current_tasks(items)))

    def _current_tasks(self, items: Sequence[WatchdogItem]) -> dict[int, dict[str, str]]:
        """Return the tasks that run now, by incident: when the stacks are named, others run."""
        events = [item for item in items if isinstance(item, WatchdogEvent)]
        ended = {each.incident for each in events if each.phase is WatchdogPhase.ENDED}
        tasks: dict[int, dict[str, str]] = {}
        for event in events:
            if event.phase is not WatchdogPhase.SEEN or event.incident in ended:
                continue
            facts = self._loops.current_task(event.thread)
            stated = stated_by(event.thread)
            is_same = stated is not None and stated[1] == event.key
            if is_same or event.cause is WatchdogCause.SCOPE:
                tasks[event.incident] = facts
        return tasks

    def _poll_conditions(self) -> None:
        self._resources.tick(self._states.get(self.pid, "idle"))
        for event in () if self._locks is None else self._locks.poll():
            own = threading.get_native_id()
            ids = [thread.id for thread in self._target.threads() if thread.id != own]
            copies = [] if event.ended is not None else self._copies(ids)
            now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self._namer.submit(partial(self._name_deadlock, event, copies, now_ns))

    def _copies(self, threads: Sequence[ThreadId]) -> list[RawCopy]:
        with suppress(MachtraceError):
            return [RawCopy(*self._target.snapshot_with_python(threads))]
        return []

    def _report_resources(self, incident: ResourceIncident) -> None:
        samples = [*incident.samples]
        self._namer.submit(partial(self._name_resources, incident, samples, incident.over))

    def _choose_threads(self) -> None:
        choice = self.options.threads
        if choice == "main":
            self._watchdog.watch(self.pid)
            return
        infos = [
            info for info in self._target.threads() if not (info.name or "").startswith(_OWN_NAMES)
        ]
        for thread in select_threads(infos, choice) or [info.id for info in infos]:
            with suppress(ThreadGoneError):
                self._watchdog.watch(thread)

    def _set_idle(self, thread: int, places: Sequence[CallPlace]) -> None:
        self._watchdog.set_idle(thread, places)

    # --- in the naming thread ---

    def _prepare(self) -> None:
        """Read names once: beside a hang, on a loaded host, it takes seconds."""
        for copy in self._copies([ThreadId(self.pid)]):
            self._namer.stacks(copy)

    def _follow(
        self, items: Sequence[WatchdogItem], tasks: Mapping[int, Mapping[str, str]]
    ) -> None:
        self._tasks |= tasks
        for case in self._cases.take(items):
            case.facts |= self._tasks.get(case.event.incident, {})
            self._report(case)
        for item in items:
            if isinstance(item, WatchdogEvent) and item.phase is WatchdogPhase.ENDED:
                self._tasks.pop(item.incident, None)
        self._states = self._cases.states

    def _report(self, case: Case) -> None:
        grace = self.options.launch_grace_ns or 0
        if case.event.began_ns - self._began_ns < grace:
            return
        self._cases.name(case)
        self._add_task(case)
        number = self._ids.get(case.event.incident)
        if number is None:
            number = self._ids[case.event.incident] = self._new_id()
        if not number:
            return
        incident = self._cases.incident(case, number=number, pid=self.pid)
        self._publish(incident)
        if case.ended is not None:
            del self._ids[case.event.incident]

    def _add_task(self, case: Case) -> None:
        chains = (await_chain(stack) for _, stack in case.stacks)
        chain = next((each for each in chains if each is not None), None)
        if chain is None or "await_chain" in case.facts:
            return
        if "task" not in case.facts:
            case.facts |= self._loops.task_of(case.event.thread, chain.outermost)
        case.facts["await_chain"] = chain.text

    def _name_resources(
        self,
        incident: ResourceIncident,
        samples: Sequence[ResourceSample],
        over: ConditionOver | None,
    ) -> None:
        self._publish(resource_incident(incident, samples, over, self._namer, self.pid))

    def _name_deadlock(
        self, event: DeadlockEvent, copies: Sequence[RawCopy], taken_ns: int
    ) -> None:
        reported = deadlock_incident(event, self.pid, self._namer.capture(copies), taken_ns)
        before = self._incidents.get(reported.id)
        if before is not None:
            reported = replace(before, ended=event.ended, duration_ns=reported.duration_ns)
        self._publish(reported)

    def _new_id(self) -> str:
        """Return the identifier of a new incident; empty if there are too many."""
        number = next(self._numbers)
        return f"{self.pid}-{number}" if number <= self.options.daily_limit else ""

    def _publish(self, incident: WatchIncident) -> None:
        wall_offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        incident = replace(
            incident,
            seen_wall_ns=wall_offset + incident.seen_ns,
            series=self._resources.series,
            host=host_load(),
            cost=self.cost,
            missing=tuple(dict.fromkeys((*incident.missing, *self._namer.errors, *self.missing))),
        )
        self._incidents.add(incident)
        try:
            self._on_incident(incident)
        except Exception as error:  # noqa: BLE001 - watching continues; close() raises it
            self._namer.failure = error


class _Source:
    """The facts of cases of this process."""

    def __init__(self, target: SelfTarget, watchdog: OwnWatchdog) -> None:
        self._target = target
        self._watchdog = watchdog

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        return RawCopy(*self._watchdog.copy_of(capture))

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        return self._watchdog.polls(first)

    def thread(self, thread: int) -> WatchedThread:
        return described(self._target, thread)

    def is_watcher(self, thread: int) -> bool:
        own = (each for each in threading.enumerate() if each.name.startswith(_OWN_NAMES))
        return thread in {each.native_id for each in own}


def described(target: SelfTarget, thread: int) -> WatchedThread:
    """Describe a thread of this process; it may be gone."""
    return WatchedThread(thread, target.name_of(thread), thread == target.process.pid)
