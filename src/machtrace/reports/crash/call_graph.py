"""Trees of samples, and other processes: what Apple's texts of crashes have no part for.

Both are ours. Trees are written as ``sample`` writes them, and other processes with two columns
before each line, so that whoever reads the text takes none of it for the process that crashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.model.report import Report, ReportedTask
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_tree import SampledTree
from machtrace.reports.crash.frames import INLINED, frame_lines
from machtrace.reports.crash.image_lines import image_line
from machtrace.reports.crash.shown import shown
from machtrace.render.printable import LONGEST_IMAGE_NAME

_DEEPEST = 256
"""Columns grow with depth; what is deeper has its depth before its count."""
_MARGIN = "    "


def call_graph_lines(report: Report) -> Iterator[str]:
    """The section of the report's own trees."""
    if report.trees:
        yield "Call graph:"
        yield from _trees(report)


def _trees(task: ReportedTask) -> Iterator[str]:
    for tree in task.trees:
        yield _MARGIN + _head(tree)
        for depth, node in zip(tree.depths(), tree.nodes, strict=True):
            deeper = f"({depth}) " if depth > _DEEPEST else ""
            columns = "  " * (min(depth, _DEEPEST) + 1)
            what = _what(node.frame, task.images)
            yield f"{_MARGIN}{columns}{deeper}{node.samples} {what}"


def _head(tree: SampledTree) -> str:
    count = tree.count
    if count is None:
        count = sum(node.samples for node in tree.nodes if node.parent is None)
    text = f"{count} Thread" if tree.thread is None else f"{count} Thread_{tree.thread}"
    if tree.name:
        text += f": {shown(tree.name)}"
    if tree.queue:
        text += f"   DispatchQueue: {shown(tree.queue)}"
    if tree.is_attributed:
        text += "   (attributed)"
    return f"{text}   (innermost first)" if tree.is_inverted else text


def _what(frame: ReportedFrame, images: Sequence[ReportedImage]) -> str:
    image = None if frame.image is None else images[frame.image]
    text = "???" if frame.symbol is None else shown(frame.symbol.name)
    if image is not None:
        name = shown(image.name[:LONGEST_IMAGE_NAME])
        text += f"  (in {name or image.uuid or '???'})"
    if frame.symbol is not None and frame.symbol.offset is not None:
        text += f" + {frame.symbol.offset}"
    elif image is not None and frame.offset is not None:
        text += f"  load address {image.load_address or 0:#x} + {frame.offset:#x}"
    if frame.address is not None:
        text += f"  [{frame.address:#x}]"
    if frame.location is not None:
        line = "" if frame.location.line is None else f":{frame.location.line}"
        text += f"  {shown(frame.location.path.rpartition('/')[2])}{line}"
    return text + INLINED if frame.is_inline else text


def other_lines(report: Report) -> Iterator[str]:
    """The section of other processes: threads and trees of each."""
    if not report.others:
        return
    yield "Other Processes:"
    for task in report.others:
        process = task.process
        pid = "?" if process.pid is None else str(process.pid)
        yield f"  {shown(process.name or '???')} [{pid}]"
        yield from (f"  {line}" for line in _task(task))


def _task(task: ReportedTask) -> Iterator[str]:
    for thread in task.threads:
        known = "" if thread.id is None else f" ({thread.id:#x})"
        name = "" if thread.name is None else f": {shown(thread.name)}"
        yield f"  Thread {thread.index}{known}{name}"
        yield from (f"  {line}" for line in frame_lines(thread.frames, task.images))
    yield from _trees(task)
    if task.images:
        yield "  Binary Images:"
        yield from (f"  {image_line(image)}" for image in task.images)
