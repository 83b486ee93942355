"""Watching a process for deadlocks: when it is surveyed, and deadlocks as incidents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from machtrace.clocks import process_time_ns
from machtrace.errors import TargetAccessError, TargetError, TargetGoneError
from machtrace.model.capture import Capture
from machtrace.model.incident.facts import (
    IncidentKind,
    TimedStack,
    TimeRange,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.snapshot import Snapshot
from machtrace.targets.linux.locks import LinuxLocks
from machtrace.watching.hangs.representative import representative
from machtrace.watching.locks.deadlocks import BlockedThread, DeadlockCycle, DeadlockDetector
from machtrace.watching.locks.waits import LockSurveyor

_INTERVAL_NS, _MAX_INTERVAL_NS = 100_000_000, 5_000_000_000
_COST_RATIO = 1000
"""Time that pays for a survey, as a multiple of its processor time: 0.1 % of a processor."""
_MAX_CREDIT_NS = 50_000_000
"""Processor time that quiet times save for surveys in quick succession."""
_MAX_MISSED = 3
"""Surveys that do not prove a deadlock any more, after which it has ended."""


class DeadlockEvent(NamedTuple):
    """A deadlock that was seen, or that has ended."""

    number: int
    """Its number, from 1 on."""
    cycle: DeadlockCycle
    names: tuple[str | None, ...]
    """The name of each thread of the cycle, as the system has it."""
    began: TimeRange
    """One time if it is older than the watch."""
    seen_ns: int
    """``CLOCK_BOOTTIME``, as all times."""
    ended: TimeRange | None = None

    @property
    def is_old(self) -> bool:
        """Whether it began before the watch."""
        return self.began.earliest_ns == self.began.latest_ns


class _Known:
    def __init__(self, event: DeadlockEvent) -> None:
        self.event = event
        self.last_ns = event.seen_ns
        self.missed = 0


class DeadlockWatch:
    """Surveys the locks of a process from time to time.

    Args:
        pid: the process.
        source: reads its locks; closed with the watch.
    """

    def __init__(self, pid: int, source: LinuxLocks) -> None:
        self._pid = pid
        self._source = source
        self._surveyor = LockSurveyor(pid, self._source)
        self._detector = DeadlockDetector()
        self._known: dict[frozenset[tuple[int, WaitsFor]], _Known] = {}
        self._due_ns = self._forced_ns = 0
        self._credit_ns, self._credited_ns = _MAX_CREDIT_NS, time.monotonic_ns()
        self._cpu_ns: int | None = None
        """The process's processor time at the last survey."""
        self._times_ns: tuple[int, ...] = ()
        """The times of the last two surveys."""
        self._count = 0
        self.refusal: TargetAccessError | None = None
        """Why deadlocks cannot be determined."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The same as a sentence; empty if they can."""
        return () if self.refusal is None else (f"deadlocks cannot be determined: {self.refusal}",)

    def poll(self) -> tuple[DeadlockEvent, ...]:
        """Survey the process if that is due, and return what has changed.

        Raises:
            TargetGoneError: it has exited.
        """
        began_ns = time.monotonic_ns()
        if began_ns < self._due_ns:
            return ()
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        cpu_ns = process_time_ns(self._pid)
        if None is not cpu_ns == self._cpu_ns and began_ns < self._forced_ns and not self._known:
            self._times_ns = (*self._times_ns[-1:], boot_ns)  # no thread ran: nothing is new
            self._due_ns = began_ns
            return ()
        self._cpu_ns, self._forced_ns = cpu_ns, began_ns + _MAX_INTERVAL_NS
        began_cpu_ns = time.thread_time_ns()
        try:
            cycles = self._detector.cycles(self._surveyor.survey())
        except TargetAccessError as error:
            self.refusal = error
            self._due_ns = began_ns + _MAX_INTERVAL_NS
            return ()
        events = (*self._new(cycles, boot_ns), *self._over(cycles, boot_ns))
        if self._times_ns:  # the first one reads the images, once
            self._pay(began_ns, time.thread_time_ns() - began_cpu_ns)
        if self._detector.is_suspicious and not cycles:
            self._due_ns = self._forced_ns = 0  # the next poll proves it
        self._times_ns = (*self._times_ns[-1:], boot_ns)
        return events

    def _pay(self, now_ns: int, cost_ns: int) -> None:
        """Account for a survey, and determine when the next is due."""
        credit = self._credit_ns + (now_ns - self._credited_ns) // _COST_RATIO
        self._credit_ns, self._credited_ns = min(credit, _MAX_CREDIT_NS) - cost_ns, now_ns
        interval = -self._credit_ns * _COST_RATIO
        self._due_ns = now_ns + max(_INTERVAL_NS, min(interval, _MAX_INTERVAL_NS))

    @property
    def due_ns(self) -> int:
        """When the process is surveyed (``CLOCK_MONOTONIC``), once one of its threads has run."""
        return self._due_ns

    def has_run(self, cpu_ns: int) -> bool:
        """Return whether a thread has run since the last survey.

        Args:
            cpu_ns: the processor time that the process has used.
        """
        return cpu_ns != self._cpu_ns

    @property
    def threads(self) -> dict[int, int]:
        """The number of the deadlock that a thread is part of, by thread."""
        return {
            blocked.thread: known.event.number
            for known in self._known.values()
            for blocked in known.event.cycle.threads
        }

    def prove(self) -> tuple[DeadlockEvent, ...]:
        """Survey the process now, twice, which proves every deadlock. Raises as :meth:`poll`."""
        events: list[DeadlockEvent] = []
        for _ in range(2):
            self._due_ns = self._forced_ns = 0
            events += self.poll()
        return tuple(events)

    def wait(self, thread: int) -> WaitsFor | None:
        """Return what a thread waits for now; None if unknown. Raises as :meth:`poll` does."""
        try:
            wait = self._surveyor.wait(thread)
        except TargetGoneError:
            raise
        except TargetError:
            return None
        return None if wait is None else wait.waits_for

    def described(self, snapshot: Snapshot) -> Snapshot:
        """See :meth:`LockSurveyor.described`; the same snapshot where locks cannot be read."""
        try:
            return self._surveyor.described(snapshot)
        except TargetError:
            return snapshot

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        self._source.close()

    @property
    def is_suspicious(self) -> bool:
        """Whether the next poll should not wait."""
        return not self._due_ns or bool(self._known)

    def _new(self, cycles: Sequence[DeadlockCycle], boot_ns: int) -> list[DeadlockEvent]:
        events: list[DeadlockEvent] = []
        for cycle in cycles:
            known = self._known.get(cycle.key)
            if known is not None:
                known.last_ns, known.missed = boot_ns, 0
                continue
            self._count += 1
            names = tuple(self._name(thread) for thread in cycle.threads)
            # It began after the last survey but one; of an older deadlock the first survey counts.
            began = TimeRange(self._times_ns[0], self._times_ns[-1])
            event = DeadlockEvent(self._count, cycle, names, began, boot_ns)
            self._known[cycle.key] = _Known(event)
            events.append(event)
        return events

    def _over(self, cycles: Sequence[DeadlockCycle], boot_ns: int) -> list[DeadlockEvent]:
        proven = {cycle.key for cycle in cycles}
        events: list[DeadlockEvent] = []
        for key, known in [*self._known.items()]:
            if key in proven:
                continue
            known.missed += 1
            if known.missed >= _MAX_MISSED:
                del self._known[key]
                ended = TimeRange(known.last_ns, boot_ns)
                events.append(known.event._replace(ended=ended))
        return events

    def ended(self) -> tuple[DeadlockEvent, ...]:
        """Return the end of all deadlocks: the process has exited."""
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        known, self._known = [*self._known.values()], {}
        return tuple(each.event._replace(ended=TimeRange(each.last_ns, boot_ns)) for each in known)

    def _name(self, thread: BlockedThread) -> str | None:
        with suppress(TargetError):
            return self._source.name(thread.pid, thread.thread) or None
        return None


