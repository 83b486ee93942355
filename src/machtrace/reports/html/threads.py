"""Threads and sampled trees: what each was doing, with its stack and registers.

In lists of frames the app's stand out, the system's and repeated ones fold away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from machtrace.model.report import (
    Adjustment,
    NameSource,
    Report,
    ReportedFrame,
    ReportedRegisters,
    ReportedTask,
    ReportedThread,
    SampledTree,
)
from machtrace.model.text import MAX_IMAGE_NAME_LENGTH, counted
from machtrace.reports.analysis.fingerprint import owners_of
from machtrace.reports.analysis.frame_owner import NOWHERE, FrameOwner, Ownership
from machtrace.reports.analysis.recursion import folds
from machtrace.reports.analysis.subject_stack import heaviest_stack
from machtrace.reports.analysis.waits.graph import WaitEdge, WaitGraph
from machtrace.reports.analysis.waits.threads import WaitingThread
from machtrace.reports.crash.frames import printed_number
from machtrace.reports.html.markup import element, folded, text

_FOLDED_FROM = 4
"""Consecutive system frames from which on they are folded."""
_NAMED = 4
"""Images named in a fold's heading."""
_SOURCES = {
    NameSource.DEBUG_INFORMATION: ("debug", "from debug information"),
    NameSource.EXACT: ("symbol", "from a symbol at the function's own start"),
    NameSource.EXPORT: ("export", "the preceding exported symbol: possibly another function"),
    NameSource.OBJC: ("objc", "from the class's list of methods"),
    NameSource.RTTI: ("rtti", "from a C++ class's vtable"),
    NameSource.SWIFT: ("swift", "from a Swift type's metadata"),
    NameSource.PCLNTAB: ("go", "from Go's table of functions"),
    NameSource.STUB: ("stub", "a stub, named after the function that it calls"),
}
_ADJUSTMENTS = {
    Adjustment.EXACT: "the running instruction",
    Adjustment.RETURN: "a return address",
    Adjustment.ALREADY_ADJUSTED: "inside a call, adjusted by the report's writer",
    Adjustment.UNKNOWN: "perhaps a return address: the report does not state it",
}
_MARKS = {
    Adjustment.EXACT: " =",
    Adjustment.RETURN: "",
    Adjustment.ALREADY_ADJUSTED: " −",
    Adjustment.UNKNOWN: " ?",
}
_MAX_ROWS = 2000
"""Maximum rows of a stack; a deeper one keeps both ends."""


class _Row(NamedTuple):
    number: int
    """The report's number of the frame; an inlined call has its holder's."""
    frame: ReportedFrame
    owner: Ownership


