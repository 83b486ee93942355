"""The threads of a report with what each waits for, from threads and sampled trees alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from machtrace.reports.analysis.subject_stack import heaviest_path
from machtrace.reports.analysis.waits.frames import Wait, wait_of
from machtrace.reports.analysis.waits.wait_note import WaitNote, wait_note
from machtrace.model.json_value import Details
from machtrace.model.report import ReportedTask
from machtrace.model.reported_frame import ReportedFrame
from machtrace.model.reported_thread import ReportedThread
from machtrace.model.reported_tree import SampledTree

_NOTES = ("waitInfo", "turnstileInfo", "heading")
_WAIT_EVENT = "waitEvent"
_MAIN_QUEUE = "com.apple.main-thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingThread:
    """A thread of a task, and what is known of its waiting."""

    index: int
    """Its place in the task: threads first, then trees."""
    id: int | None
    name: str | None
    queue: str | None
    is_main: bool
    wait: Wait | None
    """What its stack waits for; None where it seems to run."""
    notes: tuple[tuple[WaitNote, int], ...]
    """What the report itself says, and in how many samples."""
    event: tuple[int, ...]
    """The kernel's event that it waits for (``waitEvent`` of stackshots), which threads share that
    wait for the same: numbers that mean nothing else here; none where none is said."""
    samples: int
    """How many there are of it; 1 of a thread that was looked at once."""

    @property
    def label(self) -> str:
        """What people call it."""
        number = f"thread {self.index}" if self.id is None else f"thread {self.id:#x}"
        said = self.name or self.queue or ("main" if self.is_main else "")
        return f"{number} ({said})" if said else number


def waiting_threads(task: ReportedTask) -> tuple[WaitingThread, ...]:
    """Of all threads and trees of ``task``, in its order."""
    found = [_of_thread(index, thread) for index, thread in enumerate(task.threads)]
    found += (
        _of_tree(index, tree)
        for index, tree in enumerate(task.trees, len(found))
        if tree.thread is not None or len(task.trees) > 1
    )
    return tuple(found)


def _of_thread(index: int, thread: ReportedThread) -> WaitingThread:
    notes = [note for frame in thread.frames for note in _frame_notes(frame)]
    notes += _detail_notes(thread.details)
    return WaitingThread(
        index=thread.index,
        id=thread.id,
        name=thread.name,
        queue=thread.queue,
        is_main=thread.queue == _MAIN_QUEUE or index == 0,
        wait=wait_of(_names(thread.frames)),
        notes=tuple((note, 1) for note in dict.fromkeys(notes)),
        event=_event(thread.details),
        samples=1,
    )


def _of_tree(index: int, tree: SampledTree) -> WaitingThread:
    weights: dict[WaitNote, int] = {}
    for node in tree.nodes:
        for note in _frame_notes(node.frame):
            weights[note] = weights.get(note, 0) + node.samples
    path = heaviest_path(tree)
    stack = [tree.nodes[at].frame for at in path]
    if not tree.is_inverted:
        stack.reverse()
    samples = tree.count or sum(node.samples for node in tree.nodes if node.parent is None)
    for note in _detail_notes(tree.details):
        weights.setdefault(note, samples)
    return WaitingThread(
        index=index,
        id=tree.thread,
        name=tree.name,
        queue=tree.queue,
        is_main=tree.queue == _MAIN_QUEUE,
        wait=wait_of(_names(stack)),
        notes=tuple(sorted(weights.items(), key=lambda item: -item[1])),
        event=_event(tree.details),
        samples=samples,
    )


def _names(frames: Iterable[ReportedFrame]) -> Iterator[str]:
    return ("" if frame.symbol is None else frame.symbol.name for frame in frames)


def _frame_notes(frame: ReportedFrame) -> Iterator[WaitNote]:
    for value in frame.details.values():
        if isinstance(value, str) and "blocked by" in value:
            note = wait_note(value)
            if note is not None:
                yield note


def _detail_notes(details: Details) -> Iterator[WaitNote]:
    values = [details.get(key) for key in _NOTES]
    lines = details.get("lines")
    values += lines if isinstance(lines, list) else []
    for value in values:
        note = wait_note(value) if isinstance(value, str) else None
        if note is not None:
            yield note


def _event(details: Details) -> tuple[int, ...]:
    value = details.get(_WAIT_EVENT)
    numbers = value if isinstance(value, list) else [value]
    event = tuple(one for one in numbers if type(one) is int)
    return event if len(event) == len(numbers) and any(event) else ()
