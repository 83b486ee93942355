"""Reports with other frames, and all else as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.reported_tree import SampledTree

Change: TypeAlias = Callable[[Sequence[ReportedFrame]], tuple[ReportedFrame, ...] | None]
"""As many frames as it is given, in their order; None where all of them stay."""

_Task = TypeVar("_Task", bound=ReportedTask)


def with_changed_frames(task: _Task, change: Change) -> _Task:
    """A process of a report with the frames of its threads and trees changed.

    What has no frame that changes stays the object that it is, the process too.
    """
    threads = tuple(_thread(thread, change) for thread in task.threads)
    if any(new is not old for new, old in zip(threads, task.threads, strict=True)):
        task = replace(task, threads=threads)
    trees = tuple(_tree(tree, change) for tree in task.trees)
    if any(new is not old for new, old in zip(trees, task.trees, strict=True)):
        task = replace(task, trees=trees)
    return task


def _thread(thread: ReportedThread, change: Change) -> ReportedThread:
    frames = change(thread.frames)
    return thread if frames is None else replace(thread, frames=frames)


def _tree(tree: SampledTree, change: Change) -> SampledTree:
    frames = change([node.frame for node in tree.nodes])
    if frames is None:
        return tree
    pairs = zip(tree.nodes, frames, strict=True)
    return replace(tree, nodes=tuple(node._replace(frame=frame) for node, frame in pairs))