class StackLists:
    """Writes the stacks of one task."""

    def __init__(self, task: ReportedTask) -> None:
        self._task = task
        self.owners = owners_of(task)

    def write(self, frames: Sequence[ReportedFrame]) -> str:
        """Return a stack, innermost first."""
        if not frames:
            return element("p", "No frames.", class_="none")
        rows = list(self._rows(frames))
        if len(frames) > _MAX_ROWS:
            half = _MAX_ROWS // 2
            left_out = counted(len(frames) - 2 * half, "frame")
            gap = f"<li>{left_out} are omitted here; the flame graph has them."
            inner, outer = (
                "".join(self._pieces(frames[part], rows[part]))
                for part in (slice(half), slice(len(frames) - half, None))
            )
            return element("ol", inner + gap + outer, class_="frames")
        return element("ol", "".join(self._pieces(frames, rows)), class_="frames")

    def _pieces(self, frames: Sequence[ReportedFrame], rows: Sequence[_Row]) -> Iterator[str]:
        has_app = any(row.owner.owner is FrameOwner.APP for row in rows)
        same = [(frame.image, frame.symbol and frame.symbol.name, frame.offset) for frame in frames]
        by_name = [(image, name) if name else (image, offset) for image, name, offset in same]
        for fold in folds(by_name):
            part = rows[fold.first : fold.first + fold.length]
            if fold.times == 1:
                yield from self._part(part, folds_system=has_app)
                continue
            yield from self._part(part[: fold.period], folds_system=False)
            frames_left = fold.length - fold.period
            summary = (
                f"↻ {text(f'{fold.times:,}')} times: "
                f"{counted(frames_left, 'more frame')} of the same"
            )
            rest = element("ol", "".join(map(self._row, part[fold.period :])), class_="frames")
            yield element("li", folded(summary, rest), class_="run recursion")

    def _rows(self, frames: Sequence[ReportedFrame]) -> Iterator[_Row]:
        number = 0
        for frame in frames:
            owner = NOWHERE if frame.image is None else self.owners[frame.image]
            number = max(number, printed_number(frame.details, number))
            yield _Row(number, frame, owner)
            number += not frame.is_inline

    def _part(self, rows: Sequence[_Row], *, folds_system: bool) -> Iterator[str]:
        run: list[_Row] = []
        for row in rows:
            if folds_system and row.owner.owner is FrameOwner.SYSTEM and row.number:
                run.append(row)
                continue
            yield from self._run(run)
            run = []
            yield self._row(row)
        yield from self._run(run)

    def _run(self, rows: Sequence[_Row]) -> Iterator[str]:
        if len(rows) < _FOLDED_FROM:
            yield from map(self._row, rows)
            return
        names = list(dict.fromkeys(self._image(row.frame) for row in rows))
        image_names = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        summary = f"{counted(len(rows), 'frame')} of the system: {text(image_names)}"
        content = element("ol", "".join(map(self._row, rows)), class_="frames")
        yield element("li", folded(summary, content), class_="run")

    def _image(self, frame: ReportedFrame) -> str:
        if frame.image is None:
            return "???"
        image = self._task.images[frame.image]
        name = image.name or image.path.rpartition("/")[2]
        return name[:MAX_IMAGE_NAME_LENGTH] or "???"

    def _row(self, row: _Row) -> str:
        """Return a list item: there are up to hundreds of thousands: short tags save space."""
        frame = row.frame
        name = "" if frame.symbol is None else frame.symbol.name
        place = ""
        if frame.symbol is None and frame.offset is not None:
            place = f" <s>+ {frame.offset:#x}</s>"
        elif frame.symbol is not None and frame.symbol.offset is not None:
            place = f" <s>+ {frame.symbol.offset}</s>"
        number = "" if frame.is_inline else row.number
        address = "" if frame.address is None else f"{frame.address:#x}"
        mark = _MARKS[frame.adjustment]
        shown = f"<bdi>{text(name)}</bdi>" if name else "<em>no name</em>"
        shown += place + _inline(frame) + _location(frame) + _source(frame) + _notes(frame)
        inline = " inline" if frame.is_inline else ""
        return (
            f'<li class="f {row.owner.owner.value}{inline}"><b>{number}</b>'
            f"<bdi>{text(self._image(frame))}</bdi><code>{address}{mark}</code>"
            f"<span>{shown}</span>"
        )


def _inline(frame: ReportedFrame) -> str:
    return " <u>inlined</u>" if frame.is_inline else ""


def _location(frame: ReportedFrame) -> str:
    location = frame.location
    if location is None:
        return ""
    line = "" if location.line is None else f":{location.line}"
    column = "" if location.column is None or not line else f":{location.column}"
    folder, slash, name = location.path.rpartition("/")
    place = text(name + line + column)
    return f' <cite data-in="{text(folder + slash)}">{place}</cite>'


def _source(frame: ReportedFrame) -> str:
    if frame.symbol is None or frame.symbol.source is NameSource.REPORT:
        return ""
    label, _ = _SOURCES[frame.symbol.source]
    return f' <u class="{label}">{label}</u>'


def _notes(frame: ReportedFrame) -> str:
    if not frame.details:
        return ""
    notes = [
        f"{key}: {value}" for key, value in frame.details.items() if isinstance(value, str | int)
    ]
    reported = frame.details.get("reported symbol")
    if isinstance(reported, dict):
        notes.append(f"in the report: {reported.get('name')}")
    return f" <small>{text('; '.join(notes))}</small>" if notes else ""


def key_to_marks() -> str:
    """Return the key to the marks beside frames."""
    rows = "".join(
        f"<dt><u>{label}</u></dt><dd>{text(why)}</dd>" for label, why in _SOURCES.values()
    )
    rows += "".join(
        f"<dt><code>{mark.strip() or 'no mark'}</code></dt><dd>the address is {text(meaning)}</dd>"
        for mark, meaning in ((_MARKS[one], meaning) for one, meaning in _ADJUSTMENTS.items())
    )
    note = element("p", "A name without a mark is the report's own.")
    return folded("What the marks mean", note + element("dl", rows, class_="facts"))


_OPEN = 3
"""Maximum threads shown open, if the report marks none as crashed."""


