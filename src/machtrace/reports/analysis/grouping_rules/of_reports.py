"""Frames and causes of reports as grouping rules match them."""

from __future__ import annotations

from machtrace.model.report import Report, ReportedFrame, ReportedTask
from machtrace.reports.analysis.grouping_rules.rules import Raised, RuleFrame


def rule_frame(frame: ReportedFrame, task: ReportedTask, plain: str | None) -> RuleFrame:
    """Return a frame as rules see it.

    Args:
        frame: the frame.
        task: the process it belongs to.
        plain: its function's name without what builds change; None if it has no name.
    """
    image = None if frame.image is None else task.images[frame.image]
    functions: tuple[str, ...] = ()
    if plain is not None:
        name = plain if frame.symbol is None else frame.symbol.name
        functions = (name, without_parameters(plain), plain)
    return RuleFrame(
        functions=functions,
        package="" if image is None else image.path or image.name,
        path="" if frame.location is None else frame.location.path,
    )


def without_parameters(name: str) -> str:
    """Return the name of a C++ or Swift function without its parameters, as rules write it."""
    end = name.removesuffix(" const").rstrip()
    if not end.endswith(")"):
        return name
    depth = 0
    for at in range(len(end) - 1, -1, -1):
        depth += (end[at] == ")") - (end[at] == "(")
        if not depth:
            return end[:at] if at and not end.startswith(("-[", "+[")) else name
    return name


def raised_of(task: ReportedTask) -> Raised:
    """Return the cause of a report, as grouping rules match it; empty for other tasks."""
    if not isinstance(task, Report):
        return Raised()
    thrown, cause, watch = task.language_exception, task.exception, task.watch
    types = (
        None if thrown is None else thrown.name,
        None if cause is None else cause.type,
        None if cause is None else cause.signal,
    )
    values = (
        None if thrown is None else thrown.reason,
        None if cause is None else cause.message,
        None if cause is None else cause.subtype,
        None if cause is None else cause.codes,
    )
    mechanisms = (
        None if watch is None else watch.kind.value,
        None if thrown is None else "exception",
        None if cause is None or cause.type is None else "mach",
        None if cause is None or cause.signal is None else "signal",
    )
    return Raised(*(tuple(each for each in row if each) for row in (types, values, mechanisms)))
