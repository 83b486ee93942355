"""Changes to all frames of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from machtrace.model.report import ReportedFrame, ReportedTask, ReportedThread, SampledTree

FrameChange: TypeAlias = Callable[[Sequence[ReportedFrame]], tuple[ReportedFrame, ...] | None]
"""Maps the frames of a stack to as many others; None if none changes."""

_Task = TypeVar("_Task", bound=ReportedTask)


def with_changed_frames(task: _Task, change: FrameChange) -> _Task:
    """Return the process with the frames of its threads and trees changed.

    A thread, a tree or a process without a changed frame stays the same object.
    """
    threads = tuple(_changed_thread(thread, change) for thread in task.threads)
    if any(new is not old for new, old in zip(threads, task.threads, strict=True)):
        task = replace(task, threads=threads)
    trees = tuple(_changed_tree(tree, change) for tree in task.trees)
    if any(new is not old for new, old in zip(trees, task.trees, strict=True)):
        task = replace(task, trees=trees)
    return task


def _changed_thread(thread: ReportedThread, change: FrameChange) -> ReportedThread:
    frames = change(thread.frames)
    return thread if frames is None else replace(thread, frames=frames)


def _changed_tree(tree: SampledTree, change: FrameChange) -> SampledTree:
    frames = change([node.frame for node in tree.nodes])
    if frames is None:
        return tree
    pairs = zip(tree.nodes, frames, strict=True)
    return replace(tree, nodes=tuple(node._replace(frame=frame) for node, frame in pairs))
