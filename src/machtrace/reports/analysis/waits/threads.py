"""A report's threads and sampled trees, with what each waits for.

Notes on blocked threads have the forms of spindump texts of macOS 10.15 to 15 and of iOS::

    (blocked by turnstile waiting for Demo [3715] thread 0xf1aeb)
    (blocked by turnstile waiting for thread 0xce8dc4)
    (blocked by turnstile waiting for this thread - part of a deadlock)
    (blocked by turnstile waiting for tccd after 2 hops)
    (suspended, blocked by turnstile waiting for Demo [858])
    (blocked by mutex owned by Demo [12] thread 0x5)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from machtrace.frozen import dataclass
from machtrace.model.report import (
    Details,
    Report,
    ReportedFrame,
    ReportedTask,
    ReportedThread,
    ReportKind,
    SampledTree,
)
from machtrace.model.text import printable
from machtrace.reports.analysis.subject_stack import heaviest_path
from machtrace.reports.analysis.waits.frames import Wait, wait_of
from machtrace.reports.log_lines import LINES

_MAX_LENGTH = 1024
"""Characters that are examined."""
_NOTE = re.compile(
    r"\bblocked by (?P<by>[a-z][a-z0-9 _-]{0,60}?)"
    r"(?: 0x[0-9a-fA-F]{1,16})?"
    r"(?: (?:waiting for|owned by|held by) (?P<owner>[^()]{1,300}))?(?=[)(,]|$)"
)
_HOPS = re.compile(r",? after (?P<hops>[0-9]{1,9}) hops?$")
_DEADLOCK = re.compile(r"[ ,-]{0,4}(?:and is )?part of a deadlock$")
_THREAD = re.compile(r"(?:^|[ ,])thread 0x(?P<id>[0-9a-fA-F]{1,16})$")
_MAIN = re.compile(r"(?:^| )main thread$")
_PROCESS = re.compile(
    r"(?P<name>.{1,200}?)(?: \[(?P<pid>[0-9]{1,10})\])?(?: \[unique pid [0-9]{1,19}\])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitNote:
    """A parsed note on a blocked thread."""

    by: str
    """The kind of lock: ``turnstile``, ``mutex``, ``krwlock``."""
    process: str | None = None
    """The owner's process; None if not named: the waiter's own, if a thread is named."""
    pid: int | None = None
    thread: int | None = None
    """The owner's system-wide id."""
    is_own_thread: bool = False
    """Whether the owner is the thread that waits."""
    is_main_thread: bool = False
    """Whether the owner is its process' main thread."""
    hops: int = 0
    """Owners between the thread and the named one."""
    is_deadlock: bool = False
    """Whether the system reports that it is part of a deadlock."""
    is_recorded: bool = False
    """Whether the lock itself, or the kernel, records the owner."""
    text: str = ""
    """The note as written."""

    @property
    def names_owner(self) -> bool:
        """Whether it names the owner."""
        has_process = self.process is not None or self.pid is not None
        return self.is_own_thread or self.thread is not None or has_process


def wait_note(text: str) -> WaitNote | None:
    """Return the note in ``text``; None if it has none."""
    match = _NOTE.search(text[:_MAX_LENGTH])
    if match is None:
        return None
    owner = (match["owner"] or "").strip()
    is_deadlock = _DEADLOCK.search(owner) is not None or "part of a deadlock" in text
    owner = _DEADLOCK.sub("", owner).rstrip(" ,-")
    hops = _HOPS.search(owner)
    owner = owner if hops is None else owner[: hops.start()]
    is_own = owner in ("this thread", "itself")
    thread = _THREAD.search(owner)
    main = None if is_own or thread is not None else _MAIN.search(owner)
    rest = owner[: thread.start()] if thread else owner[: main.start()] if main else owner
    process = None if is_own else _PROCESS.fullmatch(rest.strip())
    return WaitNote(
        by=match["by"],
        process=None if process is None else process["name"],
        pid=int(process["pid"]) if process is not None and process["pid"] else None,
        thread=int(thread["id"], 16) if thread else None,
        is_own_thread=is_own,
        is_main_thread=main is not None,
        hops=int(hops["hops"]) if hops else 0,
        is_deadlock=is_deadlock,
        text=match[0],
    )


