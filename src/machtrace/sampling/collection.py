"""What is kept of the snapshots of a process that is sampled, and how little of it.

A thread that waits has the same registers and stack at every tick: its stack is walked once. Other
stacks are walked when there is time, at the latest when no more of them may be kept.
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
from machtrace.model.profile import SampledThread, SampleTable
from machtrace.model.snapshot import Problem, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.sampling.stacks import SampledStacks

MOST_WAITING = 64 << 20
"""Bytes of snapshots whose stacks wait to be walked, at most."""

_SNAPSHOT_SIZE = 1 << 14
"""What one takes beside the stacks that were copied, about."""

MOST_SAMPLES = 1 << 24
"""Of all threads together: about half a GiB with all that belongs to them."""

_MOST_PROBLEMS = 1000


@dataclass(slots=True)
class _Seen:
    """A thread, as far as it was seen."""

    number: int
    info: ThreadInfo
    samples: int = 0
    stopped_ns: int | None = None
    longest_stop_ns: int | None = None
    last: ThreadSnapshot | None = None
    """Its newest copy of those that had to be walked."""
    images: ImageList | None = None
    python: PythonRuns = None
    walk: int = 0
    """The number of that copy's walk."""

    def is_elsewhere(self, thread: ThreadSnapshot, images: ImageList, python: PythonRuns) -> bool:
        """Whether it, or what called it, is not where it was."""
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
    """A snapshot whose stacks are not walked yet."""

    snapshot: Snapshot
    """Of the threads that are elsewhere than they were; its memory has the stacks of all."""
    python: Mapping[ThreadId, PythonRuns]
    size: int
    """Bytes that it takes."""


class SampleCollection:
    """Takes snapshots one after the other; gives the samples when all are walked."""

    def __init__(self, stacks: SampledStacks) -> None:
        self._stacks = stacks
        self._threads: dict[ThreadId, _Seen] = {}
        self._images: dict[BinaryImage, None] = {}
        self._last_images: ImageList | None = None
        self._problems: dict[tuple[ThreadId | None, str], Problem] = {}
        self._times = array("q")
        self._numbers = array("i")
        self._walks = array("i")
        """Of each sample the number of its stack's walk."""
        self._begun = 0
        """How many walks have a number."""
        self._rows = array("i")
        """Of each walk that was done the row of its stack."""
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self.stopped_ns = 0
        """For how long all copies together kept threads from running."""
        self.timed_copies = 0
        """Copies of which that is known."""

    def __len__(self) -> int:
        return len(self._times)

    @property
    def is_full(self) -> bool:
        """Whether no more should be added."""
        return len(self._times) >= MOST_SAMPLES or self._stacks.rows.is_full

    @property
    def should_walk(self) -> bool:
        """Whether so many stacks wait that there should be room made for more."""
        return self._waiting_bytes > MOST_WAITING // 2

    # --- taking in ---

    def add(
        self,
        snapshot: Snapshot,
        time_ns: int,
        python: Mapping[ThreadId, PythonRuns] | None = None,
    ) -> None:
        """Take in a snapshot.

        Args:
            snapshot: of the threads that are sampled.
            time_ns: when it was begun, in nanoseconds since sampling began.
            python: the Python functions that its threads were in, where they are known.
        """
        python = python or {}
        if snapshot.images is not self._last_images:
            self._last_images = snapshot.images
            self._images.update(dict.fromkeys(snapshot.images))
        for problem in snapshot.problems:
            self.miss(problem)
        elsewhere = tuple(
            thread
            for thread in snapshot.threads
            if self._sample(thread, snapshot.images, time_ns, python.get(thread.info.id))
        )
        if elsewhere:
            size = _SNAPSHOT_SIZE + sum(len(thread.stack.data) for thread in snapshot.threads)
            moved = replace(snapshot, threads=elsewhere, problems=())
            self._waiting.append(_Waiting(moved, python, size))
            self._waiting_bytes += size
            while self._waiting_bytes > MOST_WAITING:
                self.walk_oldest()

    def miss(self, problem: Problem) -> None:
        """Keep a problem, if it is not known already: threads come and go, and are not missed."""
        if isinstance(problem.error, ThreadGoneError) or len(self._problems) >= _MOST_PROBLEMS:
            return
        self._problems.setdefault((problem.thread, str(problem.error)), problem)

    def _sample(
        self, thread: ThreadSnapshot, images: ImageList, time_ns: int, python: PythonRuns
    ) -> bool:
        """Add a sample; whether its stack must be walked."""
        info = thread.info
        seen = self._threads.get(info.id)
        if seen is None:
            seen = self._threads[info.id] = _Seen(len(self._threads), info)
        seen.info = info
        seen.samples += 1
        stopped = thread.stopped_for_ns
        if stopped is not None:
            self.stopped_ns += stopped
            self.timed_copies += 1
            seen.stopped_ns = stopped + (seen.stopped_ns or 0)
            seen.longest_stop_ns = max(stopped, seen.longest_stop_ns or 0)
        is_elsewhere = seen.is_elsewhere(thread, images, python)
        if is_elsewhere:
            seen.walk = self._begun
            seen.last, seen.images, seen.python = thread, images, python
            self._begun += 1
        self._times.append(time_ns)
        self._numbers.append(seen.number)
        self._walks.append(seen.walk)
        return is_elsewhere

    def walk_oldest(self) -> None:
        """Walk the snapshot that has waited for longest."""
        oldest = self._waiting.popleft()
        self._waiting_bytes -= oldest.size
        rows, problems = self._stacks.walk(oldest.snapshot, oldest.python)
        self._rows.extend(rows)
        for problem in problems:
            self.miss(problem)

    # --- the result ---

    def samples(self) -> SampleTable:
        """All samples; what still waits is walked for that."""
        while self._waiting:
            self.walk_oldest()
        stacks = array("i", (self._rows[walk] for walk in self._walks))
        return SampleTable(self._times, self._numbers, stacks, array("q", [1]) * len(stacks))

    @property
    def threads(self) -> tuple[SampledThread, ...]:
        """All that were seen."""
        return tuple(
            SampledThread(
                info=one.info,
                samples=one.samples,
                stopped_ns=one.stopped_ns,
                longest_stop_ns=one.longest_stop_ns,
            )
            for one in self._threads.values()
        )

    @property
    def images(self) -> tuple[BinaryImage, ...]:
        """All that were loaded at any time, by load address."""
        return tuple(sorted(self._images, key=lambda image: image.load_address))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is missing, and why; the same once."""
        return tuple(self._problems.values())
