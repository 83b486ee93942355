"""The threads of a report as a capture, for what writes captures."""

from __future__ import annotations

from machtrace.reports.analysis.reported_frames import ReportedFrames, process_info
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.report import Report, ReportedTask
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.stack import Stop, StopReason
from machtrace.model.symbol import CallStack
from machtrace.model.thread import ThreadId, ThreadInfo


def capture_of(report: Report) -> Capture:
    """The stacks of the report's process: those of threads, then that of an exception.

    Trees are of many moments and have no place in it.
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
    """A thread's stack."""
    return CallStack(
        thread=thread_info(thread),
        frames=tuple(frames.stack(thread.frames)),
        stop=Stop(StopReason.ROOT),
    )


def thread_info(thread: ReportedThread) -> ThreadInfo:
    """Which thread: one without an id goes by its number."""
    return ThreadInfo(
        id=ThreadId(thread.index if thread.id is None else thread.id),
        index=thread.index + 1,
        name=thread.name,
        queue=thread.queue,
        crashed=thread.crashed,
    )


def tasks_of(report: Report) -> tuple[ReportedTask, ...]:
    """The report's process, and the others, that have any stacks."""
    return tuple(task for task in report.tasks if task.threads or task.trees)
