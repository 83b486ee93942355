"""Reports with demangled names.

KSCrash, PLCrashReporter, lines of ``callStackSymbols`` and others print ``$s4Demo3runyyF``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.demangler import demangle, may_be_mangled
from machtrace.model.report import Report, ReportedFrame, with_changed_frames


def demangled_report(report: Report) -> Report:
    """Return the report with each mangled name demangled; itself if it has none."""
    thrown = report.language_exception
    frames = None if thrown is None else _frames(thrown.frames)
    if thrown is not None and frames is not None:
        report = replace(report, language_exception=replace(thrown, frames=frames))
    others = tuple(with_changed_frames(other, _frames) for other in report.others)
    if any(new is not old for new, old in zip(others, report.others, strict=True)):
        report = replace(report, others=others)
    return with_changed_frames(report, _frames)


def _frames(frames: Sequence[ReportedFrame]) -> tuple[ReportedFrame, ...] | None:
    """Return the frames with demangled names; None if no name is mangled."""
    mangled = [
        place
        for place, frame in enumerate(frames)
        if frame.symbol is not None and may_be_mangled(frame.symbol.name)
    ]
    if not mangled:
        return None
    demangled = [*frames]
    for place in mangled:
        symbol = frames[place].symbol
        if symbol is not None:
            name = demangle(symbol.name)
            demangled[place] = frames[place]._replace(symbol=symbol._replace(name=name))
    return tuple(demangled)
