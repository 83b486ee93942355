"""Copying threads by the C extension: ``_native/linux_ptrace.c``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from machtrace._native import _capture
from machtrace.errors import TargetError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.target.linux_threads import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CopiedThread,
    Hindrance,
    ThreadCopy,
    UncopiedThread,
)

if TYPE_CHECKING:
    from machtrace._native._capture import Row


class NativeCopier:
    """All of a capture is one C call on a thread of its own, without the interpreter's lock."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.target.linux_threads.ThreadCopier.copy`."""
        try:
            rows = _capture.copy_threads(
                tuple(threads), stack_ranges, stack_limit, STOP_LIMIT_NS, SLEEP_LIMIT_NS
            )
        except (OSError, MemoryError, ValueError) as error:
            raise TargetError(
                f"cannot begin to copy threads ({error})", remedy=BEGIN_REMEDY
            ) from error
        return [_copy(row) for row in rows]


def _copy(row: Row) -> ThreadCopy:
    thread, outcome, errno, uninterruptible, registers, stacks, asked, stopped, resumed = row
    if outcome:
        return UncopiedThread(
            id=thread,
            why=Hindrance(outcome),
            errno=errno,
            is_uninterruptible=bool(uninterruptible),
        )
    return CopiedThread(
        id=thread,
        registers=registers,
        stacks=tuple(MemoryRegion(Avma(start), data) for start, data in stacks),
        taken_at_ns=stopped,
        stopped_for_ns=resumed - asked,
    )