class WaitLabels:
    """Labels of threads' waits, from the wait graph of the whole report."""

    def __init__(self, graph: WaitGraph) -> None:
        self._graph = graph
        self._edges: dict[int, list[WaitEdge]] = {}
        for edge in graph.edges:
            self._edges.setdefault(edge.waiter, []).append(edge)
        self._deadlocked = {index for deadlock in graph.deadlocks for index in deadlock.threads}
        self._places = {id(node.thread): index for index, node in enumerate(graph.threads)}

    def of(self, thread: WaitingThread) -> str:
        """Return the badges of a thread."""
        index = self._places[id(thread)]
        badges = ""
        if thread.wait is not None:
            kind = "idle" if thread.wait.kind.is_idle else "waits"
            label = thread.wait.kind.value
            badges += " " + element("span", text(label), class_=f"badge {kind}")
        for edge in self._edges.get(index, ()):
            sure = "" if edge.source.is_certain else " (a guess)"
            label = f"waits for {edge.owner_label}{sure}"
            badges += " " + element("span", text(label), class_="badge waits", title=edge.text)
        if index in self._deadlocked:
            badges += " " + element("span", "deadlock", class_="badge bad")
        return badges


def stacks(
    report: Report, task: ReportedTask, waiting: list[WaitingThread], labels: WaitLabels
) -> str:
    """Return all threads and trees of a task.

    Args:
        report: the task's report, whose exception is shown with it.
        task: the process.
        waiting: its threads from the wait graph.
        labels: of their waits.
    """
    lists = StackLists(task)
    parts: list[str] = []
    exception = report.language_exception
    if task is report and exception is not None and exception.frames:
        head = "<b>Where the exception was thrown</b>"
        content = lists.write(exception.frames)
        parts.append(folded(head, content, is_open=True, class_="thread crashed"))
    of_threads = iter(waiting)
    all_open = len(task.threads) <= _OPEN and not any(thread.crashed for thread in task.threads)
    for thread in task.threads:
        waits = next(of_threads, None)
        badges = "" if waits is None else labels.of(waits)
        parts.append(_thread(thread, lists, badges, is_open=all_open or thread.crashed))
    known = {(thread.id, thread.queue, thread.name): thread for thread in of_threads}
    for tree in task.trees:
        waits = known.get((tree.thread, tree.queue, tree.name))
        parts.append(_tree(tree, task, lists, "" if waits is None else labels.of(waits)))
    return "".join(parts)


def _thread(thread: ReportedThread, lists: StackLists, waits: str, *, is_open: bool) -> str:
    head = element("b", f"Thread {thread.index}")
    if thread.crashed:
        head += " " + element("span", "crashed", class_="badge bad")
    head += "".join(_names(thread.name, thread.queue, thread.id))
    machine = sum(not frame.is_inline for frame in thread.frames)
    head += waits + " " + element("small", counted(machine, "frame"))
    content = lists.write(thread.frames)
    if thread.registers is not None:
        content += _registers(thread.registers)
    kind = "thread crashed" if thread.crashed else "thread"
    return folded(head, content, is_open=is_open, class_=kind)


def _names(name: str | None, queue: str | None, number: int | None) -> Iterator[str]:
    if name:
        yield " " + element("bdi", text(name))
    if queue:
        yield " " + element("bdi", text(queue), class_="queue", title="dispatch queue")
    if number is not None:
        yield " " + element("small", f"{number:#x}" if number >= 0 else str(number))


def _tree(tree: SampledTree, task: ReportedTask, lists: StackLists, waits: str) -> str:
    samples = tree.count or tree.root_samples
    weight = task.kind.weight if isinstance(task, Report) else "sample"
    head = element("b", "Sampled" if weight == "sample" else "Calls of") + "".join(
        _names(tree.name, tree.queue, tree.thread)
    )
    if tree.is_attributed:
        head += " " + element("span", "subject of the report", class_="badge bad")
    size = f"{counted(samples, weight)}, {counted(len(tree.nodes), 'node')}"
    head += waits + " " + element("small", size)
    content = element("p", "The heaviest stack; the flame graph has all.")
    content += lists.write(heaviest_stack(tree))
    is_open = tree.is_attributed or len(task.trees) == 1
    return folded(head, content, is_open=is_open, class_="thread")


def _registers(registers: ReportedRegisters) -> str:
    cells = "".join(
        element(
            "span",
            f"<b>{text(register.name)}</b> {register.value:#018x}"
            + (f" <small>{text(register.description)}</small>" if register.description else ""),
        )
        for register in registers.registers
    )
    head = "Registers" + (f" ({text(registers.flavor)})" if registers.flavor else "")
    return folded(head, element("div", cells, class_="registers"))
