"""Captures of all threads of this process at a rate, whatever its Python threads do meanwhile.

A thread of the extension captures; it needs neither the interpreter's lock nor any other of the
process. What it captured is taken, and made into snapshots, when a Python thread has its turn.

Importing this raises ImportError where the package was installed without its extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from struct import Struct

from machtrace._native import _inprocess
from machtrace.errors import TargetError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    FileMapping,
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
    ThreadState,
)
from machtrace.model.text import counted
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.inprocess.copier import begin_error, wanted_signal
from machtrace.targets.inprocess.memory import MappedFilesMemory
from machtrace.targets.inprocess.records import RecordedCapture, RecordReader
from machtrace.targets.linux.capture import why_not
from machtrace.targets.linux.core_facts import GatheredFacts
from machtrace.targets.linux.images import ImageFinder, LoadedImages, with_earlier
from machtrace.targets.linux.process import snapshot_of
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping, parse_maps
from machtrace.targets.shared.thread_copy import (
    CapturedThreads,
    CopiedRow,
    CopiedThread,
    copy_of_row,
)

ANSWER_LIMIT_NS = 100_000_000
"""How long a thread may take to answer: no other capture is made meanwhile."""

SLEEP_LIMIT_NS = 2_000_000
"""The same of one in uninterruptible sleep, such as who waits for a child that vfork made."""

_WAITING = Struct("=QQ")
"""The registers of a thread that was copied while it waited: sp and pc."""

_MAX_HZ = 100_000

_REMEMBERED = 16
"""Sets of images; at the limit the one that came first is forgotten."""


@dataclass(frozen=True, slots=True)
class SeriesCounts:
    """Counts of the captures that were due so far, by result."""

    captures: int
    """Made, and taken or waiting to be taken."""
    late: int
    """Not made, since the one before was not done yet."""
    lost: int
    """Made, but there was no room: what was captured earlier had not been taken."""
    refused: int
    """Not made, for another reason, such as that no signal can be had any more."""


@dataclass(frozen=True, slots=True)
class SeriesCapture:
    """All threads at one time; the thread that captures is not among them."""

    tick: int
    """How many intervals after the first capture it was due."""
    began_ns: int
    """``CLOCK_MONOTONIC``, when the first thread's stop was requested."""
    ended_ns: int
    """When the last one was copied or given up."""
    images_changed: bool
    """Whether images came or went meanwhile: what was there neither before nor after is missing."""
    snapshot: Snapshot


class CaptureSeries(ClosedWhenLeft):
    """Captures all threads of this process at a rate until it is closed.

    To be had by :meth:`machtrace.targets.inprocess.linux.SelfTarget.series`.

    Raises:
        TargetError: no signal can be had, there is no memory or thread to begin, or a number is
            none that can be.
    """

    def __init__(
        self,
        hz: float,
        snapshots: SnapshotMaker,
        *,
        stack_limit: int,
        room: int,
        together: bool,
    ) -> None:
        if not 0 < hz <= _MAX_HZ:
            raise TargetError(
                f"invalid rate: {hz} captures per second",
                remedy=f"pass a rate above 0 and at most {_MAX_HZ}",
            )
        self._records = RecordReader()
        self._snapshots = snapshots
        wanted = wanted_signal()
        try:
            self._series = _inprocess.Series(
                round(1_000_000_000 / hz),
                stack_limit,
                ANSWER_LIMIT_NS,
                SLEEP_LIMIT_NS,
                wanted,
                together,
                room,
            )
        except (OSError, MemoryError, ValueError, OverflowError) as error:
            raise begin_error(error, wanted) from error

    @property
    def counts(self) -> SeriesCounts:
        """Counts of the captures so far, by result."""
        return SeriesCounts(*self._series.counts()[:4])

    def take(self) -> Iterator[SeriesCapture]:
        """Yield the captures not taken yet, the oldest first; each is built on request.

        Threads have the names that they have then; those that have ended by then have none.

        Raises:
            TargetError: the target that this came from was closed.
        """
        return map(self._snapshots.make, self._records.read(self.take_records()))

    def take_records(self, most: int = -1) -> bytes:
        """Return the captures as bytes, for a :class:`RecordReader`, here or in another process.

        Args:
            most: how many bytes at most; all by default.
        """
        return self._series.take(most)

    def stop(self) -> None:
        """Capture no more. What was captured can be taken still; twice does nothing more."""
        self._series.stop()

    def close(self) -> None:
        """See :meth:`stop`."""
        self.stop()


