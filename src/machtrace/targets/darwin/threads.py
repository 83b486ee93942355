"""Names, queues and states of a macOS process's threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.macho.thread_state import read_native_state
from machtrace.frozen import dataclass
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
    ThreadState,
)
from machtrace.targets.darwin.copier import why_not
from machtrace.targets.shared.thread_copy import Activity, CopiedThread, ThreadCopy

if TYPE_CHECKING:
    from machtrace._native._darwin_task import ThreadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedThread:
    """A thread as the kernel lists it."""

    id: int
    queue_address: int
    """Where it keeps the address of the queue that it serves; 0 where it never served one."""
    name: str
    """Empty where it has none."""
    state: ThreadState | None
    cpu_ns: int | None
    """User and system time; None where the kernel did not return them."""


_STATES = {
    1: ThreadState.RUNNING,
    2: ThreadState.STOPPED,
    3: ThreadState.SLEEPING,
    4: ThreadState.UNINTERRUPTIBLE,
}
"""By ``TH_STATE_…`` of ``mach/thread_info.h``."""


def listed_threads(rows: Sequence[ThreadRow]) -> tuple[ListedThread, ...]:
    """List the threads of the extension's rows, in the kernel's order."""
    return tuple(
        ListedThread(
            id=row[0],
            queue_address=row[2],
            name=row[5].decode("utf-8", "replace"),
            state=_STATES.get(row[3]),
            cpu_ns=row[6] if row[3] else None,
        )
        for row in rows
    )


def described(
    threads: Iterable[ListedThread], labels: Mapping[int, str], *, before: int, main: int
) -> tuple[ThreadInfo, ...]:
    """Describe ``threads``.

    Args:
        threads: in the kernel's order.
        labels: of the queues that they serve, by thread.
        before: how many threads there are before them.
        main: the id of the main thread.
    """
    return tuple(
        ThreadInfo(
            id=ThreadId(thread.id),
            index=index,
            name=thread.name or None,
            queue=labels.get(thread.id),
            is_main=thread.id == main,
        )
        for index, thread in enumerate(threads, before + 1)
    )


def main_thread(threads: Iterable[ListedThread]) -> int:
    """Return the id of the first thread: ids only ever grow. 0 without threads."""
    return min((thread.id for thread in threads), default=0)


def thread_snapshots(
    infos: Sequence[ThreadInfo],
    copies: Sequence[ThreadCopy],
    process: ProcessInfo,
    activity: Mapping[int, Activity],
    *,
    are_new: bool = False,
) -> tuple[list[ThreadSnapshot], list[Problem]]:
    """Copies of threads, and what is missing of them.

    Args:
        infos: of the threads.
        copies: one for each.
        process: theirs.
        activity: states and processor times by thread, from before the copies.
        are_new: they started after the capture began; then one that has ended is not missed.
    """
    snapshots: list[ThreadSnapshot] = []
    problems: list[Problem] = []
    for info, copy in zip(infos, copies, strict=True):
        if isinstance(copy, CopiedThread):
            try:
                state, cpu_ns = activity.get(info.id, (None, None))
                snapshot = _snapshot(info, copy, process)
                snapshots.append(replace(snapshot, state=state, cpu_ns=cpu_ns))
            except FormatError as error:
                problems.append(Problem(thread=info.id, error=error))
            continue
        reason: MachtraceError = why_not(copy)
        if not (are_new and copy.why is copy.why.GONE):
            problems.append(Problem(thread=info.id, error=reason))
    return snapshots, problems


def _snapshot(info: ThreadInfo, copy: CopiedThread, process: ProcessInfo) -> ThreadSnapshot:
    return ThreadSnapshot(
        info=info,
        registers=read_native_state(
            copy.registers, process.arch, process.pointer_mask, f"thread {info.id}"
        ),
        stack=copy.stacks[0],
        taken_at_ns=copy.taken_at_ns,
        stopped_for_ns=copy.stopped_for_ns,
    )
