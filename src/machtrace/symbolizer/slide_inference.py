"""Load addresses of images, inferred from the names that a report has for addresses in them.

A line as ``3 App 0x0000000104a2c1f4 $s3App4loadyyF + 44`` states neither where App was nor how far
in it the address is; the function's address in App's file implies both. All such lines of an image
must agree, or nothing is inferred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.frame_changes import with_changed_frames
from machtrace.model.report import (
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedTask,
)
from machtrace.symbolizer.report_names import ReportNames

_Task = TypeVar("_Task", bound=ReportedTask)
_PAGE = 0x1000
"""The alignment of load addresses, on every system."""
_WORD = 1 << 64
_MOST_STARTS = 8
"""Functions of one name that are tried."""

Hints = dict[int, dict[tuple[str, int], int]]
"""For each image by its index: addresses (Avma) less the offset, by name and address."""


def with_load_addresses(report: Report, names: ReportNames) -> Report:
    """Return the report with inferred load addresses, and with offsets of their frames.

    A warning lists the evidence of each. A report that has them all is returned unchanged.
    """
    placed = [_placed(task, names) for task in report.tasks]
    if not any(placed):
        return report
    warnings = tuple(
        f"{task.images[index].name} was loaded at {base:#x}, by the names of its frames"
        if base is not None
        else f"the names of frames in {task.images[index].name} do not fit the file found for it, "
        "which may be of another build"
        for task, bases in zip(report.tasks, placed, strict=True)
        for index, base in bases.items()
    )
    report = replace(report, warnings=(*report.warnings, *warnings))
    known = [{index: base for index, base in one.items() if base is not None} for one in placed]
    return _with(report, known) if any(known) else report


def _with(report: Report, found: Sequence[dict[int, Avma]]) -> Report:
    own, *others = found
    exception = report.language_exception
    if exception is not None:
        exception = replace(exception, frames=_mover(own)(exception.frames))
    return replace(
        _moved(report, own),
        language_exception=exception,
        others=tuple(map(_moved, report.others, others)),
    )


def _placed(task: ReportedTask, names: ReportNames) -> dict[int, Avma | None]:
    """Return load addresses of images, by index; None if names contradict one another."""
    lost = {
        index
        for index, image in enumerate(task.images)
        if image.load_address is None and names.identifier(image) is not None
    }
    if not lost:
        return {}
    hints: Hints = defaultdict(dict)
    for frame in _frames(task):
        symbol = frame.symbol
        if frame.image not in lost or frame.is_inline or frame.address is None or symbol is None:
            continue
        if frame.offset is None and symbol.offset is not None:
            hints[frame.image][symbol.name, frame.address] = frame.address - symbol.offset
    bases: dict[int, Avma | None] = {}
    for index in sorted(hints):
        allowed = _bases(task.images[index], hints[index], names)
        if allowed is not None:
            bases[index] = Avma(min(allowed)) if len(allowed) == 1 else None
    return bases


def _frames(task: ReportedTask) -> Iterable[ReportedFrame]:
    for thread in task.threads:
        yield from thread.frames
    for tree in task.trees:
        yield from (node.frame for node in tree.nodes)


def _bases(
    image: ReportedImage, hints: dict[tuple[str, int], int], names: ReportNames
) -> set[int] | None:
    """Return the load addresses that every known name allows; None if no name is known."""
    allowed: set[int] | None = None
    for (name, _), start in hints.items():
        offsets = names.starts(image, name)
        if not offsets or len(offsets) > _MOST_STARTS:
            continue
        bases = {start - offset for offset in offsets}
        allowed = bases if allowed is None else allowed & bases
    if allowed is None:
        return None
    return {one for one in allowed if 0 < one < _WORD and one % _PAGE == 0}


def _mover(
    bases: dict[int, Avma],
) -> Callable[[Sequence[ReportedFrame]], tuple[ReportedFrame, ...]]:
    def moved(frame: ReportedFrame) -> ReportedFrame:
        base = None if frame.image is None else bases.get(frame.image)
        if base is None or frame.offset is not None or frame.address is None:
            return frame
        inside = frame.address >= base
        return frame._replace(offset=ImageOffset(frame.address - base)) if inside else frame

    return lambda frames: tuple(map(moved, frames))


def _moved(task: _Task, bases: dict[int, Avma]) -> _Task:
    if not bases:
        return task
    images = tuple(
        replace(image, load_address=bases[index]) if index in bases else image
        for index, image in enumerate(task.images)
    )
    return with_changed_frames(replace(task, images=images), _mover(bases))
