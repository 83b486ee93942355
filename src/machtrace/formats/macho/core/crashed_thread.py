"""Which thread of a core ended the process."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.formats.macho.core.file import CoreFile
from machtrace.formats.macho.thread_state import ExceptionState, ThreadState


def crashed_thread(core: CoreFile) -> int | None:
    """The index of the thread that crashed, as far as the core shows one.

    "process metadata" may say so. Else the exception states tell: a trap that no program survives;
    or else an aborted access to memory that is not there. Every thread once aborted on a page that
    the kernel then brought in, so of several such none is taken. A process that called ``abort``
    shows nothing of this kind.
    """
    for thread, noted in zip(core.threads, core.metadata.threads, strict=False):
        if noted.crashed:
            return thread.index
    regions = core.memory.regions
    mask = core.pointer_mask

    def is_unmapped_access(exception: ExceptionState) -> bool:
        address = mask.strip(exception.fault_address)
        return exception.is_abort and regions.region_at(address) is None

    tests: tuple[Callable[[ExceptionState], bool], ...] = (
        lambda exception: exception.is_trap,
        is_unmapped_access,
        lambda exception: exception.is_abort,
    )
    for test in tests:
        found = [
            thread.index
            for thread in core.threads
            if isinstance(thread.state, ThreadState)
            and thread.state.exception is not None
            and test(thread.state.exception)
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None
