"""The stacks of reports as captures, so that the same writers serve both.

What a report has no field for is in the details of its frames and threads, as the model is written
in JSON: how an address was found, what disputes it, where a stack ends and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.cause import SIGNAL_CODES, Cause, mach_cause
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.incident.facts import WaitsFor
from machtrace.model.report import (
    Adjustment,
    Details,
    JsonValue,
    NameSource,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedTask,
    ReportedThread,
)
from machtrace.model.snapshot import GilState, Problem, ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import (
    NO_ADDRESS,
    AddressKind,
    Dispute,
    FrameAddress,
    FrameTrust,
    Gap,
    Stop,
    StopReason,
)
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameChain,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    Symbol,
    unnamed,
)
from machtrace.reports.crash.frames import lost_frames, number_gaps
from machtrace.reports.machtrace_json import UnfitError, form_of

TRUST, DISPUTES, KIND, STATUS = "trust", "disputed_by", "kind", "status"
"""Details of a frame: its address."""
FUNCTION, PYTHON = "function", "python"
"""Details of a frame: the start of a function without a name; the Python functions it runs."""
STOP, GAP, CAUSE, STOPPED_FOR = "stop", "gap", "cause", "stopped_for_ns"
OVERFLOWED, REMAINDER, IS_MAIN, GIL = "overflowed_stack", "physical_remainder", "is_main", "gil"
WAITS_FOR = "waits_for"
"""Details of a thread."""
STOPPED, STOPPED_MAX = "stopped_ns", "longest_stop_ns"
"""Details of a sampled thread."""
PROBLEMS, RUN, SAMPLES = "problems", "run", "samples"
"""Details of a report: also how it was sampled, and the columns of its samples."""
HEADER_SVMA, FORMAT = "header_svma", "format"
"""Details of an image."""
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
ADJUSTMENTS = {
    AddressKind.PROGRAM_COUNTER: Adjustment.EXACT,
    AddressKind.RETURN_ADDRESS: Adjustment.RETURN,
    AddressKind.SIGNAL_TRAMPOLINE: Adjustment.EXACT,
    AddressKind.ASYNC_RESUME: Adjustment.EXACT,
    AddressKind.ADJUSTED: Adjustment.ALREADY_ADJUSTED,
}
_MAX_PATH_LENGTH = 4096
"""Characters; the name is repeated for each frame, and no system has longer ones."""
_CERTAINTIES = {certainty.value: certainty for certainty in Certainty}

_T = TypeVar("_T")
_NOT_SHOWN = re.compile(r"[ \t]*+\.\.\. (?P<count>[0-9]{1,14}) frames not shown")


def written(value: object, kind: Any) -> JsonValue:  # noqa: ANN401 - a type of the model
    """Return a value of the model as JSON."""
    return form_of(kind).write(value)


def frames_not_shown(line: str) -> int:
    """Return the number of frames that a line of a debugger's text stands for; 0 for others."""
    match = _NOT_SHOWN.fullmatch(line) if len(line) < _MAX_PATH_LENGTH else None
    return 0 if match is None else int(match["count"])


def gap_details(frames: Sequence[ReportedFrame], count: int) -> dict[str, JsonValue]:
    """Return the details of a stack of which ``count`` frames after ``frames`` are missing."""
    after = sum(not frame.is_inline for frame in frames)
    return {GAP: written(Gap(after, count), Gap)} if count else {}


def lost_frames_of(threads: Iterable[ReportedThread]) -> tuple[str, ...]:
    """Return the warnings about gaps in the stacks of threads; a line may state one of them."""
    return tuple(
        warning
        for thread in threads
        if GAP not in thread.details
        for warning in lost_frames(f"thread {thread.index}", number_gaps(thread.frames))
    )


def _gap(thread: ReportedThread) -> Gap | None:
    """Return the gap of a stack: the stated one, else the first in the printed numbers."""
    gap = stored(thread.details, GAP, Gap)
    lost = next(number_gaps(thread.frames), None) if gap is None else None
    if lost is None:
        return gap
    after = sum(not frame.is_inline for frame in thread.frames[: lost.after])
    return Gap(after, lost.last - lost.first + 1)


def stored(details: Details, key: str, kind: type[_T]) -> _T | None:
    """Return the value of the model in a detail; None if it is absent or something else."""
    value = details.get(key) if details else None
    return None if value is None else _read(value, kind)


def _read(value: JsonValue, kind: Any) -> Any:  # noqa: ANN401 - see written
    try:
        return form_of(kind).read(value)
    except (UnfitError, ValueError):
        return None


