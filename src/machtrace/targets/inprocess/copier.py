"""Copying threads of this process by signals: ``native/inprocess/core/capture.h``.

Importing this raises ImportError where the package was installed without its extensions.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from machtrace._native import _inprocess
from machtrace.errors import TargetError
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    ThreadCopy,
    copy_of_row,
)

if TYPE_CHECKING:
    from machtrace._native._inprocess import PythonRow

ANSWER_LIMIT_NS = 1_000_000_000
"""How long a thread may take to answer its signal; a running one needs its turn on a CPU."""

LOCKED_ANSWER_LIMIT_NS = 100_000_000
"""The same while holding the interpreter's lock, for which other threads wait meanwhile."""

SIGNAL_VARIABLE = "MACHTRACE_SIGNAL"
"""The environment variable with the number of the signal to use; without it one is chosen."""


class SignalCopier:
    """A :class:`~machtrace.targets.shared.thread_copy.ThreadCopier` of threads of this process.

    Each answers a real-time signal by copying itself; the calling thread, which may be among
    them, is copied by the call itself.
    """

    def __init__(self) -> None:
        self.with_python = False
        """Whether Python frames are copied at the same moment. The interpreter's lock is held
        meanwhile, so that no Python code runs."""
        self.python: dict[int, list[PythonRow]] = {}
        """Those of the last time, by pthread, innermost first."""
        self.together = False
        """Whether no thread resumes before all are copied."""
        self.pthreads: dict[int, int] = {}
        """Ids by ``pthread_self`` of the threads copied last."""

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        own = threading.get_native_id()
        others = tuple(thread for thread in threads if thread != own)
        answer_limit = LOCKED_ANSWER_LIMIT_NS if self.with_python else ANSWER_LIMIT_NS
        wanted = wanted_signal()
        try:
            rows, self.python = _inprocess.copy_threads(
                others,
                stack_ranges,
                stack_limit,
                answer_limit,
                SLEEP_LIMIT_NS,
                wanted,
                self.together,
                sys._current_frames if self.with_python else None,  # noqa: SLF001 - as documented
            )
            if len(others) < len(threads):
                rows.insert(
                    list(threads).index(own), _inprocess.copy_here(stack_ranges, stack_limit)
                )
        except (OSError, MemoryError, ValueError) as error:
            raise begin_error(error, wanted) from error
        self.pthreads = {row[9]: row[0] for row in rows if not row[1]}
        # One ran until the signal reached it, unlike one that a tracer stops.
        return [copy_of_row(row, since_ns=row[7]) for row in rows]


def wanted_signal() -> int:
    """Return the signal that the user chose; 0 leaves the choice to the extension."""
    text = os.environ.get(SIGNAL_VARIABLE, "")
    if not text or not hasattr(signal, "SIGRTMIN"):  # Darwin needs no signal
        return 0
    if not text.isdecimal() or not signal.SIGRTMIN <= int(text) <= signal.SIGRTMAX:
        raise TargetError(
            f"{SIGNAL_VARIABLE} is {text!r}, which is not a real-time signal",
            remedy=f"unset it, or set it to {signal.SIGRTMIN:d} to {signal.SIGRTMAX:d}",
        )
    return int(text)


def begin_error(error: Exception, wanted: int) -> TargetError:
    """Return the error for a capture that cannot begin."""
    if isinstance(error, OSError) and error.errno == errno.EBUSY:
        which = f"signal {wanted}" if wanted else "every real-time signal"
        return TargetError(
            f"another part of this program handles {which}",
            remedy=f"set {SIGNAL_VARIABLE} to the number of an unused real-time signal",
        )
    return TargetError(f"cannot copy threads ({error})", remedy=BEGIN_REMEDY)
