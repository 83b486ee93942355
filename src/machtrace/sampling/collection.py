"""Samples collected from snapshots.

A waiting thread has the same registers and stack at every tick: its stack is unwound once. Other
stacks are queued and unwound when there is time, at the latest when the queue is full.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import ThreadGoneError
from machtrace.frozen import dataclass
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.profile import RUNNING, STATES, UNKNOWN, SampledThread, SampleTable
from machtrace.model.snapshot import (
    GilState,
    Problem,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.sampling.stacks import SampledStacks

MAX_WAITING = 64 << 20
"""Maximum bytes of queued snapshots."""

_SNAPSHOT_SIZE = 1 << 14
"""Approximate bytes of a snapshot, besides its stacks."""

MAX_SAMPLES = 1 << 24
"""Maximum samples of all threads together: about half a GiB."""

_MAX_PROBLEMS = 1000


@dataclass(slots=True)
class ThreadSampling:
    """A thread that is sampled."""

    number: int
    info: ThreadInfo
    samples: int = 0
    stopped_ns: int | None = None
    longest_stop_ns: int | None = None
    last: ThreadSnapshot | None = None
    """The newest copy of the thread that differed from the one before."""
    images: ImageList | None = None
    python: PythonRuns = None
    walk: int = 0
    """The number of that copy's walk."""
    running: int | None = None
    cpu_ns: int | None = None
    """The processor time of all samples."""
    last_cpu_ns: int | None = None
    """The time that it had used at its last sample."""

    def count_activity(self, thread: ThreadSnapshot, age_ns: int | None) -> tuple[int, int]:
        """Return the sample's state and processor time, and add them.

        Args:
            thread: the new copy.
            age_ns: nanoseconds since the tick before; None for the first one.
        """
        last, now = self.last_cpu_ns, thread.cpu_ns
        self.last_cpu_ns = now
        state = UNKNOWN if thread.state is None else STATES.index(thread.state)
        if state != UNKNOWN:
            self.running = (self.running or 0) + (state == RUNNING)
        used = UNKNOWN
        if now is not None and last is not None and now >= last:
            used = now - last
        elif now is not None and last is None and age_ns is not None and now <= age_ns:
            used = now  # it started since the last tick
        if now is not None:
            self.cpu_ns = (self.cpu_ns or 0) + max(0, used)
        return state, used

    def has_moved(self, thread: ThreadSnapshot, images: ImageList, python: PythonRuns) -> bool:
        """Return whether registers, stack, images or Python functions differ from the last copy."""
        last = self.last
        return (
            last is None
            or self.images is not images
            or last.registers != thread.registers
            or last.stack.start != thread.stack.start
            or last.stack.data != thread.stack.data
            or self.python != python
        )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A queued snapshot."""

    snapshot: Snapshot
    """The threads that moved; its memory has the stacks of all."""
    python: Mapping[ThreadId, PythonRuns]
    size: int
    """Approximate bytes."""


class SampleCollection:
    """Takes snapshots in sequence, and returns the samples when all are unwound.

    Args:
        stacks: unwinds them.
        holds_gil: whether only samples of threads that hold the interpreter lock are taken.
    """

    def __init__(self, stacks: SampledStacks, *, holds_gil: bool = False) -> None:
        self._stacks = stacks
        self._holds_gil = holds_gil
        self._threads: dict[ThreadId, ThreadSampling] = {}
        self._images: dict[BinaryImage, None] = {}
        self._last_images: ImageList | None = None
        self._problems: dict[tuple[ThreadId | None, str], Problem] = {}
        self._times = array("q")
        self._numbers = array("i")
        self._states = array("b")
        self._cpu_ns = array("q")
        self._walks = array("i")
        """The number of each sample's walk."""
        self._begun = 0
        """The number of walks that were numbered."""
        self._rows = array("i")
        """The stack's row of each finished walk."""
        self._last_ns = 0
        """The time of the last tick."""
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self.stopped_ns = 0
        """Nanoseconds that threads were suspended for, all copies together."""
        self.timed_copies = 0
        """Copies whose time is known."""

    def __len__(self) -> int:
        return len(self._times)

    @property
    def is_full(self) -> bool:
        """Whether no more samples should be added."""
        return len(self._times) >= MAX_SAMPLES or self._stacks.rows.is_full

    @property
    def should_walk(self) -> bool:
        """Whether the queue is more than half full."""
        return self._waiting_bytes > MAX_WAITING // 2

    def add(
        self,
        snapshot: Snapshot,
        time_ns: int,
        python: Mapping[ThreadId, PythonRuns] | None = None,
    ) -> None:
        """Add a snapshot.

        Args:
            snapshot: the sampled threads.
            time_ns: its start, in nanoseconds since sampling began.
            python: the Python functions of its threads, where known.
        """
        python = python or {}
        if snapshot.images is not self._last_images:
            self._last_images = snapshot.images
            self._images.update(dict.fromkeys(snapshot.images))
        for problem in snapshot.problems:
            self.miss(problem)
        age_ns = time_ns - self._last_ns if self._times else None
        self._last_ns = time_ns
        threads = snapshot.threads
        if self._holds_gil:
            threads = tuple(thread for thread in threads if thread.info.gil is GilState.HOLDS)
        if self._stacks.python_only:
            threads = tuple(thread for thread in threads if python.get(thread.info.id))
        moved = tuple(
            thread
            for thread in threads
            if self._sample(thread, snapshot.images, time_ns, age_ns, python.get(thread.info.id))
        )
        if moved and self._stacks.python_only:
            self._rows.extend(
                map(self._stacks.python_row, (python[thread.info.id] for thread in moved))
            )
        elif moved:
            size = _SNAPSHOT_SIZE + sum(len(thread.stack.data) for thread in snapshot.threads)
            changed = replace(snapshot, threads=moved, problems=())
            self._waiting.append(_Waiting(changed, python, size))
            self._waiting_bytes += size
            while self._waiting_bytes > MAX_WAITING:
                self.walk_oldest()

    def miss(self, problem: Problem) -> None:
        """Record a problem once; threads that exited are not problems."""
        if isinstance(problem.error, ThreadGoneError) or len(self._problems) >= _MAX_PROBLEMS:
            return
        self._problems.setdefault((problem.thread, str(problem.error)), problem)

    def _sample(
        self,
        thread: ThreadSnapshot,
        images: ImageList,
        time_ns: int,
        age_ns: int | None,
        python: PythonRuns,
    ) -> bool:
        """Add a sample, and return whether its stack must be unwound."""
        info = thread.info
        seen = self._threads.get(info.id)
        if seen is None:
            seen = self._threads[info.id] = ThreadSampling(len(self._threads), info)
        seen.info = info
        seen.samples += 1
        stopped = thread.stopped_for_ns
        if stopped is not None:
            self.stopped_ns += stopped
            self.timed_copies += 1
            seen.stopped_ns = stopped + (seen.stopped_ns or 0)
            seen.longest_stop_ns = max(stopped, seen.longest_stop_ns or 0)
        if self._stacks.python_only:
            has_moved = seen.last is None or seen.python != python
        else:
            has_moved = seen.has_moved(thread, images, python)
        if has_moved:
            seen.walk = self._begun
            seen.last, seen.images, seen.python = thread, images, python
            self._begun += 1
        state, cpu_ns = seen.count_activity(thread, age_ns)
        self._states.append(state)
        self._cpu_ns.append(cpu_ns)
        self._times.append(time_ns)
        self._numbers.append(seen.number)
        self._walks.append(seen.walk)
        return has_moved

    def walk_oldest(self) -> None:
        """Unwind the oldest snapshot of the queue."""
        oldest = self._waiting.popleft()
        self._waiting_bytes -= oldest.size
        rows, problems = self._stacks.walk(oldest.snapshot, oldest.python)
        self._rows.extend(rows)
        for problem in problems:
            self.miss(problem)

    def samples(self) -> SampleTable:
        """Unwind the rest of the queue, and return all samples."""
        while self._waiting:
            self.walk_oldest()
        stacks = array("i", (self._rows[walk] for walk in self._walks))
        weights = array("q", [1]) * len(stacks)
        return SampleTable(self._times, self._numbers, stacks, weights, self._states, self._cpu_ns)

    @property
    def threads(self) -> tuple[SampledThread, ...]:
        """All threads that were sampled."""
        return tuple(
            SampledThread(
                info=seen.info,
                samples=seen.samples,
                stopped_ns=seen.stopped_ns,
                longest_stop_ns=seen.longest_stop_ns,
                running=seen.running,
                cpu_ns=seen.cpu_ns,
            )
            for seen in self._threads.values()
        )

    @property
    def images(self) -> tuple[BinaryImage, ...]:
        """The images that were loaded at any time, by load address."""
        return tuple(sorted(self._images, key=lambda image: image.load_address))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The parts that are missing, and why, each once."""
        return tuple(self._problems.values())