def usual_status(image: BinaryImage | None, symbol: Symbol | None) -> FrameStatus:
    """Return the status that a frame has unless its details state another one."""
    if image is None:
        return FrameStatus.UNKNOWN_IMAGE
    if symbol is None:
        return FrameStatus.NOT_ASKED
    return FrameStatus.SYMBOLICATED if symbol.is_named else FrameStatus.MISSING_SYMBOL


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
        self.arch = process_info(task).arch
        self.images = tuple(self._image(image) for image in task.images)
        """In the task's order; an image with an unknown address is at 0."""
        self._bases = [image.load_address for image in task.images]

    def _image(self, image: ReportedImage) -> BinaryImage:
        svma, form = image.details.get(HEADER_SVMA), image.details.get(FORMAT)
        return BinaryImage(
            path=(image.path or image.name)[:_MAX_PATH_LENGTH],
            uuid=image.uuid,
            arch=_ARCHES.get(image.arch or "", self.arch),
            format=ImageFormat.ELF if form == "elf" else ImageFormat.identified_by(image.uuid),
            load_address=image.load_address or Avma(0),
            header_svma=Svma(svma if isinstance(svma, int) else 0),
            size=image.size or 0,
        )

    def stack(self, frames: Iterable[ReportedFrame]) -> Iterator[Frame]:
        """Convert a thread's stack; inlined calls go into the frame that holds them."""
        inlined: list[ReportedFrame] = []
        is_first = True
        for frame in frames:
            if frame.is_inline:
                inlined.append(frame)
            else:
                yield self.frame(frame, inlined, is_first=is_first)
                inlined, is_first = [], False
        yield from (self.frame(frame) for frame in inlined)

    def frame(
        self,
        frame: ReportedFrame,
        inlined: Sequence[ReportedFrame] = (),
        python: tuple[PythonFrame, ...] = (),
        *,
        is_first: bool = False,
    ) -> Frame:
        """Convert one frame, and the calls inlined into it, innermost first."""
        image = None if frame.image is None else self.images[frame.image]
        address, details = frame.address, frame.details
        if frame.offset is not None and image is not None:
            # Frames of several launches have different addresses; only the offset is reliable.
            address = Avma(image.load_address + frame.offset)
        is_placed = image is None or frame.offset is not None
        if not is_placed and address is not None and frame.image is not None:
            base = self._bases[frame.image]
            is_placed = base is not None and base <= address
        address = Avma(0) if address is None else address
        status = stored(details, STATUS, FrameStatus)
        if status is FrameStatus.PYTHON:
            return Frame(address=NO_ADDRESS, status=status, python=python or _python(details))
        symbol = self._symbol(frame, image, address)
        return Frame(
            address=_address(frame, address, is_first=is_first),
            status=usual_status(image, symbol) if status is None else status,
            image=image,
            is_placed=is_placed,
            symbol=symbol,
            has_symbol_offset=frame.symbol is None or frame.symbol.offset is not None,
            location=frame.location,
            inlined=tuple(
                InlineFrame("" if one.symbol is None else one.symbol.name, one.location)
                for one in inlined
            ),
            python=python or _python(details),
        )

    def _symbol(
        self, frame: ReportedFrame, image: BinaryImage | None, address: Avma
    ) -> Symbol | None:
        if frame.symbol is None:
            start = frame.details.get(FUNCTION)
            return unnamed(ImageOffset(start), None) if type(start) is int else None
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


def _python(details: Details) -> tuple[PythonFrame, ...]:
    value = details.get(PYTHON) if details else None
    return () if value is None else _read(value, tuple[PythonFrame, ...]) or ()


def _address(frame: ReportedFrame, address: Avma, *, is_first: bool) -> FrameAddress:
    kind, trust, disputes = _KINDS[frame.adjustment], FrameTrust.PREWALKED, None
    if frame.details:
        kind = stored(frame.details, KIND, AddressKind) or kind
        trust = stored(frame.details, TRUST, FrameTrust) or trust
        disputes = _read(frame.details.get(DISPUTES, []), tuple[Dispute, ...])
    if is_first and frame.adjustment is Adjustment.EXACT and TRUST not in frame.details:
        trust = FrameTrust.CONTEXT
    return FrameAddress(address, trust, kind, disputes or ())


def capture_of(report: Report) -> Capture:
    """Return the stacks of the report's process: its threads', then an exception's.

    Sampled trees cover many moments and are left out.
    """
    frames = ReportedFrames(report)
    stacks = [thread_stack(thread, frames, report) for thread in report.threads]
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
        problems=problems_of(report),
    )


