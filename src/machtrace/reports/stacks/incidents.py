"""Incidents as reports: all threads, and the watched thread's stacks as a sampled tree.

A sample's weight in the tree is the time that it stands for, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.incident.facts import TimedStack, WatchedThread, WatchFacts, WatchIncident
from machtrace.model.incident.text import wall_time
from machtrace.model.profile import (
    OUTERMOST,
    MissingFrames,
    Profile,
    ProfileFrame,
    SampledThread,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.report import Incident, JsonValue, Report, ReportedProcess, ReportKind
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.symbol import CallStack
from machtrace.reports.stacks.captures import SAMPLES
from machtrace.reports.stacks.profiles import ProfileBuilder
from machtrace.reports.stacks.reported import (
    ReportedImages,
    report_of_capture,
    report_of_profile,
    reported_thread,
)

_MILLISECOND = 1_000_000
_MAX_NS = 1 << 62
_NATIVE = Arch.X86_64
"""The architecture of stacks without images: only the width of addresses depends on it."""
_BOOT_NS, _WEIGHTS_NS = "boot_ns", "weights_ns"
"""Columns of :data:`SAMPLES` besides a profile's: :attr:`TimedStack.at_ns` and its weight."""


class SampleTime(NamedTuple):
    """The time of a sample of the watched thread; see :class:`TimedStack`."""

    at_ns: int
    weight_ns: int


def facts_of(incident: WatchIncident) -> WatchFacts:
    """Return an incident's facts without its stacks."""
    return WatchFacts(**{field.name: getattr(incident, field.name) for field in fields(WatchFacts)})


def report_of_incident(incident: WatchIncident) -> Report:
    """Return an incident as a report.

    The watched thread's frames are the representative stack, and its tree has all its stacks.
    """
    images = ReportedImages()
    capture = incident.capture
    report = Report(
        kind=ReportKind.MACHTRACE,
        process=ReportedProcess(pid=incident.pid),
    )
    if capture is not None:
        report = report_of_capture(capture, images)
    report = replace(
        report,
        incident=Incident(
            id=incident.id,
            time=None if incident.seen_wall_ns is None else wall_time(incident.seen_wall_ns),
            kind=incident.kind.value,
        ),
        watch=facts_of(incident),
    )
    report = _with_stack(report, incident, images)
    if incident.stacks:
        sampled = report_of_profile(_profile(incident), images=images)
        trees = tuple(replace(tree, is_attributed=True) for tree in sampled.trees)
        details = {**report.details, **sampled.details}
        columns = details[SAMPLES]
        if isinstance(columns, dict):
            times: dict[str, JsonValue] = {
                _BOOT_NS: [stack.at_ns for stack in incident.stacks],
                _WEIGHTS_NS: [stack.weight_ns for stack in incident.stacks],
            }
            details[SAMPLES] = columns | times
        report = replace(report, trees=trees, details=details)
    return replace(report, images=images.all())


def sample_times(report: Report) -> tuple[SampleTime, ...]:
    """Return when the watched thread's stacks were taken; empty if that is not recorded."""
    columns = report.details.get(SAMPLES)
    if not isinstance(columns, dict):
        return ()
    times, weights = columns.get(_BOOT_NS), columns.get(_WEIGHTS_NS)
    if not isinstance(times, list) or not isinstance(weights, list):
        return ()
    return tuple(
        SampleTime(at_ns, weight_ns)
        for at_ns, weight_ns in zip(times, weights, strict=False)
        if type(at_ns) is int
        and type(weight_ns) is int
        and abs(at_ns) < _MAX_NS
        and 0 <= weight_ns < _MAX_NS
    )


def _with_stack(report: Report, incident: WatchIncident, images: ReportedImages) -> Report:
    """Return the report with the representative stack as the watched thread's."""
    stack = incident.stack
    if not incident.stacks or stack is None:
        return report
    number = stack.thread.id if incident.thread is None else incident.thread.id
    for position, thread in enumerate(report.threads):
        if thread.id == number:
            changed = reported_thread(stack, images)
            changed = replace(
                changed,
                index=thread.index,
                id=thread.id,
                name=thread.name or changed.name,
                queue=thread.queue or changed.queue,
                crashed=thread.crashed,
            )
            threads = (*report.threads[:position], changed, *report.threads[position + 1 :])
            return replace(report, threads=threads)
    info = replace(stack.thread, index=len(report.threads) + 1)
    added = reported_thread(replace(stack, thread=info), images)
    return replace(report, threads=(*report.threads, added))


def _profile(incident: WatchIncident) -> Profile:
    stacks = incident.stacks
    info = _thread_info(incident.thread, stacks[-1].stack)
    builder = ProfileBuilder()
    began = stacks[0].at_ns - stacks[0].weight_ns
    total = 0
    builder.begin(SampledThread(info=info, samples=0, stopped_ns=None, longest_stop_ns=None))
    for timed in stacks:
        row = OUTERMOST
        for frame in reversed(_frames(timed.stack)):
            row = builder.call(row, frame)
        weight = max(1, round(timed.weight_ns / _MILLISECOND))
        total += weight
        builder.samples.append(max(0, timed.at_ns - began), 0, row, weight)
    capture = incident.capture
    arch = next((image.arch for image in _images(stacks)), None)
    process = None if capture is None else capture.process
    if process is None:
        native = arch or _NATIVE
        process = ProcessInfo(pid=incident.pid, path="", arch=native)
    wall = incident.seen_wall_ns
    return Profile(
        process=process,
        images=tuple(dict.fromkeys(_images(stacks))),
        threads=(replace(builder.threads[0], samples=total),),
        frames=tuple(builder.frames),
        stacks=StackTable(builder.callers, builder.frame_of_row),
        samples=builder.samples,
        run=SamplingRun(
            started_at_ns=0 if wall is None else max(0, wall - (incident.seen_ns - began)),
            duration_ns=max(1, stacks[-1].at_ns - began),
            interval_ns=_MILLISECOND,
            ticks=total,
            lost=0,
            end=SamplingEnd.DURATION,
        ),
        problems=(),
    )


def _images(stacks: Sequence[TimedStack]) -> Iterator[BinaryImage]:
    for timed in stacks:
        for frame in timed.stack.frames:
            if frame.image is not None:
                yield frame.image


def _frames(stack: CallStack) -> list[ProfileFrame]:
    """Return the frames, innermost first, with placeholders for missing ones."""
    frames: list[ProfileFrame] = list(stack.frames)
    if stack.gap is not None:
        frames.insert(stack.gap.after, MissingFrames.LEFT_OUT)
    if frames and not stack.stop.is_complete:
        frames.append(MissingFrames.UNKNOWN_CALLERS)
    return frames


def _thread_info(thread: WatchedThread | None, stack: CallStack) -> ThreadInfo:
    if thread is None:
        return stack.thread
    return replace(
        stack.thread,
        id=ThreadId(thread.id),
        name=stack.thread.name or thread.name,
        is_main=thread.is_main,
    )
