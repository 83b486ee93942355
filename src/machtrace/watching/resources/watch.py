"""Watching a process's processor time and memory: when it is polled, and samples of its threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from machtrace.clocks import boot_ns
from machtrace.frozen import dataclass
from machtrace.model.capture import Capture
from machtrace.model.incident.facts import (
    IncidentKind,
    SeriesPoint,
    TimedStack,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.polls import ProcessPoll, ThreadCount
from machtrace.model.snapshot import ThreadId
from machtrace.watching.hangs.representative import representative
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.resources.conditions import (
    ConditionEvent,
    ConditionMet,
    ConditionOver,
    ProcessSeries,
    ThreadHistory,
)
from machtrace.watching.resources.cpu import CpuCondition
from machtrace.watching.resources.memory import MemoryCondition
from machtrace.watching.target import PolledProcess
from machtrace.watching.thresholds import PROCESS_POLL_NS, CpuThreshold, MemoryThreshold

_SECOND_NS = 1_000_000_000
_MAX_NS = 120 * _SECOND_NS
_FAST_POLL_NS = 20_000_000
"""Time between two polls while memory grows fast."""
_ACTIVE_SHARE = 0.05
_ACTIVE_NS, _IDLE_NS = _SECOND_NS, 10 * _SECOND_NS
"""Times between two reads of all threads' counts."""
_COST_RATIO, _GROWING_COST_RATIO = 1000, 50
"""These times as multiples of the time of one read."""
_LIMIT_NS = 60 * _SECOND_NS
_STEP_NS = 50_000_000
"""Time between two samples."""
_MAX_THREADS = 16
"""Threads that are sampled together."""
_EARLY = 10
"""Samples after which an incident of processor time is reported for the first time."""
_STILL = 4
"""Samples without growth after which memory's samples end."""
_COUNTS = {IncidentKind.CPU: 40, IncidentKind.MEMORY: 10}

Copies = Callable[[Sequence[ThreadId]], Sequence[RawCopy]]
"""Copies threads: those that wait without a stop."""


class ResourceSample(NamedTuple):
    """Copies of the threads at one time."""

    at_ns: int
    weights: Mapping[ThreadId, int]
    """Nanoseconds that the stack of each thread stands for."""
    copies: Sequence[RawCopy]


@dataclass(slots=True, eq=False)
class ResourceIncident:
    """An incident of processor time or memory while it lasts."""

    id: str
    met: ConditionMet
    threads: tuple[ThreadId, ...]
    samples: list[ResourceSample] = field(default_factory=list)
    due_ns: int | None = None
    """When the next sample is due; None if there is none to take."""
    counts: Mapping[int, ThreadCount] = field(default_factory=dict)
    still: int = 0
    over: ConditionOver | None = None
    stacks: list[TimedStack] = field(default_factory=list)
    """Those that are named; only the naming thread uses them."""
    everything: Sequence[RawCopy] = ()
    """All threads, until they are named."""
    capture: Capture | None = None
    named: int = 0
    """The number of samples that are named."""


