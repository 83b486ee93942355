"""A process that has crashed: all of its threads are stopped by a tracer."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from machtrace._native import _ptrace
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import FormatError, MemoryReadError, TargetError
from machtrace.model.cause import Cause, stack_name
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.targets.shared.proc_maps import address_region
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CaptureFailure,
    ThreadCopy,
    UncopiedThread,
    copy_of_row,
)


class CrashedProcess(LinuxProcessTarget):
    """A process whose threads are all stopped, since one of them crashed.

    Args:
        pid: its id.
        stopped: the ids of stopped threads; the first one crashed.
        causes: why threads were stopped, by id.
    """

    def __init__(self, pid: int, stopped: Collection[int], causes: dict[int, Cause]) -> None:
        self._crashed = next(iter(stopped))
        self._causes = causes
        super().__init__(pid, copier=_StoppedCopier(stopped))

    @property
    def cause(self) -> Cause:
        """Why it crashed."""
        return self._causes[self._crashed]

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`; all threads stay stopped."""
        copied = super().snapshot(threads, stack_limit=stack_limit)
        facts = copied.linux
        if facts is not None:
            number = self._causes[self._crashed].signal_number
            facts = replace(facts, signal=number or 0)
        described = tuple(
            replace(thread, info=self._with_region(thread, copied), stopped_for_ns=None)
            for thread in copied.threads
        )
        return replace(copied, threads=described, linux=facts)

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """See :meth:`~machtrace.targets.base.PythonTarget.snapshot_with_python`."""
        from machtrace.cpython.threads import read_threads, with_functions, with_problem

        copied = self.snapshot(threads, stack_limit=stack_limit if stacks else 0)
        try:
            with self._open_memory() as memory:
                images = self._images.find(self._mappings.read(), memory)
                runtime = self._python_runtime(images, memory)
                python = read_threads(memory, runtime.address, runtime.layout)
        except (FormatError, MemoryReadError, TargetError) as error:
            return with_problem(copied, error), {}
        own = {
            self._directory.namespace_ids(thread.info.id)[-1]: thread.info.id
            for thread in copied.threads
        }
        return with_functions(copied, python, own)

    def _describe(self, threads: Sequence[int], *, before: int) -> Iterator[ThreadInfo]:
        for info in super()._describe(threads, before=before):
            yield replace(info, crashed=info.id == self._crashed, cause=self._causes.get(info.id))

    def _with_region(self, thread: ThreadSnapshot, copied: Snapshot) -> ThreadInfo:
        """Return the thread's description, with the memory at the address of its cause."""
        info = thread.info
        if info.cause is None or info.cause.address is None:
            return info
        stacks = [
            (stack_name(other.info.id, is_own=other is thread), other.registers.sp or 0)
            for other in (thread, *copied.threads)
        ]
        files = () if copied.linux is None else copied.linux.file_mappings
        region = address_region(info.cause, self._mappings.read(), files, stacks)
        return replace(info, cause=replace(info.cause, region=region))


class _StoppedCopier:
    """Copies threads that are stopped already.

    A :class:`~machtrace.targets.shared.thread_copy.ThreadCopier`.
    """

    def __init__(self, stopped: Collection[int]) -> None:
        self._stopped = stopped

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        present = tuple(thread for thread in threads if thread in self._stopped)
        try:
            rows = _ptrace.copy_stopped(
                present, stack_ranges, stack_limit, STOP_LIMIT_NS, SLEEP_LIMIT_NS
            )
        except (OSError, MemoryError, ValueError) as error:
            raise TargetError(f"cannot copy threads ({error})", remedy=BEGIN_REMEDY) from error
        copies = {row[0]: copy_of_row(row, since_ns=row[6]) for row in rows}
        return [
            copies.get(thread) or UncopiedThread(id=thread, why=CaptureFailure.NOT_STOPPED, errno=0)
            for thread in threads
        ]
