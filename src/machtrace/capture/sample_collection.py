"""What is kept of the snapshots of a process that is sampled, and how little of it.

A thread that waits has the same registers and stack at every tick: its stack is walked once. Other
stacks are walked when there is time, at the latest when no more of them may be kept.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from machtrace.capture.profile_frames import ProfileFrames
from machtrace.capture.stack_rows import StackRows
from machtrace.capture.unwinding import Unwinder
from machtrace.errors import ThreadGoneError
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.profile import MissingFrames, SampledThread, SampleTable
from machtrace.model.snapshot import Problem, Snapshot
from machtrace.model.stack import Gap, stretches
from machtrace.model.thread import ThreadId, ThreadInfo, ThreadSnapshot

MOST_WAITING = 64 << 20
"""Bytes of stacks that wait to be walked, at most."""

MOST_SAMPLES = 1 << 24
"""Of all threads together: about half a GiB with all that belongs to them."""

_MOST_PROBLEMS = 1000
_MOST_KEYS = 64 << 20
"""Bytes by which stacks are recognised that were met before; they are forgotten then."""


@dataclass(slots=True)
class _Seen:
    """A thread, as far as it was seen."""

    number: int
    info: ThreadInfo
    samples: int = 0
    stopped_ns: int | None = None
    longest_stop_ns: int | None = None
    last: ThreadSnapshot | None = None
    """Its newest copy, where that is still a reason not to walk the next."""
    images: ImageList | None = None
    walk: int = 0
    """The number of its newest walk."""


class SampleCollection:
    """Takes snapshots one after the other; gives the samples when all are walked."""

    def __init__(self, unwinder: Unwinder, *, limit: int) -> None:
        """``limit``: how many frames of a stack are kept at most."""
        self.frames = ProfileFrames()
        self.rows = StackRows()
        self._unwinder = unwinder
        self._limit = limit
        self._threads: dict[ThreadId, _Seen] = {}
        self._images: dict[BinaryImage, None] = {}
        self._last_images: ImageList | None = None
        self.stopped_ns = 0
        """For how long all copies together kept threads from running."""
        self.timed_copies = 0
        """Copies of which that is known."""
        self._problems: dict[tuple[ThreadId | None, str], Problem] = {}
        self._times = array("q")
        self._numbers = array("i")
        self._walks = array("i")
        self._waiting: deque[Snapshot] = deque()
        self._waiting_bytes = 0
        self._walked = array("i")
        """By number of walk, the row of its stack."""
        self._begun = 0
        """How many walks have a number."""
        self._known: dict[tuple[bytes, bytes, Gap | None, bool], int] = {}
        self._known_bytes = 0
        self._known_images: ImageList | None = None

    def __len__(self) -> int:
        return len(self._times)

    @property
    def is_full(self) -> bool:
        """Whether no more should be added."""
        return len(self._times) >= MOST_SAMPLES or self.rows.is_full

    @property
    def should_walk(self) -> bool:
        """Whether so many stacks wait that there should be room made for more."""
        return self._waiting_bytes > MOST_WAITING // 2

    # --- taking in ---

    def add(self, snapshot: Snapshot, time_ns: int) -> None:
        """Take in a snapshot of ``time_ns``, in nanoseconds since sampling began."""
        if snapshot.images is not self._last_images:
            self._last_images = snapshot.images
            self._images.update(dict.fromkeys(snapshot.images))
        for problem in snapshot.problems:
            self.miss(problem)
        changed = [one for one in snapshot.threads if self._sample(one, snapshot, time_ns)]
        if changed:
            self._waiting.append(replace(snapshot, threads=tuple(changed), problems=()))
            self._waiting_bytes += sum(len(one.stack.data) for one in changed)
            while self._waiting_bytes > MOST_WAITING:
                self.walk_oldest()

    def miss(self, problem: Problem) -> None:
        """Keep a problem, if it is not known already: threads come and go, and are not missed."""
        if isinstance(problem.error, ThreadGoneError) or len(self._problems) >= _MOST_PROBLEMS:
            return
        self._problems.setdefault((problem.thread, str(problem.error)), problem)

    def _sample(self, thread: ThreadSnapshot, snapshot: Snapshot, time_ns: int) -> bool:
        """Add a sample; whether the thread is elsewhere than it was, so that it must be walked."""
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
        changed = seen.images is not snapshot.images or not _stands_still(seen.last, thread)
        if changed:
            seen.walk = self._begun
            seen.last, seen.images = thread, snapshot.images
            self._begun += 1
        self._times.append(time_ns)
        self._numbers.append(seen.number)
        self._walks.append(seen.walk)
        return changed

    # --- walking ---

    def walk_oldest(self) -> None:
        """Walk the snapshot that has waited for longest."""
        snapshot = self._waiting.popleft()
        self._waiting_bytes -= sum(len(one.stack.data) for one in snapshot.threads)
        columns = self._unwinder.columns([snapshot], limit=self._limit)
        if snapshot.images is not self._known_images or self._known_bytes > _MOST_KEYS:
            self._known, self._known_bytes = {}, 0
            self._known_images = snapshot.images
        starts = columns.starts.tolist()
        addresses, codes = columns.addresses.tobytes(), columns.codes.tobytes()
        for number in range(len(snapshot.threads)):
            begin, end = starts[number], starts[number + 1]
            gap, is_whole = columns.gaps.get(number), number not in columns.stops
            key = addresses[8 * begin : 8 * end], codes[begin:end], gap, is_whole
            row = self._known.get(key)
            if row is None:
                row = self._known[key] = self.rows.row(self._numbered(key, snapshot))
                self._known_bytes += 9 * (end - begin)
            self._walked.append(row)

    def _numbered(
        self, key: tuple[bytes, bytes, Gap | None, bool], snapshot: Snapshot
    ) -> Iterator[int]:
        """The numbers of a stack's frames, outermost first."""
        addresses, codes, gap, is_whole = key
        kept = list(zip(memoryview(addresses).cast("Q"), codes, strict=True))
        if not is_whole:
            yield self.frames.missing(MissingFrames.UNKNOWN_CALLERS)
        for at, (_, piece) in enumerate(reversed(list(stretches(kept, gap)))):
            if at:
                yield self.frames.missing(MissingFrames.LEFT_OUT)
            for address, code in reversed(piece):
                yield self.frames.number(address, code, snapshot)

    # --- the result ---

    def samples(self) -> SampleTable:
        """All samples, once nothing waits any more."""
        while self._waiting:
            self.walk_oldest()
        stacks = array("i", (self._walked[walk] for walk in self._walks))
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


def _stands_still(last: ThreadSnapshot | None, thread: ThreadSnapshot) -> bool:
    """Whether a thread is where it was when it was copied before, and so is all that called it."""
    return (
        last is not None
        and last.registers == thread.registers
        and last.stack.start == thread.stack.start
        and last.stack.data == thread.stack.data
    )
