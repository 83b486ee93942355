"""Copying threads by ctypes, for machines without a C compiler.

Which copier of threads there is on this machine.
"""

from __future__ import annotations

import errno
import signal
import threading
from array import array
from collections.abc import Callable, Sequence

from machtrace.errors import TargetError
from machtrace.targets.linux.ptrace_tracer import Tracer
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    CaptureFailure,
    ThreadCopier,
    ThreadCopy,
    UncopiedThread,
)


def may_be_traced(copy: ThreadCopy) -> bool:
    """Whether the thread could not be let go of; one that was gone before is not traced."""
    return isinstance(copy, UncopiedThread) and (
        copy.why is CaptureFailure.NOT_STOPPED
        or (copy.why is CaptureFailure.GONE and copy.errno != errno.ESRCH)
    )


def in_thread_of_its_own(work: Callable[[], None]) -> None:
    """Do ``work`` as a tracer that ends with it, so that the kernel releases what it still traces.

    No signal of this process is handled there.

    Raises:
        TargetError: it could not be done.
    """
    failures: list[Exception] = []

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again, in the caller's thread
            failures.append(error)

    worker = threading.Thread(target=run, name="machtrace tracer", daemon=True)
    try:
        worker.start()
    except RuntimeError as error:
        failures.append(error)
    else:
        worker.join()
    if failures and isinstance(failures[0], TargetError):
        raise failures[0]
    if failures:
        raise TargetError(
            f"cannot copy threads ({failures[0]})", remedy=BEGIN_REMEDY
        ) from failures[0]


class CtypesCopier:
    """Copying is done by a thread of its own, the only tracer of whatever it seizes.

    It cannot let go of a thread that does not stop; but when it ends, the kernel releases all
    that it traced. So it ends there, and another goes on with the rest.
    """

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        copies: list[ThreadCopy] = []
        tracers: list[Tracer] = []  # one for all: its buffers take long to make

        def copy_on() -> None:
            if not tracers:
                tracers.append(Tracer(stack_ranges, stack_limit))
            (tracer,) = tracers
            for thread in threads[len(copies) :]:
                copies.append(tracer.copy(thread))
                if may_be_traced(copies[-1]):
                    break

        while len(copies) < len(threads):
            in_thread_of_its_own(copy_on)
        return copies


def thread_copier() -> ThreadCopier:
    """The extension's, or without it the one by ctypes, which stops threads for longer."""
    try:
        from machtrace.targets.linux.copier import PtraceCopier
    except ImportError:
        return CtypesCopier()
    return PtraceCopier()
