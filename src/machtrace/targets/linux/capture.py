"""Copies threads and builds a snapshot's threads and problems from them."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from errno import EAGAIN, EPERM

from machtrace.errors import (
    MachtraceError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import ThreadInfo
from machtrace.targets.linux.access import OtherTracer, access_error
from machtrace.targets.linux.blocked import copy_waiting
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CapturedThreads,
    CaptureFailure,
    CopiedThread,
    ThreadCopier,
    ThreadCopy,
    UncopiedThread,
    copy_of_row,
)


class PtraceCopier:
    """Stops and copies threads with ``native/ptrace/ptrace.c``.

    A whole capture is one C call, on a thread of its own and without the interpreter's lock.

    Raises:
        TargetSpecError: the extension is not built.
    """

    def __init__(self) -> None:
        try:
            from machtrace._native import _ptrace
        except ImportError as error:
            raise TargetSpecError(
                f"machtrace was installed without its extension _ptrace ({error})",
                remedy="install a wheel of machtrace, or build it with a C compiler",
            ) from error
        self._copy_threads, self._copy_traced = _ptrace.copy_threads, _ptrace.copy_traced
        self.is_traced = False
        """Whether the calling OS thread has seized the threads."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        try:
            copy = self._copy_traced if self.is_traced else self._copy_threads
            rows = copy(tuple(threads), stack_ranges, stack_limit, STOP_LIMIT_NS, SLEEP_LIMIT_NS)
        except (OSError, MemoryError, ValueError) as error:
            raise TargetError(f"cannot copy threads ({error})", remedy=BEGIN_REMEDY) from error
        # A thread may stop at any time after the request.
        return [copy_of_row(row, since_ns=row[6]) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSource:
    """The process that threads are copied from, and the copier."""

    directory: ProcessDirectory
    other_tracer: OtherTracer
    arch: Arch
    memory: MemoryReader
    copier: ThreadCopier
    stack_limit: int


@dataclass(slots=True)
class ThreadCapture:
    """The threads of one snapshot, as far as they are copied."""

    source: CaptureSource
    found: CapturedThreads = field(default_factory=CapturedThreads)

    def add(
        self, threads: Sequence[ThreadInfo], ranges: array[int], *, are_new: bool = False
    ) -> None:
        """Copy ``threads``.

        Args:
            threads: the threads.
            ranges: see :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`.
            are_new: they started after the capture began, so one that has exited is no problem.

        Raises:
            TargetError: this machine lacks the memory to begin.
        """
        ids = [thread.id for thread in threads]
        copies = self._copies(ids, ranges)
        self.take(threads, [copies[thread] for thread in ids], ranges, are_new=are_new)

    def _copies(self, ids: Sequence[int], ranges: array[int]) -> dict[int, ThreadCopy]:
        source, copies = self.source, dict[int, ThreadCopy]()

        def copy(threads: Sequence[int]) -> None:
            results = source.copier.copy(threads, ranges, stack_limit=source.stack_limit)
            copies.update(zip(threads, results, strict=True))

        copy(ids)
        for _ in source.other_tracer.pauses(lambda: refused(source.directory, copies.values())):
            copy(refused(source.directory, copies.values()))
        return copies

    def take(
        self,
        threads: Sequence[ThreadInfo],
        copies: Sequence[ThreadCopy],
        ranges: array[int],
        *,
        are_new: bool = False,
    ) -> None:
        """Add existing copies, one for each of ``threads``; see :meth:`add`."""
        for info, copy in zip(threads, copies, strict=True):
            if isinstance(copy, CopiedThread):
                self.found.keep(info, copy)
                continue
            if copy.is_uninterruptible or copy.why is CaptureFailure.BLOCKED:
                self._keep_waiting(info, ranges)
            error = why_not(self.source.directory, copy)
            if not (are_new and isinstance(error, ThreadGoneError)):
                self.found.miss(info, error)

    def check_any(self) -> None:
        """Raise the reason for an empty snapshot.

        Raises:
            TargetGoneError: the process has exited.
            TargetAccessError: every thread was refused.
        """
        problems = self.found.problems
        if self.found.threads or not problems:
            return
        self.source.directory.live_thread()
        refusals = [p.error for p in problems if isinstance(p.error, PermissionError)]
        if len(refusals) == len(problems):
            raise refusals[0]

    def _keep_waiting(self, info: ThreadInfo, ranges: array[int]) -> None:
        ends = list(ranges[1::2])

        def range_end(sp: int) -> int:
            upto = bisect_right(ends, sp)
            return ends[upto] if upto < len(ends) else sp

        try:
            waiting = copy_waiting(
                info,
                self.source.arch,
                lambda: self.source.directory.read(f"task/{info.id}/syscall"),
                self.source.memory,
                range_end,
                self.source.stack_limit,
            )
        except (OSError, TargetGoneError):
            return
        if waiting is not None:
            state, cpu_ns = self.found.activity(info.id)
            self.found.threads.append(replace(waiting, state=state, cpu_ns=cpu_ns))


def refused(directory: ProcessDirectory, copies: Iterable[ThreadCopy]) -> list[int]:
    """Return the ids of the threads that exist and that the kernel did not let be seized."""
    return [
        copy.id
        for copy in copies
        if isinstance(copy, UncopiedThread)
        and copy.why is CaptureFailure.REFUSED
        and copy.errno == EPERM
        and directory.state(copy.id) not in EXITED_STATES
    ]


def why_not(directory: ProcessDirectory, copy: UncopiedThread) -> MachtraceError:
    """Return the error for a thread that was not copied."""
    thread = copy.id
    if copy.why is CaptureFailure.BLOCKED or copy.errno == EAGAIN:
        return _why_no_answer(copy)
    match copy.why:
        case CaptureFailure.REFUSED if directory.state(thread) not in EXITED_STATES:
            error = OSError(copy.errno, os.strerror(copy.errno))
            return access_error(directory, error, thread)
        case CaptureFailure.GONE | CaptureFailure.REFUSED:
            return ThreadGoneError(f"thread {thread} has exited", thread=thread)
        case CaptureFailure.NOT_STOPPED if copy.is_uninterruptible:
            return TargetError(
                f"thread {thread} cannot be stopped: it is in uninterruptible sleep",
                remedy="check what it waits for: a device, a network file system, a child",
            )
        case CaptureFailure.NOT_STOPPED:
            return TargetError(
                f"thread {thread} did not stop in time",
                remedy="capture again when the machine is less busy",
            )
        case _:
            return TargetError(
                f"thread {thread} could not be copied ({os.strerror(copy.errno)})",
                remedy="capture again",
            )


def _why_no_answer(copy: UncopiedThread) -> TargetError:
    """Return the error for a thread of this process that a signal cannot stop."""
    if copy.why is CaptureFailure.BLOCKED:
        return TargetError(
            f"thread {copy.id} blocks the signal that would stop it",
            remedy="unblock the signal, choose another with MACHTRACE_SIGNAL, or capture from "
            "another process",
        )
    return TargetError(
        f"thread {copy.id} could not be sent a signal: too many are pending",
        remedy="raise the limit of pending signals (ulimit -i), or capture less often",
    )
