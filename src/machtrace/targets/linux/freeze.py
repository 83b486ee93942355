"""Copying threads while the whole process stands still, so that its memory is of one moment.

Usually each thread is stopped for its own copy only. What a process keeps of all its threads, as
an interpreter does, can be read rightly only while none of them runs.

Python functions of another Linux process, read while it stands still.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from machtrace.cpython.runs import PythonRuns
from machtrace.cpython.runtime import PythonRuntime
from machtrace.cpython.threads import PythonThreads, read_threads, with_functions, with_problem
from machtrace.errors import MemoryReadError, TargetError, TargetGoneError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.targets.linux.ctypes_copier import in_thread_of_its_own
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory
from machtrace.targets.linux.ptrace_tracer import StoppedThread, Tracer
from machtrace.targets.shared.thread_copy import (
    CaptureFailure,
    CopiedThread,
    ThreadCopy,
    UncopiedThread,
)

_PAGE = 4096
_MOST_PAGES = 1 << 13
"""Kept at a time."""
_TOP = 1 << 64
_ROUNDS = 64
"""Times that threads are looked for; those that have stopped start no more."""

WhileHeld = Callable[[Sequence[int], MemoryReader | None], None]
"""What is to be done while nothing of the process runs: with the threads that were copied, and the
memory of that time; None where a thread could not be stopped."""


class HoldingCopier:
    """A ``ThreadCopier`` that stops all threads together.

    All that it does is done by a thread of its own, the only tracer of whatever it seizes; when
    that ends, however it does, the kernel lets go of what it still held.

    Args:
        directory: of the process.
        while_held: called once all threads have stopped and those wanted are copied.
    """

    def __init__(self, directory: ProcessDirectory, while_held: WhileHeld) -> None:
        self._directory = directory
        self._while_held = while_held

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        return self._copy(threads, stack_ranges, stack_limit)

    def copy_all(self, stack_ranges: array[int], *, stack_limit: int) -> list[ThreadCopy]:
        """One copy for each thread that there is while nothing runs.

        A list made before would have threads that end until then, and lack those that start.

        Raises:
            TargetError: this machine lacks the memory or the right to begin.
            TargetGoneError: the process exited.
        """
        return self._copy(None, stack_ranges, stack_limit)

    def _copy(
        self, threads: Sequence[int] | None, stack_ranges: array[int], stack_limit: int
    ) -> list[ThreadCopy]:
        copies: list[ThreadCopy] = []

        def hold() -> None:
            tracer = Tracer(stack_ranges, stack_limit)
            copies.extend(_Hold(self._directory, tracer).copy(threads, self._while_held))

        in_thread_of_its_own(hold)
        return copies


class _Hold:
    """A process that is stopped, thread by thread, and let go as a whole."""

    def __init__(self, directory: ProcessDirectory, tracer: Tracer) -> None:
        self._directory = directory
        self._tracer = tracer
        self._held: dict[int, StoppedThread] = {}
        self._uncopied: dict[int, UncopiedThread] = {}

    def copy(self, threads: Sequence[int] | None, while_held: WhileHeld) -> list[ThreadCopy]:
        copied: dict[int, ThreadCopy] = {}
        try:
            self._stop_all()
            if threads is None:
                threads = self._standing()
            wanted = frozenset(threads)
            for thread in self._held.values():
                is_wanted = thread.id in wanted
                read = self._tracer.read(thread, with_stacks=is_wanted)
                if is_wanted:
                    copied[thread.id] = self._tracer.copy_of(thread, read, thread.stopped)
            memory = None
            if self._held and all(map(_stands_still, self._uncopied.values())):
                memory = HeldMemory(self._tracer, next(iter(self._held)))
            while_held(threads, memory)
        finally:
            for thread in self._held.values():
                self._tracer.let_go(thread)
        resumed = time.monotonic_ns()
        return [self._completed(thread, copied.get(thread), resumed) for thread in threads]

    def _stop_all(self) -> None:
        """Ask all that are there, then wait for each, until there are no others."""
        for _ in range(_ROUNDS):
            asked: dict[int, int] = {}
            for thread in self._directory.thread_ids():
                if thread in self._held or thread in self._uncopied:
                    continue
                answer = self._tracer.ask(thread)
                if isinstance(answer, UncopiedThread):
                    self._uncopied[thread] = self._refined(answer)
                else:
                    asked[thread] = answer
            if not asked:
                return
            for thread, when in asked.items():
                stopped = self._tracer.await_stop(thread, when)
                if isinstance(stopped, UncopiedThread):
                    self._uncopied[thread] = stopped
                else:
                    self._held[thread] = stopped

    def _standing(self) -> list[int]:
        """What there is of threads, in the system's order."""
        gone = {one.id for one in self._uncopied.values() if one.why is CaptureFailure.GONE}
        return [thread for thread in self._directory.thread_ids() if thread not in gone]

    def _refined(self, uncopied: UncopiedThread) -> UncopiedThread:
        """One that has exited and is not collected yet is refused, too."""
        if uncopied.why is CaptureFailure.REFUSED and _has_exited(self._directory, uncopied.id):
            return replace(uncopied, why=CaptureFailure.GONE)
        return uncopied

    def _completed(self, thread: int, copy: ThreadCopy | None, resumed: int) -> ThreadCopy:
        if isinstance(copy, CopiedThread):
            return replace(copy, stopped_for_ns=resumed - self._held[thread].asked)
        gone = UncopiedThread(id=thread, why=CaptureFailure.GONE, errno=0)
        return copy or self._uncopied.get(thread, gone)