class ResourceWatch:
    """Polls a process, evaluates the conditions, and samples the threads that cause them.

    Args:
        polls: polls of the process; closed with the watch.
        cpu: thresholds of processor time.
        memory: thresholds of memory.
        new_id: returns the identifier of an incident; empty if no more are reported today.
        copies: copies threads.
        copy_all: copies all threads.
        report: takes an incident when it is seen, when its samples are complete and when it ended.
    """

    def __init__(
        self,
        polls: PolledProcess,
        cpu: Sequence[CpuThreshold],
        memory: Sequence[MemoryThreshold],
        *,
        new_id: Callable[[], str],
        copies: Copies,
        copy_all: Callable[[], Sequence[RawCopy]] = tuple,
        report: Callable[[ResourceIncident], None],
    ) -> None:
        self._polls = polls
        self._new_id, self._copies, self._report = new_id, copies, report
        self._copy_all = copy_all
        windows = [threshold.window_ns for threshold in cpu]
        self._history = ThreadHistory(max([_MAX_NS, *windows]))
        self._cpu = [CpuCondition(cpu, self._history)] if cpu else []
        self._memory = [MemoryCondition(threshold, self._history) for threshold in memory]
        self._conditions: list[CpuCondition | MemoryCondition] = [*self._cpu, *self._memory]
        self._open: dict[object, ResourceIncident] = {}
        """By condition."""
        self._series = ProcessSeries()
        self._last: ProcessPoll | None = None
        self._poll_ns = self._threads_ns = self._limit_ns = 0
        self._last_threads_ns = self._threads_cost_ns = 0

    @property
    def series(self) -> tuple[SeriesPoint, ...]:
        """The last minute."""
        return tuple(self._series.points)

    @property
    def last(self) -> ProcessPoll | None:
        """The last poll."""
        return self._last

    @property
    def next_ns(self) -> int:
        """The time of the next poll or sample (``CLOCK_MONOTONIC``)."""
        dues = [each.due_ns for each in self._open.values() if each.due_ns is not None]
        return min([self._poll_ns, *dues])

    @property
    def is_needed(self) -> bool:
        """Whether polls matter even if the process uses no processor time."""
        return bool(self._open) or any(each.is_growing for each in self._memory)

    @property
    def next_needed_ns(self) -> int:
        """As :attr:`next_ns`, of a process that uses no processor time."""
        if self.is_needed:
            return self.next_ns
        return self._poll_ns + _SECOND_NS - PROCESS_POLL_NS

    def tick(self, state: str | None = None) -> None:
        """Poll and sample if that is due.

        Args:
            state: the main thread's, for the series.

        Raises:
            TargetGoneError: the process has exited.
        """
        now = time.monotonic_ns()
        if now >= self._poll_ns:
            self._poll(now, state)
        for incident in [*self._open.values()]:
            if incident.due_ns is not None and now >= incident.due_ns:
                self._sample(incident)

    def end(self) -> None:
        """Report the end of all incidents: the process has exited, or executes another program."""
        for condition in self._conditions:
            self._handle(condition, condition.end())

    def finish(self) -> None:
        """Report the samples so far of incidents that still last: watching ends."""
        for incident in self._open.values():
            if incident.due_ns is not None:
                incident.due_ns = None
                self._report(incident)

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        self._polls.close()

    # --- polls ---

    def _poll(self, now: int, state: str | None) -> None:
        if self._memory and now >= self._limit_ns:
            self._limit_ns = now + _LIMIT_NS
            limit = self._polls.limit()
            for each in self._memory:
                each.limit = limit
        last = self._last
        self._poll_ns = now + PROCESS_POLL_NS
        poll = self._read(with_threads=bool(self._conditions) and now >= self._threads_ns)
        if last is not None and poll.at_ns == last.at_ns:
            return  # nothing new has come from the target
        if poll.threads is not None and poll.at_ns != self._last_threads_ns:
            self._history.add(poll)  # a target may count threads at every poll
        self._last = poll
        self._series.add(poll, state)
        for condition in self._conditions:
            events = condition.add(poll)
            if condition.wants_threads:
                poll = self._read(with_threads=True)
                events = condition.add(poll)
            self._handle(condition, events)
        is_growing = any(each.is_growing for each in self._memory)
        self._threads_ns = self._next_threads(last, poll, is_growing=is_growing)
        step = _FAST_POLL_NS if is_growing else PROCESS_POLL_NS
        if not self._conditions:
            step = _SECOND_NS
        self._poll_ns = now + step

    def _read(self, *, with_threads: bool) -> ProcessPoll:
        if not with_threads:
            return self._polls.poll(with_threads=False)
        began = time.thread_time_ns()
        poll = self._polls.poll(with_threads=True)
        self._threads_cost_ns = time.thread_time_ns() - began
        self._last_threads_ns = poll.at_ns
        self._history.add(poll)
        return poll

    def _next_threads(
        self, last: ProcessPoll | None, poll: ProcessPoll, *, is_growing: bool
    ) -> int:
        """Return when all threads' counts are read next: later if they are many or idle."""
        share = 0.0
        if last is not None and poll.cpu_ns is not None and last.cpu_ns is not None:
            share = (poll.cpu_ns - last.cpu_ns) / max(1, poll.at_ns - last.at_ns)
        wait, ratio = _IDLE_NS, _COST_RATIO
        if is_growing:
            wait, ratio = PROCESS_POLL_NS, _GROWING_COST_RATIO
        elif share >= _ACTIVE_SHARE:
            wait = _ACTIVE_NS
        return self._last_threads_ns + max(wait, ratio * self._threads_cost_ns)

    def _handle(
        self, condition: CpuCondition | MemoryCondition, events: Sequence[ConditionEvent]
    ) -> None:
        for event in events:
            if isinstance(event, ConditionMet):
                self._begin(condition, event)
            elif (incident := self._open.pop(condition, None)) is not None:
                incident.over, incident.due_ns = event, None
                self._report(incident)

    # --- samples ---

    def _begin(self, condition: object, met: ConditionMet) -> None:
        identifier = self._new_id()
        if not identifier:
            return
        if met.kind is IncidentKind.MEMORY:
            details = self._polls.memory_details()
            met = replace(met, evidence={**met.evidence, **details})
            threads = met.threads[:1]
        else:
            threads = met.threads[:_MAX_THREADS]
        incident = ResourceIncident(
            identifier, met, tuple(ThreadId(share.thread) for share in threads)
        )
        self._open[condition] = incident
        if not incident.threads:
            self._report(incident)
            return
        incident.counts = self._polls.counts(incident.threads)
        self._sample(incident)
        incident.everything = self._copy_all()

    def _sample(self, incident: ResourceIncident) -> None:
        at_ns = boot_ns()
        counts = self._polls.counts(incident.threads)
        weights = {
            thread: self._weight(incident, thread, counts.get(thread))
            for thread in incident.threads
        }
        incident.counts = counts
        is_first = not incident.samples
        copies = self._copies([thread for thread in incident.threads if thread in counts])
        incident.samples.append(ResourceSample(at_ns, weights, copies))
        is_memory = incident.met.kind is IncidentKind.MEMORY
        incident.still = 0 if is_first or any(weights.values()) else incident.still + 1
        taken = len(incident.samples)
        is_done = not counts or taken >= _COUNTS[incident.met.kind]
        is_done = is_done or (is_memory and incident.still >= _STILL)
        incident.due_ns = None if is_done else time.monotonic_ns() + _STEP_NS
        if is_done or taken == (1 if is_memory else _EARLY):
            self._report(incident)

    def _weight(self, incident: ResourceIncident, thread: int, count: ThreadCount | None) -> int:
        """Return the time that a sample of a thread stands for."""
        before = incident.counts.get(thread)
        if not incident.samples:
            return _STEP_NS
        if before is None or count is None:
            return 0
        if incident.met.kind is IncidentKind.CPU:
            return max(0, count.run_ns - before.run_ns)
        if count.faults is None or before.faults is None:
            return _STEP_NS
        return _STEP_NS if count.faults > before.faults else 0


