"""The one stack that a report is about."""

from __future__ import annotations

from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportedFrame, ReportedTask, ReportedThread, SampledTree

_MAIN_QUEUE = "com.apple.main-thread"


class SubjectKind(Enum):
    """Which stack it is."""

    EXCEPTION = "where the exception was thrown"
    WATCHED = "the watched thread's stack of most of the time"
    CRASHED = "the thread that crashed"
    ATTRIBUTED = "the heaviest stack of the thread that the report is about"
    MAIN = "the main thread"
    HEAVIEST = "the heaviest stack"
    FIRST = "the first thread"


@dataclass(frozen=True, slots=True)
class SubjectStack:
    """A report's stack, and why it was chosen."""

    kind: SubjectKind
    frames: tuple[ReportedFrame, ...]
    """Innermost first; inlined calls precede the frame that holds them."""


def subject_stack(report: Report) -> SubjectStack | None:
    """Return the stack that ``report`` is about; None if it has no stacks.

    An exception's stack precedes that of its thread, a crashed thread a tree.
    """
    exception = report.language_exception
    if exception is not None and exception.frames:
        return SubjectStack(SubjectKind.EXCEPTION, exception.frames)
    crashed = report.crashed_thread
    if crashed is not None and crashed.frames:
        return SubjectStack(SubjectKind.CRASHED, crashed.frames)
    watched = None if report.watch is None else report.watch.thread
    for thread in () if watched is None else report.threads:
        if watched is not None and thread.id == watched.id and thread.frames:
            return SubjectStack(SubjectKind.WATCHED, thread.frames)
    return _of_task(report)


def _of_task(task: ReportedTask) -> SubjectStack | None:
    trees = [tree for tree in task.trees if tree.nodes]
    threads = [thread for thread in task.threads if thread.frames]
    for tree in trees:
        if tree.is_attributed:
            return SubjectStack(SubjectKind.ATTRIBUTED, heaviest_stack(tree))
    for tree in trees:
        if _is_main(tree):
            return SubjectStack(SubjectKind.MAIN, heaviest_stack(tree))
    for thread in threads:
        if _is_main(thread):
            return SubjectStack(SubjectKind.MAIN, thread.frames)
    if trees:
        return SubjectStack(
            SubjectKind.HEAVIEST, heaviest_stack(max(trees, key=lambda tree: tree.root_samples))
        )
    if threads:
        return SubjectStack(SubjectKind.FIRST, threads[0].frames)
    return None


def _is_main(stack: ReportedThread | SampledTree) -> bool:
    return stack.queue == _MAIN_QUEUE or (stack.name or "").lower() in ("main", "main thread")


def heaviest_stack(tree: SampledTree) -> tuple[ReportedFrame, ...]:
    """Return the frames from the heaviest root along the heaviest children; innermost first."""
    path = heaviest_path(tree)
    frames = [tree.nodes[index].frame for index in path]
    if not tree.is_inverted:
        frames.reverse()
    return tuple(frames)


def heaviest_path(tree: SampledTree) -> list[int]:
    """Return that path as node indices from the root; of equally heavy nodes the first."""
    best: dict[int | None, int] = {}
    for index, node in enumerate(tree.nodes):
        known = best.get(node.parent)
        if known is None or tree.nodes[known].samples < node.samples:
            best[node.parent] = index
    path: list[int] = []
    at = best.get(None)
    while at is not None:
        path.append(at)
        at = best.get(at)
    return path
