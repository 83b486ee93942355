"""Stacks and profiles as reports; see :mod:`~machtrace.reports.stacks.captures` for the details.

A report of a profile has a tree for each thread: a node for each frame and caller, the calls
inlined into it below. When each sample was taken is in the report's details.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.capture import Capture
from machtrace.model.cause import Cause
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.incident.facts import WaitsFor
from machtrace.model.profile import (
    OUTERMOST,
    MissingFrames,
    Profile,
    ProfileFrame,
    SampledThread,
    SamplingRun,
    StackTable,
)
from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    NameSource,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.model.snapshot import Problem, ProcessInfo
from machtrace.model.stack import (
    NO_ADDRESS,
    AddressKind,
    Dispute,
    FrameTrust,
    Gap,
    Stop,
)
from machtrace.model.symbol import CallStack, Frame, FrameChain, PythonFrame
from machtrace.render.sample_text import start_time
from machtrace.reports.stacks.captures import (
    ADJUSTMENTS,
    CAUSE,
    DISPUTES,
    FORMAT,
    FUNCTION,
    GAP,
    GIL,
    HEADER_SVMA,
    IS_MAIN,
    KIND,
    OVERFLOWED,
    PROBLEMS,
    PYTHON,
    REMAINDER,
    RUN,
    SAMPLES,
    STATUS,
    STOP,
    STOPPED,
    STOPPED_FOR,
    STOPPED_MAX,
    TRUST,
    WAITS_FOR,
    ActivityValues,
    usual_status,
    written,
)


class ReportedImages:
    """The images of a report under construction."""

    def __init__(self, images: Iterable[BinaryImage] = ()) -> None:
        self._numbers: dict[BinaryImage, int] = {}
        for image in images:
            self.index(image)

    def index(self, image: BinaryImage) -> int:
        """Return the image's index; a new one is added."""
        return self._numbers.setdefault(image, len(self._numbers))

    def all(self) -> tuple[ReportedImage, ...]:
        """Return all images."""
        return tuple(map(_reported_image, self._numbers))


def _reported_image(image: BinaryImage) -> ReportedImage:
    details: dict[str, JsonValue] = {}
    if image.header_svma:
        details[HEADER_SVMA] = image.header_svma
    if image.format is not ImageFormat.identified_by(image.uuid):
        details[FORMAT] = image.format.value
    is_placed = image.size or image.load_address
    return ReportedImage(
        uuid=image.uuid,
        name=image.name,
        path=image.path,
        arch=image.arch.value,
        load_address=image.load_address if is_placed else None,
        size=image.size if is_placed else None,
        details=details,
    )


def reported_frames(frame: Frame, images: ReportedImages) -> Iterator[ReportedFrame]:
    """Yield the calls inlined into a frame, innermost first, and the frame."""
    image, address = frame.image, frame.address
    index = None if image is None else images.index(image)
    place: Avma | None = address.address
    adjustment = ADJUSTMENTS[address.kind]
    into = frame.image_offset
    offset = None if into is None or into < 0 else ImageOffset(into)
    named, details = None, _frame_details(frame)
    if frame.symbol is not None and frame.symbol.is_named:
        source = NameSource(frame.symbol.certainty.value)
        named = ReportedSymbol(frame.symbol.name, frame.symbol_offset, source)
    location = frame.location
    if frame.is_python and frame.python:
        named = ReportedSymbol(frame.python[0].name, None, NameSource.DEBUG_INFORMATION)
        location = frame.python[0].location
    if address == NO_ADDRESS:
        place, offset, adjustment = None, None, Adjustment.UNKNOWN
        named = None if named is None else named._replace(offset=None)
        del details[TRUST]
    for call in frame.inlined:
        symbol = ReportedSymbol(call.name, None, NameSource.DEBUG_INFORMATION)
        yield ReportedFrame(place, index, offset, adjustment, symbol, call.location, is_inline=True)
    yield ReportedFrame(place, index, offset, adjustment, named, location, details=details)