_NOTES = ("waitInfo", "turnstileInfo", "heading")
_WAIT_EVENT = "waitEvent"
_WAITS_FOR = "waits_for"
_MAIN_QUEUE = "com.apple.main-thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingThread:
    """A thread of a task, and what is known of its wait."""

    index: int
    """Its index in the task: threads first, then trees."""
    id: int | None
    name: str | None
    queue: str | None
    is_main: bool
    wait: Wait | None
    """The wait of its stack; None if it seems to run."""
    notes: tuple[tuple[WaitNote, int], ...]
    """The report's notes, with the number of samples of each."""
    event: tuple[int, ...]
    """The kernel event that it waits for (``waitEvent`` of stackshots), shared by threads that wait
    for the same; the numbers have no other meaning; empty if not reported.
    """
    samples: int
    """The number of its samples; 1 for a thread that was captured once."""

    @property
    def label(self) -> str:
        """Its name for people."""
        number = f"thread {self.index}" if self.id is None else f"thread {self.id:#x}"
        label = self.name or self.queue or ("main" if self.is_main else "")
        return f"{number} ({label})" if label else number


def waiting_threads(task: ReportedTask) -> tuple[WaitingThread, ...]:
    """Return all threads and trees of ``task``, in its order."""
    threads = [_of_thread(index, thread) for index, thread in enumerate(task.threads)]
    threads += (
        _of_tree(index, tree)
        for index, tree in enumerate(task.trees, len(threads))
        if tree.thread is not None or len(task.trees) > 1
    )
    if isinstance(task, Report) and task.kind is ReportKind.SPOOL:
        # The innermost functions are watched ones: their names do not mean that a thread waits.
        threads = [replace(thread, wait=None, notes=()) for thread in threads]
    return tuple(threads)


def _of_thread(index: int, thread: ReportedThread) -> WaitingThread:
    notes = [note for frame in thread.frames for note in _frame_notes(frame)]
    notes += _detail_notes(thread.details)
    notes += _recorded_note(thread.details, thread.id)
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
    samples = tree.count or tree.root_samples
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


def _recorded_note(details: Details, thread: int | None) -> Iterator[WaitNote]:
    """Yield the note of a recorded owner, as captures have it; see ``ThreadInfo.waits_for``."""
    wait = details.get(_WAITS_FOR)
    owner = wait.get("owner") if isinstance(wait, dict) else None
    if not isinstance(wait, dict) or not isinstance(owner, dict) or not owner.get("recorded"):
        return
    pid, holder, address = owner.get("pid"), owner.get("thread"), wait.get("address")
    text = f"{wait.get('what')}" + (f" {address:#x}" if type(address) is int else "")
    yield WaitNote(
        by=str(wait.get("what")),
        pid=pid if type(pid) is int else None,
        thread=holder if type(holder) is int else None,
        is_own_thread=type(holder) is int and holder == thread,
        is_recorded=True,
        text=printable(text),
    )


def _detail_notes(details: Details) -> Iterator[WaitNote]:
    values = [details.get(key) for key in _NOTES]
    lines = details.get(LINES)
    values += lines if isinstance(lines, list) else []
    for value in values:
        note = wait_note(value) if isinstance(value, str) else None
        if note is not None:
            yield note


def _event(details: Details) -> tuple[int, ...]:
    value = details.get(_WAIT_EVENT)
    numbers = value if isinstance(value, list) else [value]
    event = tuple(number for number in numbers if type(number) is int)
    return event if len(event) == len(numbers) and any(event) else ()
