"""Reports with names as people write them, where they have them as linkers do.

KSCrash, PLCrashReporter, lines of ``callStackSymbols`` and others print ``$s4Demo3runyyF``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from machtrace.model.report import Report, ReportedTask
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.reported_tree import SampledTree
from machtrace.symbolicate.demangle import demangle, may_be_mangled

_Task = TypeVar("_Task", bound=ReportedTask)


def spelt(report: Report) -> Report:
    """The report with each mangled name demangled; itself where there is none."""
    thrown = report.language_exception
    frames = None if thrown is None else _frames(thrown.frames)
    if thrown is not None and frames is not None:
        report = replace(report, language_exception=replace(thrown, frames=frames))
    others = tuple(map(_task, report.others))
    if any(new is not old for new, old in zip(others, report.others, strict=True)):
        report = replace(report, others=others)
    return _task(report)


def _task(task: _Task) -> _Task:
    threads = tuple(map(_thread, task.threads))
    if any(new is not old for new, old in zip(threads, task.threads, strict=True)):
        task = replace(task, threads=threads)
    trees = tuple(map(_tree, task.trees))
    if any(new is not old for new, old in zip(trees, task.trees, strict=True)):
        task = replace(task, trees=trees)
    return task


def _thread(thread: ReportedThread) -> ReportedThread:
    frames = _frames(thread.frames)
    return thread if frames is None else replace(thread, frames=frames)


def _tree(tree: SampledTree) -> SampledTree:
    frames = _frames([node.frame for node in tree.nodes])
    if frames is None:
        return tree
    pairs = zip(tree.nodes, frames, strict=True)
    return replace(tree, nodes=tuple(node._replace(frame=frame) for node, frame in pairs))


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
