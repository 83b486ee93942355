"""Deadlocks: threads that wait for one another, proven by the owners that locks record.

A thread is stuck if it waits without a time limit, what it waits for has a recorded owner, and that
owner is stuck: the thread that holds a lock, or every thread of the processes that could end the
wait. Stuck threads are proven in two surveys: with the same system call and unchanged counts of
context switches a thread did not run in between, so it has released nothing. Threads that wait for
the interpreter lock of CPython wake every few milliseconds; they cannot continue while the thread
that holds it does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from machtrace.model.incident.facts import WaitsFor
from machtrace.model.polls import SystemCall
from machtrace.reports.analysis.waits.graph import strong_components
from machtrace.watching.locks.owners import OwnedWait


class BlockedThread(NamedTuple):
    """A thread that waits for something of a recorded owner."""

    pid: int
    thread: int
    call: SystemCall
    wait: OwnedWait
    switches: tuple[int, int] | None = None

    def is_same_wait(self, other: BlockedThread) -> bool:
        """Return whether the thread cannot have continued from one observation to the other."""
        if self.wait != other.wait or self.call.place != other.call.place:
            return False
        if self.wait.is_repeated:
            return True  # it depends on the holder, whose switches count
        return self.call == other.call and self.switches == other.switches is not None


class LockSurvey(NamedTuple):
    """The stuck threads of one time, and the threads of their processes."""

    threads: Mapping[int, BlockedThread]
    """By thread id."""
    processes: Mapping[int, tuple[int, ...]]


def stuck_threads(
    threads: Mapping[int, BlockedThread], processes: Mapping[int, tuple[int, ...]]
) -> frozenset[int]:
    """Return the threads that no thread outside of the result can resume."""
    stuck = {thread_id for thread_id, thread in threads.items() if not thread.wait.is_timed}
    while True:
        free = {
            thread_id
            for thread_id in stuck
            if not (owners := _owners(threads[thread_id], processes))
            or not stuck.issuperset(owners)
        }
        if not free:
            return frozenset(stuck)
        stuck -= free


def _owners(thread: BlockedThread, processes: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the threads that can end a wait; empty if one of them is unknown."""
    owner = thread.wait.owner
    if owner is None:
        return ()
    if owner.thread is not None:
        return (owner.thread,)
    pids = {pid for pid in (owner.pid, *thread.wait.sharers) if pid is not None}
    if any(not processes.get(pid) for pid in pids):
        return ()
    return tuple(thread for pid in sorted(pids) for thread in processes[pid])


class DeadlockCycle(NamedTuple):
    """Threads each of which waits for the next, and the last one for the first."""

    threads: tuple[BlockedThread, ...]

    @property
    def key(self) -> frozenset[tuple[int, WaitsFor]]:
        """Equal for the same deadlock at another time."""
        return frozenset((thread.thread, thread.wait.waits_for) for thread in self.threads)


def deadlock_cycles(survey: LockSurvey, stuck: frozenset[int]) -> Iterator[DeadlockCycle]:
    """Yield a cycle for each group of stuck threads that wait for one another."""
    listed = sorted(stuck)
    index = {thread_id: at for at, thread_id in enumerate(listed)}
    edges = [
        [index[owner] for owner in _owners(survey.threads[thread_id], survey.processes)]
        for thread_id in listed
    ]
    for component in strong_components(edges):
        members = set(component)
        here = component[0]
        if len(members) == 1 and here not in edges[here]:
            continue
        order: list[int] = []
        while here not in order:
            order.append(here)
            here = next(owner for owner in edges[here] if owner in members)
        cycle = order[order.index(here) :]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        yield DeadlockCycle(tuple(survey.threads[listed[at]] for at in cycle))


class DeadlockDetector:
    """Compares each survey with the one before."""

    def __init__(self) -> None:
        self._last = LockSurvey({}, {})

    @property
    def is_suspicious(self) -> bool:
        """Whether the last survey had stuck threads; the next one proves them."""
        return bool(self._last.threads)

    def cycles(self, survey: LockSurvey) -> tuple[DeadlockCycle, ...]:
        """Return the deadlocks that ``survey`` and the one before prove."""
        before, self._last = self._last.threads, survey
        threads = {
            thread_id: thread
            for thread_id, thread in survey.threads.items()
            if thread_id in before and thread.is_same_wait(before[thread_id])
        }
        proven = LockSurvey(threads, survey.processes)
        return tuple(deadlock_cycles(proven, stuck_threads(threads, survey.processes)))
