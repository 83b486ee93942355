"""Reports with names as people write them, where they have them as linkers do.

KSCrash, PLCrashReporter, lines of ``callStackSymbols`` and others print ``$s4Demo3runyyF``.

Reports with other frames, and all else as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from machtrace.demangler import demangle, may_be_mangled
from machtrace.model.report import Report, ReportedFrame, ReportedTask, ReportedThread, SampledTree

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


def demangled_report(report: Report) -> Report:
    """The report with each mangled name demangled; itself where there is none."""
    thrown = report.language_exception
    frames = None if thrown is None else _frames(thrown.frames)
    if thrown is not None and frames is not None:
        report = replace(report, language_exception=replace(thrown, frames=frames))
    others = tuple(with_changed_frames(other, _frames) for other in report.others)
    if any(new is not old for new, old in zip(others, report.others, strict=True)):
        report = replace(report, others=others)
    return with_changed_frames(report, _frames)


def _frames(frames: Sequence[ReportedFrame]) -> tuple[ReportedFrame, ...] | None:
    """All frames, some with other names; None where none has another."""
    mangled = [
        place
        for place, frame in enumerate(frames)
        if frame.symbol is not None and may_be_mangled(frame.symbol.name)
    ]
    if not mangled:
        return None
    found = [*frames]
    for place in mangled:
        symbol = frames[place].symbol
        if symbol is not None:
            name = demangle(symbol.name)
            found[place] = frames[place]._replace(symbol=symbol._replace(name=name))
    return tuple(found)