def deadlock_id(pid: int, number: int) -> str:
    """Return the identifier of a deadlock's incident."""
    return f"{pid}-deadlock-{number}"


def deadlock_incident(
    event: DeadlockEvent, pid: int, capture: Capture | None, taken_ns: int
) -> WatchIncident:
    """Return a deadlock as an incident; of the watched process's threads it has the stacks.

    Args:
        event: the deadlock.
        pid: the watched process.
        capture: all threads of the process, soon after the deadlock was seen.
        taken_ns: when they were captured (``CLOCK_BOOTTIME``).
    """
    stacks = {} if capture is None else {stack.thread.id: stack for stack in capture.stacks}
    threads: list[WatchedThread] = []
    for blocked, name in zip(event.cycle.threads, event.names, strict=True):
        own = next((stack for at, stack in stacks.items() if at == blocked.thread), None)
        threads.append(
            WatchedThread(
                blocked.thread,
                name if own is None else own.thread.name or name,
                blocked.thread == blocked.pid,
                None if blocked.pid == pid else blocked.pid,
            )
        )
    first = next((at for at, blocked in enumerate(event.cycle.threads) if blocked.pid == pid), 0)
    until_ns = taken_ns if event.ended is None else event.ended.best_ns
    stack = next((each for at, each in stacks.items() if at == threads[first].id), None)
    timed = (
        ()
        if stack is None
        else (TimedStack(taken_ns, max(0, until_ns - event.began.best_ns), stack),)
    )
    chosen = representative(timed)
    evidence = {"switches": 0, "surveys": 2, "older_than_watch": event.is_old or None}
    waits = tuple(blocked.wait.waits_for for blocked in event.cycle.threads)
    return WatchIncident(
        id=deadlock_id(pid, event.number),
        kind=IncidentKind.DEADLOCK,
        certainty=VerdictCertainty.CERTAIN,
        began=event.began,
        seen_ns=event.seen_ns,
        ended=event.ended,
        pid=pid,
        thread=threads[first],
        duration_ns=max(0, until_ns - event.began.best_ns),
        evidence=MappingProxyType(evidence),
        culprit=None if chosen is None else chosen.culprit,
        waits_for=waits[first],
        cycle=tuple(threads),
        cycle_waits=waits,
        stacks=timed,
        representative=None if chosen is None else chosen.stack,
        capture=capture,
    )