class ActivityValues(TypedDict):
    """The running samples and processor time of a sampled thread; see :class:`SampledThread`."""

    merged: int | None
    running: int | None
    left_out: int | None
    cpu_ns: int | None


def activity_values(details: Details) -> ActivityValues:
    """Return what a sampled thread's details have of its processor time."""

    def number(key: str) -> int | None:
        value = details.get(key)
        return value if type(value) is int and value >= 0 else None

    return {
        "merged": number("merged"),
        "running": number("running"),
        "left_out": number("left_out"),
        "cpu_ns": number("cpu_ns"),
    }


def problems_of(report: Report) -> tuple[Problem, ...]:
    """Return the problems in a report's details."""
    entries = report.details.get(PROBLEMS)
    problems = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("error"), str):
            thread = entry.get("thread")
            number = ThreadId(thread) if isinstance(thread, int) else None
            problems.append(Problem(thread=number, error=MachtraceError(str(entry["error"]))))
    return tuple(problems)


def thread_stack(
    thread: ReportedThread, frames: ReportedFrames, report: Report | None = None
) -> CallStack:
    """Return a thread's stack; the exception of ``report`` is the cause of the crashed one."""
    details = thread.details
    registers = () if thread.registers is None else thread.registers.registers
    remainder = details.get(REMAINDER)
    stopped_for, overflowed = details.get(STOPPED_FOR), details.get(OVERFLOWED)
    exception = None if report is None else report.exception
    return CallStack(
        thread=thread_info(thread, exception, frames.arch),
        frames=tuple(frames.stack(thread.frames)),
        stop=stored(details, STOP, Stop) or Stop(StopReason.ROOT),
        gap=_gap(thread),
        stopped_for_ns=stopped_for if type(stopped_for) is int else None,
        physical_remainder=_remainder(remainder, frames) if isinstance(remainder, dict) else None,
        registers=tuple((register.name, register.value) for register in registers),
        overflowed_stack=Avma(overflowed) if type(overflowed) is int else None,
    )


def _remainder(details: Details, frames: ReportedFrames) -> FrameChain | None:
    reported = _read(details.get("frames"), tuple[ReportedFrame, ...])
    count = len(frames.images)
    if reported is None or any(one.image is not None and one.image >= count for one in reported):
        return None
    return FrameChain(
        frames=tuple(frames.stack(reported)),
        stop=stored(details, STOP, Stop) or Stop(StopReason.ROOT),
        gap=stored(details, GAP, Gap),
    )


def thread_info(
    thread: ReportedThread,
    exception: ReportedException | None = None,
    arch: Arch = Arch.ARM64,
) -> ThreadInfo:
    """Return the thread's identity; its number stands in for a missing id.

    ``exception`` is the report's, of a process of ``arch``: the cause of the crashed thread.
    """
    cause = stored(thread.details, CAUSE, Cause)
    if cause is None and thread.crashed and exception is not None:
        cause = cause_of(exception, arch)
    return ThreadInfo(
        id=ThreadId(thread.index if thread.id is None else thread.id),
        index=thread.index + 1,
        name=thread.name,
        queue=thread.queue,
        is_main=thread.details.get(IS_MAIN) is True,
        crashed=thread.crashed,
        cause=cause,
        gil=stored(thread.details, GIL, GilState),
        waits_for=stored(thread.details, WAITS_FOR, WaitsFor),
    )


def cause_of(exception: ReportedException, arch: Arch) -> Cause | None:
    """Return what stopped a crashed thread; None if it was neither a signal nor Mach's."""
    mach = exception.type if (exception.type or "").startswith("EXC_") else None
    signal = exception.signal if (exception.signal or "").startswith("SIG") else None
    if mach is None and signal is None and (exception.type or "").startswith("SIG"):
        signal = exception.type  # as texts have it that know no Mach exception
    if mach is None and signal is None:
        return None
    words = exception.subtype if mach else exception.codes
    code = (words or "").partition(" at ")[0]
    if mach is None:
        meaning = SIGNAL_CODES.get(code, "")
        cause = Cause(signal=signal, code_name=code if meaning else None, meaning=meaning)
    else:
        cause = mach_cause(mach, exception.raw_codes, arch)
        if code.startswith(("KERN_", "EXC_")):
            cause = replace(cause, code_name=code)
    address = exception.address
    return replace(
        cause,
        signal=signal or cause.signal,
        address=cause.address if address is None else Avma(address),
        region="",
    )


def tasks_of(report: Report) -> tuple[ReportedTask, ...]:
    """Return the report's process and the others, as far as they have stacks."""
    return tuple(task for task in report.tasks if task.threads or task.trees)