def _has_exited(directory: ProcessDirectory, thread: int) -> bool:
    return directory.state(thread) in EXITED_STATES


def _stands_still(thread: UncopiedThread) -> bool:
    """Whether it changes nothing: it is gone, or stops before it comes back from its sleep."""
    return thread.why is CaptureFailure.GONE or (
        thread.why is CaptureFailure.NOT_STOPPED and thread.is_uninterruptible
    )


class HeldMemory:
    """The memory of a process while it stands still; a page is seldom read twice.

    Args:
        tracer: what holds it.
        thread: one of the threads that it holds.
    """

    __slots__ = ("_pages", "_thread", "_tracer")

    def __init__(self, tracer: Tracer, thread: int) -> None:
        self._tracer = tracer
        self._thread = thread
        self._pages: dict[int, bytes] = {}

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        if size < 0 or address < 0 or address + size > _TOP:
            raise MemoryReadError(address, size)
        begin = address % _PAGE
        first = address - begin
        if begin + size <= _PAGE:
            data = self._page(first)[begin : begin + size]
        elif begin + size <= 2 * _PAGE:
            data = (self._page(first) + self._page(first + _PAGE))[begin : begin + size]
        else:
            data = self._tracer.read_memory(self._thread, address, size)
        if len(data) != size:
            raise MemoryReadError(address, size)
        return data

    def _page(self, start: int) -> bytes:
        page = self._pages.get(start)
        if page is None:
            if len(self._pages) >= _MOST_PAGES:
                self._pages.clear()
            page = self._tracer.read_memory(self._thread, start, _PAGE)
            self._pages[start] = page
        return page


class PythonReader:
    """Reads all threads' functions once for each time that the process is held.

    Args:
        directory: of the process.
        runtime: its CPython.
    """

    def __init__(self, directory: ProcessDirectory, runtime: PythonRuntime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._found: list[tuple[dict[int, ThreadId], PythonThreads | None]] = []

    def while_held(self, threads: Sequence[int], memory: MemoryReader | None) -> None:
        """See :data:`~machtrace.targets.linux.freeze.WhileHeld`."""
        found = None
        ids: dict[int, ThreadId] = {}
        if memory is not None:
            found = read_threads(memory, self._runtime.address, self._runtime.layout)
            ids = self._own_ids(threads)
        self._found.append((ids, found))

    def completed(self, snapshot: Snapshot) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """The snapshot with what is missing, and the functions of its threads."""
        copied = {thread.info.id for thread in snapshot.threads}
        runs: dict[ThreadId, PythonRuns] = {}
        for ids, found in self._found:
            if found is None:
                snapshot = with_problem(snapshot, _not_held())
                continue
            known = {own: thread for own, thread in ids.items() if thread in copied}
            snapshot, some = with_functions(snapshot, found, known)
            runs |= some
        return snapshot, runs

    def _own_ids(self, threads: Sequence[int]) -> dict[int, ThreadId]:
        """Id as the process itself knows it → as this one does; they differ in a container.

        Asked while they stand still: of a thread that has ended nobody knows it any more.
        """
        in_container = len(self._known_as(self._directory.pid)) > 1
        return {
            self._known_as(thread)[-1] if in_container else thread: ThreadId(thread)
            for thread in threads
        }

    def _known_as(self, thread: int) -> list[int]:
        """Its ids in each namespace, from this process's inwards."""
        try:
            words = self._directory.status(thread).get("NSpid", "").split()
        except (OSError, TargetGoneError):
            words = []
        return [int(word) for word in words if word.isdecimal()] or [thread]


def _not_held() -> TargetError:
    return TargetError(
        "Python functions were not read, since not all threads could be stopped together",
        remedy="capture again, and see what is said of the other threads",
    )
