"""The wait graph of a report, and its cycles.

An edge records its source: a note of the system or an owner that a lock records is certain, an
inference from queues is a guess and marked as one. A lock whose owner nothing names makes no edge.
Cycles are strongly connected components (Tarjan 1972), computed without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportedTask
from machtrace.reports.analysis.waits.frames import WaitKind
from machtrace.reports.analysis.waits.threads import WaitingThread, WaitNote, waiting_threads


def strong_components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the components, each ascending; ``edges`` has the successors of each node.

    A node on no cycle is alone.
    """
    order = [-1] * len(edges)
    lowest = [0] * len(edges)
    is_open = [False] * len(edges)
    stack: list[int] = []
    components: list[list[int]] = []
    count = 0
    for root in range(len(edges)):
        if order[root] >= 0:
            continue
        # A node and the number of its successors that are done; it is resumed after each of them.
        work = [(root, 0)]
        while work:
            node, place = work.pop()
            if not place:
                order[node] = lowest[node] = count
                count += 1
                stack.append(node)
                is_open[node] = True
            else:
                lowest[node] = min(lowest[node], lowest[edges[node][place - 1]])
            for at in range(place, len(edges[node])):
                other = edges[node][at]
                if order[other] < 0:
                    work += [(node, at + 1), (other, 0)]
                    break
                if is_open[other]:
                    lowest[node] = min(lowest[node], order[other])
            else:
                if lowest[node] == order[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        is_open[component[-1]] = False
                    components.append(sorted(component))
    return components


_OWN_QUEUE = "dispatch_sync called on queue already owned by current thread"
_CONCURRENT = "com.apple.root."
_TWO = 2
"""Serving threads examined: with a third, the owner would be ambiguous."""
_ON_MAIN = re.compile(r"[oO]n_?[mM]ain_?(?:[tT]hread|[qQ]ueue)")


class EdgeSource(Enum):
    """The source of an edge."""

    NOTE = "note"
    """The report names the thread waited for."""
    MESSAGE = "message"
    """The process stated it when it ended."""
    OWNER = "owner"
    """The lock that is waited for, or the kernel, records its owner."""
    CALLER = "caller"
    """A guess: the waiting function is named after the main thread's queue."""
    ONLY_QUEUE = "only queue"
    """A guess: the thread waits for a queue, and only one other thread serves any."""

    @property
    def is_certain(self) -> bool:
        """Whether it is more than a guess."""
        return self in (EdgeSource.NOTE, EdgeSource.MESSAGE, EdgeSource.OWNER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEdge:
    """One thread waiting for another."""

    waiter: int
    """An index into :attr:`WaitGraph.threads`."""
    owner: int | None
    """The same; None if it is not a known thread of the report."""
    owner_label: str
    """The owner as the report names it."""
    source: EdgeSource
    samples: int
    """The number of the waiter's samples with this wait."""
    text: str
    """The text that states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitNode:
    """A thread in the graph."""

    process: str
    thread: WaitingThread


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock:
    """A cycle of threads that wait for one another; a thread that waits for itself too."""

    threads: tuple[int, ...]
    """Indices into :attr:`WaitGraph.threads`."""
    is_certain: bool
    """Whether no edge of the cycle is a guess."""
    is_noted: bool
    """Whether the system itself reported a deadlock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGraph:
    """The threads of all processes of a report, and what they wait for."""

    threads: tuple[WaitNode, ...]
    edges: tuple[WaitEdge, ...]
    deadlocks: tuple[Deadlock, ...]
    shared_events: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Kernel events that several threads wait for, and these threads; who would signal them is
    unknown.
    """
    ownerless: tuple[int, ...]
    """Threads that wait for a lock or queue of unknown owner."""


def wait_graph(report: Report) -> WaitGraph:
    """Build the wait graph of ``report``."""
    nodes: list[WaitNode] = []
    ranges: list[range] = []
    for task in report.tasks:
        threads = waiting_threads(task)
        ranges.append(range(len(nodes), len(nodes) + len(threads)))
        process = process_label(task)
        nodes += [WaitNode(process=process, thread=thread) for thread in threads]
    finder = _Finder(report, nodes, ranges)
    edges = tuple(
        edge
        for task, its_range in enumerate(ranges)
        for index in its_range
        for edge in finder.edges(task, index)
    )
    known = {edge.waiter for edge in edges}
    return WaitGraph(
        threads=tuple(nodes),
        edges=edges,
        deadlocks=tuple(_deadlocks(nodes, edges)),
        shared_events=tuple(_shared_events(nodes, ranges)),
        ownerless=tuple(
            index
            for index, node in enumerate(nodes)
            if index not in known and node.thread.wait is not None and node.thread.wait.kind.is_lock
        ),
    )


def process_label(task: ReportedTask) -> str:
    """Return a process' name and number."""
    process = task.process
    path = process.path or ""
    name = process.name or path.rpartition("/")[2] or process.identifier or "process"
    return name if process.pid is None else f"{name} [{process.pid}]"


class _Finder:
    """Resolves the threads that notes and messages name."""

    def __init__(self, report: Report, nodes: Sequence[WaitNode], ranges: Sequence[range]) -> None:
        self._nodes = nodes
        self._by_id: dict[int, int] = {}
        self._main: dict[int, int] = {}
        self._tasks_by_pid: dict[int, int] = {}
        self._tasks_by_name: dict[str, int] = {}
        self._serving: dict[int, list[int]] = {}
        self._task_of = [task for task, its_range in enumerate(ranges) for _ in its_range]
        for task, (listed_task, its_range) in enumerate(zip(report.tasks, ranges, strict=True)):
            process = listed_task.process
            if process.pid is not None:
                self._tasks_by_pid.setdefault(process.pid, task)
            if process.name:
                self._tasks_by_name.setdefault(process.name, task)
            self._serving[task] = [
                index for index in its_range if _serves_alone(nodes[index].thread.queue)
            ]
            for index in its_range:
                thread = nodes[index].thread
                if thread.id is not None:
                    self._by_id.setdefault(thread.id, index)
                if thread.is_main:
                    self._main.setdefault(task, index)
        texts = (line for _, lines in report.application_information for line in lines)
        self._own_queue = any(_OWN_QUEUE in line for line in texts)
        self._crashed = next(
            (at for at, thread in zip(ranges[0], report.threads, strict=False) if thread.crashed),
            None,
        )

    def edges(self, task: int, index: int) -> Iterator[WaitEdge]:
        """Yield the edges of one thread."""
        thread = self._nodes[index].thread
        noted = False
        for note, samples in thread.notes:
            if note.names_owner:
                noted = True
                yield self._noted(task, index, note, samples)
        if noted:
            return
        if self._own_queue and index == self._crashed:
            yield self._edge(index, index, EdgeSource.MESSAGE, thread.samples, _OWN_QUEUE)
            return
        if thread.wait is None or thread.wait.kind is not WaitKind.DISPATCH_SYNC:
            return
        main = self._main.get(task, index)
        if main != index and _ON_MAIN.search(thread.wait.caller):
            yield self._edge(index, main, EdgeSource.CALLER, thread.samples, thread.wait.caller)
            return
        others = [one for one in self._serving[task][:_TWO] if one != index]
        if len(others) == 1 and len(self._serving[task]) <= _TWO:
            queue = self._nodes[others[0]].thread.queue
            text = f"{thread.wait.function}; {queue} is the only queue that another thread serves"
            yield self._edge(index, others[0], EdgeSource.ONLY_QUEUE, thread.samples, text)

    def _noted(self, task: int, index: int, note: WaitNote, samples: int) -> WaitEdge:
        owner: int | None = None
        if note.is_own_thread:
            owner = index
        elif note.thread is not None:
            owner = self._by_id.get(note.thread)
        elif note.is_main_thread:
            owner = self._main.get(self._task(note, task))
        label = note.process or ("process" if note.is_recorded and note.pid else "")
        if note.pid is not None:
            label += f" [{note.pid}]"
        if note.thread is not None:
            label += f" thread {note.thread:#x}"
        elif note.is_main_thread:
            label += " main thread"
        source = EdgeSource.OWNER if note.is_recorded else EdgeSource.NOTE
        edge = self._edge(index, owner, source, samples, note.text)
        if owner is not None:
            return edge
        return WaitEdge(
            waiter=index,
            owner=None,
            owner_label=label.strip(),
            source=source,
            samples=samples,
            text=note.text,
        )

    def _task(self, note: WaitNote, own: int) -> int:
        if note.pid is not None:
            return self._tasks_by_pid.get(note.pid, -1)
        return own if note.process is None else self._tasks_by_name.get(note.process, -1)

    def _edge(
        self, waiter: int, owner: int | None, source: EdgeSource, samples: int, text: str
    ) -> WaitEdge:
        label = ""
        if owner is not None:
            node = self._nodes[owner]
            label = node.thread.label
            if not self._same_task(waiter, owner):
                label = f"{node.process} {label}"
        return WaitEdge(
            waiter=waiter,
            owner=owner,
            owner_label=label,
            source=source,
            samples=samples,
            text=text,
        )

    def _same_task(self, first: int, other: int) -> bool:
        return self._task_of[first] == self._task_of[other]


def _serves_alone(queue: str | None) -> bool:
    """Return whether only one thread can serve the queue."""
    return bool(queue) and not (queue or "").startswith(_CONCURRENT)


def _deadlocks(nodes: Sequence[WaitNode], edges: Sequence[WaitEdge]) -> Iterator[Deadlock]:
    owners: list[list[int]] = [[] for _ in nodes]
    edges_of: dict[int, list[WaitEdge]] = {}
    for edge in edges:
        if edge.owner is not None:
            owners[edge.waiter].append(edge.owner)
            edges_of.setdefault(edge.waiter, []).append(edge)
    for component in strong_components(owners):
        members = set(component)
        if len(members) == 1 and component[0] not in owners[component[0]]:
            continue
        inside = [
            edge for index in component for edge in edges_of.get(index, ()) if edge.owner in members
        ]
        yield Deadlock(
            threads=tuple(component),
            is_certain=all(edge.source.is_certain for edge in inside),
            is_noted=any(
                note.is_deadlock for index in component for note, _ in nodes[index].thread.notes
            ),
        )


def _shared_events(
    nodes: Sequence[WaitNode], ranges: Sequence[range]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    waiting: dict[tuple[int, ...], list[int]] = {}
    for its_range in ranges:
        for index in its_range:
            event = nodes[index].thread.event
            if event:
                waiting.setdefault(event, []).append(index)
    for event, threads in waiting.items():
        if len(threads) > 1:
            yield event, tuple(threads)
