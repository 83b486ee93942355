"""The stacks of reports as profiles, so that the same writers serve both."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from machtrace.model.image import BinaryImage
from machtrace.model.profile import (
    OUTERMOST,
    STATES,
    UNKNOWN,
    MissingFrames,
    Profile,
    ProfileFrame,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.report import (
    Report,
    ReportedFrame,
    ReportedTask,
    ReportKind,
    SampledTree,
)
from machtrace.model.snapshot import ThreadId, ThreadInfo
from machtrace.model.symbol import PythonFrame, SourceLocation
from machtrace.reports.stacks.captures import (
    IS_MAIN,
    RUN,
    SAMPLES,
    STOPPED,
    STOPPED_MAX,
    ReportedFrames,
    activity_values,
    problems_of,
    process_info,
    stored,
    tasks_of,
    thread_info,
    thread_stack,
)

PYTHON_IMAGE = "Python"
"""The image of Python's functions in machtrace's texts, which have no address."""
_MISSING = {f"[{member.value}]": member for member in MissingFrames}
_MAX_PARTS = 64
"""Calls of a frame that are joined into one; more are frames of their own."""
INTERVAL_NS = 1_000_000
"""A sample's duration if the report has none: ``sample`` takes one a millisecond."""
_MAX_ROWS = 2_000_000
"""Maximum rows made from inverted trees."""


def profile_of(report: Report) -> Profile:
    """Return all stacks of the report as a profile, those of its other processes too.

    Threads and their trees become the profile's threads. Stacks of inverted trees are limited to
    two million frames. A watcher's samples, and the calls of a spool, stand for their report: the
    other stacks, of one moment, have no duration.
    """
    if report.kind is ReportKind.SPOOL or (report.watch is not None and report.trees):
        report = replace(report, threads=())
    builder = ProfileBuilder()
    for task in tasks_of(report):
        frames = ReportedFrames(task)
        builder.images += frames.images
        for thread in task.threads:
            builder.begin(_sampled(thread_info(thread), 1))
            row = OUTERMOST
            for frame in reversed(thread_stack(thread, frames).frames):
                row = builder.call(row, frame)
            builder.sample(row, 1)
        columns = _sample_columns(report) if task is report and not task.threads else None
        if columns is not None:
            _add_samples(task, frames, columns, builder)
            continue
        for number, tree in enumerate(task.trees):
            builder.begin(_tree_thread(tree, number))
            for row, weight in (
                _inverted(tree, frames, builder)
                if tree.is_inverted
                else _TreeRows(tree, task, frames, builder).ends()
            ):
                builder.sample(row, weight)
    return Profile(
        process=process_info(report),
        images=tuple(dict.fromkeys(image for image in builder.images if image.size)),
        threads=tuple(builder.threads),
        frames=tuple(builder.frames),
        stacks=StackTable(builder.callers, builder.frame_of_row),
        samples=builder.samples,
        run=sampling_run(report),
        problems=problems_of(report),
    )


def _sampled(thread: ThreadInfo, samples: int) -> SampledThread:
    return SampledThread(info=thread, samples=samples, stopped_ns=None, longest_stop_ns=None)


def _tree_thread(tree: SampledTree, number: int) -> SampledThread:
    info = ThreadInfo(
        id=ThreadId(number if tree.thread is None else tree.thread),
        index=number + 1,
        name=tree.name,
        queue=tree.queue,
        is_main=tree.details.get(IS_MAIN) is True,
        crashed=tree.is_attributed,
    )
    count = max(1, tree.root_samples) if tree.count is None else tree.count

    stopped, longest = tree.details.get(STOPPED), tree.details.get(STOPPED_MAX)
    activity = activity_values(tree.details)
    return SampledThread(
        info=info,
        samples=count,
        stopped_ns=stopped if type(stopped) is int else None,
        longest_stop_ns=longest if type(longest) is int else None,
        running=activity["running"],
        cpu_ns=activity["cpu_ns"],
        left_out=activity["left_out"] or 0,
        merged=activity["merged"],
    )


_Columns = Mapping[str, Sequence[int]]


def _sample_columns(report: Report) -> _Columns | None:
    """Return the columns of samples in a report's details; None if they are absent or invalid.

    ``times_ns``, ``threads`` (indices of trees), ``frames`` (where a stack ends: the number of a
    node of the tree, inlined calls not counted, or -1) and ``weights``, all of one length; and
    ``states`` and ``cpu_ns`` if known, as :class:`SampleTable` has them.
    """
    value = report.details.get(SAMPLES)
    if not isinstance(value, dict):
        return None
    columns: dict[str, list[int]] = {}
    for name in _COLUMNS:
        column = value.get(name)
        if column is None and name in _OPTIONAL:
            column = [UNKNOWN] * len(columns["times_ns"])
        if not isinstance(column, list) or not all(type(one) is int for one in column):
            return None
        columns[name] = column  # type: ignore[assignment]  # all are integers
    if len({len(column) for column in columns.values()}) != 1:
        return None
    counts = [sum(not node.frame.is_inline for node in tree.nodes) for tree in report.trees]
    for time, thread, frame, weight, state, cpu_ns in zip(*columns.values(), strict=True):
        is_valid = 0 <= thread < len(counts) and OUTERMOST <= frame < counts[thread]
        is_known = UNKNOWN <= state < len(STATES) and UNKNOWN <= cpu_ns < _MAX_NS
        if not is_valid or not is_known or not 0 <= time < _WORD or not 0 <= weight < _WORD:
            return None
    return columns