class SnapshotMaker:
    """Makes snapshots of captures that were recorded, of this process or by it.

    Args:
        directory: of the process.
        process: which it is.
        memory: the process' memory as it is now, for what no file has.
        gathered: the facts that do not change, and what the loader keeps.
        name: what a thread is called; empty where it has no name, or is gone.
    """

    def __init__(
        self,
        directory: ProcessDirectory,
        process: ProcessInfo,
        memory: MemoryReader,
        gathered: GatheredFacts,
        name: Callable[[int], str],
    ) -> None:
        self._directory = directory
        self._process = process
        self._memory = memory
        self._gathered = gathered
        self._name = name
        self._finder = ImageFinder(directory)
        self._texts: tuple[str, ...] = ()
        self._bare: Snapshot | None = None
        self._known: dict[Hashable, Snapshot] = {}

    def make(self, recorded: RecordedCapture) -> SeriesCapture:
        """Build the snapshot of one capture."""
        if self._bare is None or recorded.mappings != self._texts:
            self._bare = self._without_threads(recorded.mappings)
            self._texts = recorded.mappings
        captured = CapturedThreads()
        for index, row in enumerate(recorded.threads, 1):
            info = ThreadInfo(
                id=ThreadId(row[0]),
                index=index,
                name=self._name(row[0]) or None,
                is_main=row[0] == self._directory.pid,
            )
            if len(row[4]) == _WAITING.size:
                captured.threads.append(self._waiting(info, row))
                continue
            copy = copy_of_row(row, since_ns=row[7])
            if isinstance(copy, CopiedThread):
                captured.keep(info, copy)
            else:
                captured.miss(info, why_not(self._directory, copy))
        if recorded.listed > len(recorded.threads):
            count = recorded.listed - len(recorded.threads)
            error = TargetError(
                f"{counted(count, 'thread')} not copied: too many exist",
                remedy="capture them with a snapshot",
            )
            captured.problems.append(Problem(thread=None, error=error))
        stacks = (*(thread.stack for thread in captured.threads), *captured.interrupted_stacks)
        snapshot = replace(
            self._bare,
            threads=tuple(captured.threads),
            memory=LayeredMemory((RegionMemory(stacks), self._bare.memory)),
            problems=tuple(captured.problems),
        )
        return SeriesCapture(
            tick=recorded.tick,
            began_ns=recorded.began_ns,
            ended_ns=recorded.ended_ns,
            images_changed=recorded.images_changed,
            snapshot=snapshot,
        )

    def _waiting(self, info: ThreadInfo, row: CopiedRow) -> ThreadSnapshot:
        """Return a thread that was copied while it waited in the kernel."""
        sp, pc = _WAITING.unpack(row[4])
        start, data = row[5][0]
        return ThreadSnapshot(
            info=info,
            registers=RegisterSet.of(self._process.arch, pc=pc, sp=sp),
            stack=MemoryRegion(Avma(start), data),
            taken_at_ns=row[7],
            state=ThreadState.SLEEPING,
        )

    def _without_threads(self, texts: Sequence[str]) -> Snapshot:
        """Build the common parts of all captures with the same mappings."""
        images = LoadedImages()
        mappings: tuple[Mapping, ...] = ()
        for text in texts:
            mappings = parse_maps(text[: text.rfind("\n") + 1], "/proc/self/maps")
            # An image may be gone by now, and something else be in its place.
            memory = LayeredMemory((MappedFilesMemory(mappings), self._memory))
            images = with_earlier(self._finder.find(mappings, memory), images)
        # The very same list of images is known again by those who walk.
        key = tuple((image.image, *(s.file.identity for s in image.segments)) for image in images)
        known = self._known.get(key)
        if known is None:
            files = tuple(
                FileMapping(m.start, m.end, m.offset, m.path) for m in mappings if m.is_file
            )
            facts = replace(self._gathered.facts, file_mappings=files)
            gathered = replace(self._gathered, facts=facts)
            known = snapshot_of(self._process, CapturedThreads(), images, gathered)
            while len(self._known) >= _REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[key] = known
        return known