def _frame_details(frame: Frame) -> dict[str, JsonValue]:
    """Return what reports' frames have no field for."""
    address, symbol = frame.address, frame.symbol
    details: dict[str, JsonValue] = {}
    if address.trust is not FrameTrust.CONTEXT:
        details[TRUST] = address.trust.value
    if address.disputed_by:
        details[DISPUTES] = written(address.disputed_by, tuple[Dispute, ...])
    if address.kind is AddressKind.ASYNC_RESUME:
        details[KIND] = address.kind.value
    if symbol is not None and not symbol.is_named:
        details[FUNCTION] = symbol.offset
    if frame.status is not usual_status(frame.image, symbol):
        details[STATUS] = frame.status.value
    if frame.python:
        details[PYTHON] = written(frame.python, tuple[PythonFrame, ...])
    return details


def reported_process(process: ProcessInfo) -> ReportedProcess:
    """Return the process, with its architecture as code type."""
    return ReportedProcess(
        name=process.name or None,
        pid=process.pid,
        path=process.path if "/" in process.path else None,
        code_type=process.arch.value,
    )


def report_of_capture(capture: Capture, images: ReportedImages | None = None) -> Report:
    """Return a capture as a report, from which :func:`capture_of` returns it again.

    ``images`` are those of a larger report, which gets them all.
    """
    capture = capture.of_each_thread
    images = ReportedImages() if images is None else images
    for image in capture.images:
        images.index(image)
    threads = tuple(reported_thread(stack, images) for stack in capture.stacks)
    crashed = next((stack for stack in capture.stacks if stack.thread.crashed), None)
    cause = None if crashed is None else crashed.cause
    return Report(
        kind=ReportKind.MACHTRACE,
        process=reported_process(capture.process),
        exception=None if cause is None or not cause.name else exception_of(cause),
        threads=threads,
        images=images.all(),
        details=problems_details(capture.problems),
    )


def problems_details(problems: Iterable[Problem]) -> dict[str, JsonValue]:
    """Return the details with problems; empty without any."""
    entries: list[JsonValue] = [
        {"thread": problem.thread, "error": str(problem.error)} for problem in problems
    ]
    return {PROBLEMS: entries} if entries else {}


def reported_thread(stack: CallStack, images: ReportedImages) -> ReportedThread:
    """Return a thread with its stack."""
    info, rest = stack.thread, stack.physical_remainder
    details = {**_chain_details(stack)}
    if info.cause is not None:
        details[CAUSE] = written(info.cause, Cause)
    if info.is_main:
        details[IS_MAIN] = True
    if info.gil is not None:
        details[GIL] = info.gil.value
    if info.waits_for is not None:
        details[WAITS_FOR] = written(info.waits_for, WaitsFor)
    if stack.stopped_for_ns is not None:
        details[STOPPED_FOR] = stack.stopped_for_ns
    if stack.overflowed_stack is not None:
        details[OVERFLOWED] = stack.overflowed_stack
    if rest is not None:
        frames = tuple(
            reported for frame in rest.frames for reported in reported_frames(frame, images)
        )
        details[REMAINDER] = remainder_details(frames, _chain_details(rest))
    registers = tuple(ReportedRegister(name, value) for name, value in stack.registers)
    return ReportedThread(
        index=info.index - 1,
        id=info.id,
        name=info.name,
        queue=info.queue,
        crashed=info.crashed,
        frames=tuple(
            reported for frame in stack.frames for reported in reported_frames(frame, images)
        ),
        registers=ReportedRegisters(registers=registers) if registers else None,
        details=details,
    )