_WORD = 1 << 62
_MAX_NS = 1 << 48
"""Processor time of one sample: three days."""
_OPTIONAL = "states", "cpu_ns"
_COLUMNS = "times_ns", "threads", "frames", "weights", *_OPTIONAL


def _add_samples(
    task: ReportedTask, frames: ReportedFrames, columns: _Columns, builder: ProfileBuilder
) -> None:
    """Add samples in their order, so that stacks get the order in which they were first seen."""
    rows = [_TreeRows(tree, task, frames, builder) for tree in task.trees]
    innermost = [tree_rows.innermost() for tree_rows in rows]
    for number, tree in enumerate(task.trees):
        builder.threads.append(_tree_thread(tree, number))
    for time, thread, frame, weight, state, cpu_ns in zip(*columns.values(), strict=True):
        row = OUTERMOST if frame == OUTERMOST else rows[thread].row(innermost[thread][frame])
        builder.samples.append(time, thread, row, weight, state, cpu_ns)


class _TreeRows:
    """The rows of a tree's nodes, created when they are needed.

    A call inlined into a frame, and a Python function that it runs, are nodes below the frame's;
    they become parts of one frame.
    """

    def __init__(
        self,
        tree: SampledTree,
        task: ReportedTask,
        frames: ReportedFrames,
        builder: ProfileBuilder,
    ) -> None:
        self._tree, self._frames, self._builder = tree, frames, builder
        self._rows: dict[int, int] = {}
        self._python = {
            index for index, image in enumerate(task.images) if image.name == PYTHON_IMAGE
        }
        self._parts: list[tuple[int, ...]] = []
        """The parts of a node's frame, itself last; empty for a frame."""
        self._holders: list[int] = []
        for index, node in enumerate(tree.nodes):
            parent = node.parent
            parts = () if parent is None else self._parts[parent]
            if parent is None or not self._is_part(node.frame) or len(parts) >= _MAX_PARTS:
                self._holders.append(index)
                self._parts.append(())
            else:
                self._holders.append(self._holders[parent])
                self._parts.append((*parts, index))

    def _is_part(self, frame: ReportedFrame) -> bool:
        return frame.is_inline or (frame.image in self._python and frame.address is None)

    def innermost(self) -> list[int]:
        """Return the last node of each frame's, frames in their order."""
        nodes: list[int] = []
        numbers: dict[int, int] = {}
        for index, node in enumerate(self._tree.nodes):
            if not node.frame.is_inline:
                numbers[index] = len(nodes)
                nodes.append(index)
            elif self._holders[index] in numbers:
                nodes[numbers[self._holders[index]]] = index
        return nodes

    def ends(self) -> Iterator[tuple[int, int]]:
        """Yield where the stacks of the tree end, with their weights."""
        for index, own in enumerate(_own(self._tree)):
            if own:
                yield self.row(index), own

    def row(self, index: int) -> int:
        """Return the row of a node, with those of its callers."""
        path = []
        at: int | None = index
        while at is not None and at not in self._rows:
            path.append(at)
            at = self._tree.nodes[self._holders[at]].parent
        row = OUTERMOST if at is None else self._rows[at]
        rows = self._builder.calls(row, [self._frame(node) for node in path])
        for node, of_node in zip(reversed(path), rows, strict=True):
            row = self._rows[node] = of_node
        return row

    def _frame(self, index: int) -> ProfileFrame:
        nodes = self._tree.nodes
        holder, parts = nodes[self._holders[index]].frame, self._parts[index]
        if holder.symbol is not None and holder.image is None and holder.address is None:
            missing = _MISSING.get(holder.symbol.name)
            if missing is not None:
                return missing
        called = [nodes[part].frame for part in reversed(parts)]
        python = tuple(
            PythonFrame(
                name="" if call.symbol is None else call.symbol.name,
                location=call.location or SourceLocation(""),
            )
            for call in called
            if not call.is_inline
        )
        inlined = [call for call in called if call.is_inline]
        if inlined and inlined[0].address is not None:
            holder = _moved(holder, inlined[0].address - (holder.address or 0))
        return self._frames.frame(holder, inlined, python, is_first=True)


def _moved(frame: ReportedFrame, distance: int) -> ReportedFrame:
    """Return the frame at another address of its function, which ``sample`` joins in one line."""
    if not distance or frame.address is None:
        return frame
    symbol, offset = frame.symbol, frame.offset
    if symbol is not None and symbol.offset is not None:
        symbol = symbol._replace(offset=symbol.offset + distance)
    if offset is not None:
        offset = type(offset)(offset + distance)
    address = type(frame.address)(frame.address + distance)
    return frame._replace(address=address, offset=offset, symbol=symbol)


