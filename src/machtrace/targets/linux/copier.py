"""Copying threads by the C extension: ``native/ptrace/ptrace.c``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from machtrace._native import _ptrace
from machtrace.errors import TargetError
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    ThreadCopy,
    copy_of_row,
)


class PtraceCopier:
    """All of a capture is one C call on a thread of its own, without the interpreter's lock."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        try:
            rows = _ptrace.copy_threads(
                tuple(threads), stack_ranges, stack_limit, STOP_LIMIT_NS, SLEEP_LIMIT_NS
            )
        except (OSError, MemoryError, ValueError) as error:
            raise TargetError(
                f"cannot begin to copy threads ({error})", remedy=BEGIN_REMEDY
            ) from error
        # From before it was asked: a tracer stops it at some moment after that.
        return [copy_of_row(row, since_ns=row[6]) for row in rows]