def remainder_details(
    frames: tuple[ReportedFrame, ...], details: dict[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return the detail of machine frames below a Swift task's."""
    return {"frames": written(frames, tuple[ReportedFrame, ...]), **details}


def _chain_details(chain: FrameChain) -> dict[str, JsonValue]:
    details: dict[str, JsonValue] = {STOP: written(chain.stop, Stop)}
    return details if chain.gap is None else details | {GAP: written(chain.gap, Gap)}


def exception_of(cause: Cause) -> ReportedException:
    """Return the cause as reports have it."""
    at = "" if cause.address is None else f" at {cause.address:#018x}"
    code = None if cause.code_name is None else f"{cause.code_name}{at}"
    numbers = ", ".join(f"{number:#018x}" for number in cause.exception_codes)
    is_mach = cause.exception is not None
    return ReportedException(
        type=cause.exception,
        signal=cause.signal,
        codes=(numbers or None) if is_mach else code or at.strip() or None,
        raw_codes=cause.exception_codes,
        subtype=(code or at.strip() or None) if cause.exception == "EXC_BAD_ACCESS" else None,
        message=", ".join(one for one in (cause.meaning, cause.region) if one) or None,
        address=cause.address,
    )


def report_of_profile(
    profile: Profile,
    kind: ReportKind = ReportKind.MACHTRACE,
    images: ReportedImages | None = None,
) -> Report:
    """Return a profile as a report, from which :func:`profile_of` returns it again.

    ``images`` are those of a larger report, which gets them all.
    """
    images = ReportedImages() if images is None else images
    for image in profile.images:
        images.index(image)
    calls = [_calls(frame, images) for frame in profile.frames]
    trees = [_TreeBuilder(calls) for _ in profile.threads]
    samples = profile.samples
    ends = [
        trees[thread].add(profile.stacks, row, weight)
        for thread, row, weight in zip(
            samples.threads, samples.stacks, samples.weights, strict=True
        )
    ]
    details: dict[str, JsonValue] = {
        RUN: written(profile.run, SamplingRun),
        SAMPLES: {
            "times_ns": [*samples.times_ns],
            "threads": [*samples.threads],
            "frames": [*ends],
            "weights": [*samples.weights],
            **({"states": [*samples.states]} if samples.has_states else {}),
            **({"cpu_ns": [*samples.cpu_ns]} if samples.has_cpu else {}),
        },
    }
    return Report(
        kind=kind,
        process=reported_process(profile.process),
        incident=Incident(time=start_time(profile.run) if profile.run.started_at_ns else None),
        trees=tuple(
            builder.tree(thread) for builder, thread in zip(trees, profile.threads, strict=True)
        ),
        images=images.all(),
        details=details | problems_details(profile.problems),
    )


def _calls(frame: ProfileFrame, images: ReportedImages) -> list[ReportedFrame]:
    """Return a frame and the calls inlined into it, outermost first."""
    if isinstance(frame, MissingFrames):
        symbol = ReportedSymbol(f"[{frame.value}]", None)
        return [ReportedFrame(None, None, None, Adjustment.UNKNOWN, symbol)]
    return [*reported_frames(frame, images)][::-1]


def activity_details(thread: SampledThread) -> dict[str, JsonValue]:
    """Return the details of a tree with what is known of the thread's processor time."""
    values: ActivityValues = {
        "merged": thread.merged,
        "running": thread.running,
        "left_out": thread.left_out or None,
        "cpu_ns": thread.cpu_ns,
    }
    return {key: value for key, value in values.items() if isinstance(value, int)}


class _TreeBuilder:
    """A tree under construction."""

    def __init__(self, calls: Sequence[Sequence[ReportedFrame]]) -> None:
        self._calls = calls
        self._parents: list[int | None] = []
        self._frames: list[ReportedFrame] = []
        self._counts: list[int] = []
        self._ends: dict[int, tuple[int, int]] = {}
        """Each row's innermost node, and the number of its frame's own node."""
        self._physical = 0

    def add(self, stacks: StackTable, row: int, weight: int) -> int:
        """Add samples; return the number of the innermost frame, inlined calls not counted."""
        path = []
        at = row
        while at != OUTERMOST and at not in self._ends:
            path.append(at)
            at = stacks.callers[at]
        node, number = self._ends.get(at, (None, OUTERMOST))
        for at in reversed(path):
            number = self._physical
            self._physical += 1
            for call in self._calls[stacks.frames[at]]:
                self._parents.append(node)
                self._frames.append(call)
                self._counts.append(0)
                node = len(self._frames) - 1
            self._ends[at] = (node or 0, number)
        if node is not None:
            self._counts[node] += weight
        return number

    def tree(self, thread: SampledThread) -> SampledTree:
        counts = self._counts
        for node in range(len(counts) - 1, -1, -1):
            parent = self._parents[node]
            if parent is not None:
                counts[parent] += counts[node]
        details: dict[str, JsonValue] = {}
        if thread.info.is_main:
            details[IS_MAIN] = True
        if thread.stopped_ns is not None:
            details[STOPPED] = thread.stopped_ns
        if thread.longest_stop_ns is not None:
            details[STOPPED_MAX] = thread.longest_stop_ns
        details |= activity_details(thread)
        return SampledTree(
            nodes=tuple(map(SampledNode, self._parents, counts, self._frames)),
            thread=thread.info.id,
            name=thread.info.name,
            queue=thread.info.queue,
            count=thread.samples,
            details=details,
        )
