"""Stacks of reports as captures and profiles, so that the same writers serve both."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
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
from machtrace.model.report import (
    Adjustment,
    NameSource,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedTask,
    ReportedThread,
    SampledTree,
)
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.model.symbol import CallStack, Certainty, Frame, FrameStatus, InlineFrame, Symbol

_ARCHES = {arch.value: arch for arch in Arch}
_CODE_TYPES = {
    "ARM-64": Arch.ARM64,
    "ARM": Arch.ARMV7,
    "X86-64": Arch.X86_64,
    "X86": Arch.I386,
    "ARM64": Arch.ARM64,
}
_KINDS = {
    Adjustment.EXACT: AddressKind.PROGRAM_COUNTER,
    Adjustment.RETURN: AddressKind.RETURN_ADDRESS,
    Adjustment.ALREADY_ADJUSTED: AddressKind.ADJUSTED,
    Adjustment.UNKNOWN: AddressKind.ADJUSTED,
}
_LONGEST_PATH = 4096
"""Characters; the name is repeated for each frame, and no system has longer ones."""
_CERTAINTIES = {certainty.value: certainty for certainty in Certainty}


def process_info(task: ReportedTask) -> ProcessInfo:
    """Return the process; its architecture is its code's, else its images', else arm64."""
    process = task.process
    code_type = (process.code_type or "").split(" ")[0]
    arch = _ARCHES.get(code_type) or _CODE_TYPES.get(code_type.upper())
    if arch is None:
        known = (_ARCHES.get(image.arch or "") for image in task.images)
        arch = next((one for one in known if one is not None), Arch.ARM64)
    return ProcessInfo(pid=process.pid, path=process.path or process.name or "", arch=arch)


class ReportedFrames:
    """Converts the frames of one task."""

    def __init__(self, task: ReportedTask) -> None:
        self._arch = process_info(task).arch
        self.images = tuple(self._image(image) for image in task.images)
        """In the task's order; an image with an unknown address is at 0."""

    def _image(self, image: ReportedImage) -> BinaryImage:
        return BinaryImage(
            path=(image.path or image.name)[:_LONGEST_PATH],
            uuid=image.uuid,
            arch=_ARCHES.get(image.arch or "", self._arch),
            format=ImageFormat.identified_by(image.uuid),
            load_address=image.load_address or Avma(0),
            header_svma=Svma(0),
            size=image.size or 0,
        )

    def stack(self, frames: Iterable[ReportedFrame]) -> Iterator[Frame]:
        """Convert a thread's stack; inlined calls go into the frame that holds them."""
        inlined: list[ReportedFrame] = []
        for frame in frames:
            if frame.is_inline:
                inlined.append(frame)
            else:
                yield self.frame(frame, inlined)
                inlined = []
        yield from (self.frame(frame) for frame in inlined)

    def frame(self, frame: ReportedFrame, inlined: Sequence[ReportedFrame] = ()) -> Frame:
        """Convert one frame, and the calls inlined into it, innermost first."""
        image = None if frame.image is None else self.images[frame.image]
        address = frame.address
        if frame.offset is not None and image is not None:
            # Frames of several launches have different addresses; only the offset is reliable.
            address = Avma(image.load_address + frame.offset)
        address = Avma(0) if address is None else address
        symbol = self._symbol(frame, image, address)
        if image is None:
            status = FrameStatus.UNKNOWN_IMAGE
        else:
            status = FrameStatus.NOT_ASKED if symbol is None else FrameStatus.SYMBOLICATED
        return Frame(
            address=FrameAddress(address, FrameTrust.PREWALKED, _KINDS[frame.adjustment]),
            status=status,
            image=image,
            symbol=symbol,
            location=frame.location,
            inlined=tuple(
                InlineFrame("" if one.symbol is None else one.symbol.name, one.location)
                for one in inlined
            ),
        )

    def _symbol(
        self, frame: ReportedFrame, image: BinaryImage | None, address: Avma
    ) -> Symbol | None:
        if frame.symbol is None:
            return None
        place = address if image is None else image.offset_of(address)
        source = frame.symbol.source
        exact = source in (NameSource.REPORT, NameSource.DEBUG_INFORMATION)
        return Symbol(
            name=frame.symbol.name,
            linkage_name="",
            offset=ImageOffset(place - (frame.symbol.offset or 0)),
            size=None,
            certainty=Certainty.EXACT if exact else _CERTAINTIES[source.value],
        )


def capture_of(report: Report) -> Capture:
    """Return the stacks of the report's process: its threads', then an exception's.

    Sampled trees cover many moments and are left out.
    """
    frames = ReportedFrames(report)
    stacks = [thread_stack(thread, frames) for thread in report.threads]
    exception = report.language_exception
    if exception is not None and exception.frames:
        stacks.append(
            CallStack(
                thread=ThreadInfo(
                    id=ThreadId(0), index=len(stacks) + 1, name="last exception backtrace"
                ),
                frames=tuple(frames.stack(exception.frames)),
                stop=Stop(StopReason.ROOT),
            )
        )
    return Capture(
        process=process_info(report),
        images=ImageList(image for image in frames.images if image.size),
        stacks=tuple(stacks),
    )