_ANALYSIS = re.compile(
    r"^Analysis of sampling .{0,4096} every (?P<number>[0-9]{1,9}(?:\.[0-9]{1,6})?) "
    r"(?P<unit>micro|milli|)seconds?$",
    re.MULTILINE,
)
_SAMPLED = re.compile(
    r"(?P<ticks>[0-9]{1,15}) times? in (?P<seconds>[0-9]{1,12}\.[0-9]{3}) s, "
    r"(?P<lost>[0-9]{1,15}) lost"
)
_UNITS = {"micro": 1_000, "milli": 1_000_000, "": 1_000_000_000}


def sampling_run(report: Report) -> SamplingRun:
    """Return how the process was sampled, as far as the report states it.

    The threads were sampled at the same time: the one with the most samples sets the number of
    ticks, which is 0 without sampled trees.
    """
    run = stored(report.details, RUN, SamplingRun)
    if run is not None:
        return run
    counts = [
        tree.root_samples if tree.count is None else tree.count
        for task in tasks_of(report)
        for tree in task.trees
    ]
    interval, ticks, lost = INTERVAL_NS, max(counts, default=0), 0
    prelude, sampled = report.details.get(""), report.details.get("Sampled")
    every = _ANALYSIS.search(prelude) if isinstance(prelude, str) else None
    if every is not None:
        interval = max(1, round(float(every["number"]) * _UNITS[every["unit"]]))
    duration = max(1, ticks) * interval
    stated = _SAMPLED.fullmatch(sampled) if isinstance(sampled, str) else None
    if stated is not None:
        ticks, lost = int(stated["ticks"]), int(stated["lost"])
        duration = max(1, round(float(stated["seconds"]) * _UNITS[""]))
    return SamplingRun(
        started_at_ns=_nanoseconds(report.incident.time),
        duration_ns=duration,
        interval_ns=interval,
        ticks=ticks,
        lost=lost,
        end=SamplingEnd.DURATION,
    )


def _nanoseconds(time: str | None) -> int:
    """Return a time as nanoseconds since 1970; 0 if it is unknown or has no zone."""
    try:
        when = datetime.strptime(time or "", "%Y-%m-%d %H:%M:%S.%f %z")
    except ValueError:
        return 0
    return max(0, round(when.timestamp() * 1_000_000) * 1_000)


def _own(tree: SampledTree) -> list[int]:
    """Return each node's samples that went through none of its children."""
    own = [node.samples for node in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            own[node.parent] -= node.samples
    return [max(0, one) for one in own]


class ProfileBuilder:
    """A profile's columns under construction."""

    def __init__(self) -> None:
        self.images: list[BinaryImage] = []
        self.threads: list[SampledThread] = []
        self.frames: list[ProfileFrame] = []
        self.callers, self.frame_of_row = array("i"), array("i")
        self.samples = SampleTable(array("q"), array("i"), array("i"), array("q"))
        self._numbers: dict[ProfileFrame, int] = {}
        self._rows: dict[tuple[int, int], int] = {}

    def begin(self, thread: SampledThread) -> None:
        """Begin a thread, to which the following rows belong."""
        self.threads.append(thread)

    def number(self, frame: ProfileFrame) -> int:
        """Return the number of ``frame``; a new one gets the next."""
        number = self._numbers.setdefault(frame, len(self.frames))
        if number == len(self.frames):
            self.frames.append(frame)
        return number

    def calls(self, caller: int, frames: Sequence[ProfileFrame]) -> list[int]:
        """Return the rows of frames that call one another from row ``caller``, innermost first.

        Frames are numbered innermost first, as in sampling: a profile comes back as it was.
        """
        for frame in frames:
            self.number(frame)
        rows: list[int] = []
        for frame in reversed(frames):
            caller = self.call(caller, frame)
            rows.append(caller)
        return rows

    def call(self, caller: int, frame: ProfileFrame) -> int:
        """Return the row of ``frame`` called from row ``caller``."""
        number = self.number(frame)
        key = (caller, number)
        row = self._rows.setdefault(key, len(self.callers))
        if row == len(self.callers):
            self.callers.append(caller)
            self.frame_of_row.append(number)
        return row

    def sample(self, row: int, weight: int) -> None:
        """Add a stack of the current thread."""
        if row == OUTERMOST or weight <= 0:
            return
        self.samples.append(0, len(self.threads) - 1, row, min(weight, 1 << 62))


def _inverted(
    tree: SampledTree, task_frames: ReportedFrames, builder: ProfileBuilder
) -> Iterator[tuple[int, int]]:
    """Yield where stacks end whose innermost frames are roots: one for each of the tree's ends."""
    room = _MAX_ROWS
    frames = [task_frames.frame(node.frame) for node in tree.nodes]
    for index, own in enumerate(_own(tree)):
        if not own:
            continue
        # A node of an inverted tree is outermost in its own stack, and the root innermost.
        row, at = OUTERMOST, index
        while True:
            row = builder.call(row, frames[at])
            room -= 1
            parent = tree.nodes[at].parent
            if parent is None:
                break
            at = parent
        yield row, own
        if room < 0:
            return