def resource_incident(
    incident: ResourceIncident,
    samples: Sequence[ResourceSample],
    over: ConditionOver | None,
    namer: Namer,
    pid: int,
) -> WatchIncident:
    """Name the new samples, and return the incident; to be called by a job of the namer.

    Args:
        incident: the incident.
        samples: those that it has so far.
        over: its end.
        namer: names them.
        pid: the process.
    """
    met = incident.met
    taken = incident.named
    for sample in samples[taken:]:
        for copy in sample.copies:
            for stack in namer.stacks(copy):
                weight = sample.weights.get(ThreadId(stack.thread.id), 0)
                incident.stacks.append(TimedStack(sample.at_ns, weight, stack))
    if taken and incident.everything:  # the first report does not wait for it
        incident.capture, incident.everything = namer.capture(incident.everything), ()
    incident.named = max(taken, len(samples))
    hottest = incident.threads[0] if incident.threads else None
    own = [at for at, timed in enumerate(incident.stacks) if timed.stack.thread.id == hottest]
    chosen = representative([incident.stacks[at] for at in own])
    thread = None
    if hottest is not None:
        names = (incident.stacks[at].stack.thread.name for at in reversed(own))
        is_main = any(incident.stacks[at].stack.thread.is_main for at in own)
        thread = WatchedThread(hottest, next(names, None), is_main or hottest == pid)
    missing = list(met.missing)
    if incident.threads and not own:
        missing.append("the thread had exited, or could not be copied, when it was to be sampled")
    elif met.kind is IncidentKind.MEMORY and len(own) > 1 and not _has_grown(incident.stacks):
        missing.append("the growth was over when the stacks were taken")
    until = over.ended.best_ns if over is not None else met.seen_ns
    return WatchIncident(
        id=incident.id,
        kind=met.kind,
        certainty=met.certainty,
        began=met.began,
        seen_ns=met.seen_ns,
        ended=None if over is None else over.ended,
        pid=pid,
        threshold=met.threshold if over is None else over.threshold,
        thread=thread,
        duration_ns=max(0, until - met.began.best_ns),
        evidence=MappingProxyType({**met.evidence}),
        culprit=None if chosen is None else chosen.culprit,
        stacks=tuple(incident.stacks),
        representative=None if chosen is None else own[chosen.stack],
        rules=met.rules,
        missing=tuple(missing),
        capture=incident.capture,
    )


def _has_grown(stacks: Sequence[TimedStack]) -> bool:
    """Whether the thread had page faults between two samples."""
    return any(timed.weight_ns for timed in stacks[1:])