def thread_stack(thread: ReportedThread, frames: ReportedFrames) -> CallStack:
    """Return a thread's stack."""
    return CallStack(
        thread=thread_info(thread),
        frames=tuple(frames.stack(thread.frames)),
        stop=Stop(StopReason.ROOT),
    )


def thread_info(thread: ReportedThread) -> ThreadInfo:
    """Return the thread's identity; its number stands in for a missing id."""
    return ThreadInfo(
        id=ThreadId(thread.index if thread.id is None else thread.id),
        index=thread.index + 1,
        name=thread.name,
        queue=thread.queue,
        crashed=thread.crashed,
    )


def tasks_of(report: Report) -> tuple[ReportedTask, ...]:
    """Return the report's process and the others, as far as they have stacks."""
    return tuple(task for task in report.tasks if task.threads or task.trees)


_INTERVAL_NS = 1_000_000
"""A sample's duration if the report has none: ``sample`` takes one a millisecond."""
_LONGEST = 2_000_000
"""Maximum rows made from inverted trees."""


def profile_of(report: Report) -> Profile:
    """Return all stacks of the report as a profile, those of its other processes too.

    Threads and their trees become the profile's threads. Stacks of inverted trees are limited to
    two million frames.
    """
    builder = _ProfileBuilder()
    for task in tasks_of(report):
        frames = ReportedFrames(task)
        builder.images += frames.images
        for thread in task.threads:
            builder.begin(thread_info(thread), 1)
            row = OUTERMOST
            for frame in reversed(list(frames.stack(thread.frames))):
                row = builder.call(row, frame)
            builder.sample(row, 1)
        for number, tree in enumerate(task.trees):
            builder.begin(_tree_thread(tree, number), max(1, tree.count or tree.root_samples))
            made = [frames.frame(node.frame) for node in tree.nodes]
            for row, weight in (
                _inverted(tree, made, builder) if tree.is_inverted else _rows(tree, made, builder)
            ):
                builder.sample(row, weight)
    return Profile(
        process=process_info(report),
        images=tuple(dict.fromkeys(image for image in builder.images if image.size)),
        threads=tuple(builder.threads),
        frames=tuple(builder.frames),
        stacks=StackTable(builder.callers, builder.frame_of_row),
        samples=builder.samples,
        run=SamplingRun(
            started_at_ns=0,
            duration_ns=max(1, sum(builder.samples.weights) * _INTERVAL_NS),
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


def _own(tree: SampledTree) -> list[int]:
    """Return each node's samples that went through none of its children."""
    own = [node.samples for node in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            own[node.parent] -= node.samples
    return [max(0, one) for one in own]


class _ProfileBuilder:
    """A profile's columns under construction."""

    def __init__(self) -> None:
        self.images: list[BinaryImage] = []
        self.threads: list[SampledThread] = []
        self.frames: list[ProfileFrame] = []
        self.callers, self.frame_of_row = array("i"), array("i")
        self.samples = SampleTable(array("q"), array("i"), array("i"), array("q"))
        self._numbers: dict[Frame, int] = {}
        self._rows: dict[tuple[int, int], int] = {}

    def begin(self, thread: ThreadInfo, samples: int) -> None:
        """Begin a thread, to which the following rows belong."""
        self.threads.append(
            SampledThread(info=thread, samples=samples, stopped_ns=None, longest_stop_ns=None)
        )

    def call(self, caller: int, frame: Frame) -> int:
        """Return the row of ``frame`` called from row ``caller``."""
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
        """Add a stack of the current thread."""
        if row == OUTERMOST or weight <= 0:
            return
        self.samples.times_ns.append(0)
        self.samples.threads.append(len(self.threads) - 1)
        self.samples.stacks.append(row)
        self.samples.weights.append(min(weight, 1 << 62))


def _rows(
    tree: SampledTree, frames: list[Frame], builder: _ProfileBuilder
) -> Iterator[tuple[int, int]]:
    """Yield where the stacks of a tree end, with their weights."""
    rows: list[int] = []
    for node, frame, own in zip(tree.nodes, frames, _own(tree), strict=True):
        rows.append(builder.call(OUTERMOST if node.parent is None else rows[node.parent], frame))
        yield rows[-1], own


def _inverted(
    tree: SampledTree, frames: list[Frame], builder: _ProfileBuilder
) -> Iterator[tuple[int, int]]:
    """Yield the same of a tree whose roots are innermost: a stack for each of its ends."""
    room = _LONGEST
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
