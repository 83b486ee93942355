"""Copy threads of another macOS process: ``native/darwin_task/task.h``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from machtrace.errors import MachtraceError, TargetError, TargetGoneError, ThreadGoneError
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.targets.darwin.extension import GONE, TaskExtension, result_name
from machtrace.targets.shared.thread_copy import (
    CaptureFailure,
    ThreadCopy,
    UncopiedThread,
    copy_of_row,
)


@dataclass(frozen=True, slots=True)
class DarwinCopies:
    """Threads as they stood."""

    copies: list[ThreadCopy]
    queues: dict[int, int]
    """By thread, the address of the dispatch queue that it was serving."""
    problem: MachtraceError | None = None
    """That something may have been left suspended."""


class DarwinCopier(Protocol):
    """Stops threads, copies each and lets it go."""

    def copy(self, threads: Sequence[int], *, stack_limit: int) -> DarwinCopies:
        """Copy threads; one result for each id, in their order.

        Raises:
            TargetGoneError: the process has exited.
            TargetError: the kernel refuses to begin.
        """
        ...


class TaskCopier:
    """Copies threads of the task that a port is of."""

    def __init__(self, extension: TaskExtension, pid: int, port: int, mask: PacMask) -> None:
        self._extension = extension
        self._pid = pid
        self._port = port
        self._mask = mask
        self.together = True
        """Whether the whole process is suspended until all are copied. If this process is killed
        meanwhile the kernel lets it go again; a thread that was stopped by itself stays so."""

    def copy(self, threads: Sequence[int], *, stack_limit: int) -> DarwinCopies:
        """See :meth:`DarwinCopier.copy`."""
        try:
            result, left, rows = self._extension.copy_threads(
                self._port, tuple(threads), stack_limit, self._mask.bits, self.together
            )
        except (MemoryError, ValueError) as error:
            raise TargetError(
                f"cannot copy threads ({error})",
                remedy="lower the stack limit, or raise this process's memory limit",
            ) from error
        if result:
            raise task_error(self._pid, result, "stop the threads")
        problem = None
        if left:
            problem = TargetError(
                f"process {self._pid} may have been left stopped ({result_name(left)})",
                remedy=f"resume it: kill -CONT {self._pid}, or attach a debugger and continue",
            )
        copies = [copy_of_row(row, since_ns=row[6]) for row in rows]
        return DarwinCopies(copies, {row[0]: row[9] for row in rows if row[9]}, problem)


def task_error(pid: int, result: int, action: str) -> TargetError:
    """Return the error for a failed call on a process's task."""
    if result in GONE:
        return TargetGoneError(f"process {pid} has exited", pid=pid)
    return TargetError(
        f"the kernel does not let this process {action} of process {pid} ({result_name(result)})",
        remedy="capture again; if it fails each time, check for a security product that guards "
        "processes",
    )


def why_not(copy: UncopiedThread) -> MachtraceError:
    """Return the error for a thread that was not copied."""
    name = result_name(copy.errno)
    if copy.why is CaptureFailure.GONE:
        return ThreadGoneError(f"thread {copy.id} has exited", thread=copy.id)
    if copy.why is CaptureFailure.REFUSED:
        return TargetError(
            f"thread {copy.id} could not be stopped ({name})", remedy="capture again"
        )
    if copy.why is CaptureFailure.LEFT_STOPPED:
        return TargetError(
            f"thread {copy.id} is still suspended: the kernel did not resume it ({name})",
            remedy="resume it with a debugger, or end the process",
        )
    return TargetError(f"thread {copy.id} could not be copied ({name})", remedy="capture again")
