"""The stacks of a report as a profile: a sample of each thread, and the samples of its trees."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from machtrace.reports.analysis.reported_capture import tasks_of, thread_info
from machtrace.reports.analysis.reported_frames import ReportedFrames, process_info
from machtrace.model.image import BinaryImage
from machtrace.model.profile import (
    OUTERMOST,
    Profile,
    ProfileFrame,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.report import Report
from machtrace.model.reported_tree import SampledTree
from machtrace.model.symbol import Frame
from machtrace.model.thread import ThreadId, ThreadInfo

_INTERVAL_NS = 1_000_000
"""What a sample stands for where the report does not say: ``sample`` takes one a millisecond."""
_LONGEST = 2_000_000
"""Rows that inverted trees are turned round to at most."""


def profile_of(report: Report) -> Profile:
    """All stacks of the report, those of its other processes too.

    Threads and the trees of threads become the profile's threads. Of a tree that is inverted as
    many stacks are kept as have two million frames.
    """
    making = _Making()
    for task in tasks_of(report):
        frames = ReportedFrames(task)
        making.images += frames.images
        for thread in task.threads:
            making.begin(thread_info(thread), 1)
            row = OUTERMOST
            for frame in reversed(list(frames.stack(thread.frames))):
                row = making.call(row, frame)
            making.sample(row, 1)
        for number, tree in enumerate(task.trees):
            making.begin(_tree_thread(tree, number), max(1, tree.count or _whole(tree)))
            made = [frames.frame(node.frame) for node in tree.nodes]
            for row, weight in (
                _inverted(tree, made, making) if tree.is_inverted else _rows(tree, made, making)
            ):
                making.sample(row, weight)
    return Profile(
        process=process_info(report),
        images=tuple(dict.fromkeys(image for image in making.images if image.size)),
        threads=tuple(making.threads),
        frames=tuple(making.frames),
        stacks=StackTable(making.callers, making.frame_of_row),
        samples=making.samples,
        run=SamplingRun(
            started_at_ns=0,
            duration_ns=max(1, sum(making.samples.weights) * _INTERVAL_NS),
            interval_ns=_INTERVAL_NS,
            ticks=1,
            lost=0,
            end=SamplingEnd.DURATION,
        ),
    )


def _tree_thread(tree: SampledTree, number: int) -> ThreadInfo:
    return ThreadInfo(
        id=ThreadId(number if tree.thread is None else tree.thread),
        index=number + 1,
        name=tree.name,
        queue=tree.queue,
        crashed=tree.is_attributed,
    )


def _whole(tree: SampledTree) -> int:
    return sum(node.samples for node in tree.nodes if node.parent is None)


def _own(tree: SampledTree) -> list[int]:
    """Of each node the samples that went through none of those in it."""
    own = [node.samples for node in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            own[node.parent] -= node.samples
    return [max(0, one) for one in own]


class _Making:
    """A profile's columns while they are made."""

    def __init__(self) -> None:
        self.images: list[BinaryImage] = []
        self.threads: list[SampledThread] = []
        self.frames: list[ProfileFrame] = []
        self.callers, self.frame_of_row = array("i"), array("i")
        self.samples = SampleTable(array("q"), array("i"), array("i"), array("q"))
        self._numbers: dict[Frame, int] = {}
        self._rows: dict[tuple[int, int], int] = {}

    def begin(self, thread: ThreadInfo, samples: int) -> None:
        """What follows is of this thread."""
        self.threads.append(
            SampledThread(info=thread, samples=samples, stopped_ns=None, longest_stop_ns=None)
        )

    def call(self, caller: int, frame: Frame) -> int:
        """The row of a frame that a row calls."""
        number = self._numbers.setdefault(frame, len(self.frames))
        if number == len(self.frames):
            self.frames.append(frame)
        key = (caller, number)
        row = self._rows.setdefault(key, len(self.callers))
        if row == len(self.callers):
            self.callers.append(caller)
            self.frame_of_row.append(number)
        return row

    def sample(self, row: int, weight: int) -> None:
        """A stack of the thread that was begun last."""
        if row == OUTERMOST or weight <= 0:
            return
        self.samples.times_ns.append(0)
        self.samples.threads.append(len(self.threads) - 1)
        self.samples.stacks.append(row)
        self.samples.weights.append(min(weight, 1 << 62))


def _rows(tree: SampledTree, frames: list[Frame], making: _Making) -> Iterator[tuple[int, int]]:
    """Where the stacks of a tree end, and how many do."""
    rows: list[int] = []
    for node, frame, own in zip(tree.nodes, frames, _own(tree), strict=True):
        rows.append(making.call(OUTERMOST if node.parent is None else rows[node.parent], frame))
        yield rows[-1], own


def _inverted(tree: SampledTree, frames: list[Frame], making: _Making) -> Iterator[tuple[int, int]]:
    """The same of a tree whose roots are innermost: a stack for each place where one ends."""
    room = _LONGEST
    for index, own in enumerate(_own(tree)):
        if not own:
            continue
        row, at = OUTERMOST, index
        while True:
            row = making.call(row, frames[at])
            room -= 1
            parent = tree.nodes[at].parent
            if parent is None:
                break
            at = parent
        yield row, own
        if room < 0:
            return
