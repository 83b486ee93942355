"""Threads and sampled trees: what each was doing, with its stack and registers."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.report import (
    Report,
    ReportedRegisters,
    ReportedTask,
    ReportedThread,
    SampledTree,
)
from machtrace.reports.analysis.subject_stack import heaviest_stack
from machtrace.reports.analysis.waits.graph import WaitEdge, WaitGraph
from machtrace.reports.analysis.waits.threads import WaitingThread
from machtrace.reports.html.frames import StackLists
from machtrace.reports.html.markup import element, folded, quantity, text

_OPEN = 3
"""Maximum threads shown open, if the report marks none as crashed."""


class WaitLabels:
    """Labels of threads' waits, from the wait graph of the whole report."""

    def __init__(self, graph: WaitGraph) -> None:
        self._graph = graph
        self._edges: dict[int, list[WaitEdge]] = {}
        for edge in graph.edges:
            self._edges.setdefault(edge.waiter, []).append(edge)
        self._deadlocked = {index for one in graph.deadlocks for index in one.threads}
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
    head += waits + " " + element("small", quantity(machine, "frame"))
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
    samples = tree.count or sum(node.samples for node in tree.nodes if node.parent is None)
    head = element("b", "Sampled") + "".join(_names(tree.name, tree.queue, tree.thread))
    if tree.is_attributed:
        head += " " + element("span", "subject of the report", class_="badge bad")
    size = f"{quantity(samples, 'sample')}, {quantity(len(tree.nodes), 'node')}"
    head += waits + " " + element("small", size)
    content = element("p", "The heaviest stack; the flame graph has all.")
    content += lists.write(heaviest_stack(tree))
    is_open = tree.is_attributed or len(task.trees) == 1
    return folded(head, content, is_open=is_open, class_="thread")


def _registers(registers: ReportedRegisters) -> str:
    cells = "".join(
        element(
            "span",
            f"<b>{text(one.name)}</b> {one.value:#018x}"
            + (f" <small>{text(one.description)}</small>" if one.description else ""),
        )
        for one in registers.registers
    )
    head = "Registers" + (f" ({text(registers.flavor)})" if registers.flavor else "")
    return folded(head, element("div", cells, class_="registers"))
