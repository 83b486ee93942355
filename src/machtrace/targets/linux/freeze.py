"""Python functions of another Linux process, read while all of its threads are stopped together.

Usually each thread is stopped for its own copy only. What an interpreter stores about all of its
threads is consistent only while none of them runs.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence

from machtrace._native import _ptrace
from machtrace.cpython.runs import PythonRuns
from machtrace.cpython.runtime import PythonRuntime
from machtrace.cpython.threads import (
    CopiedThreads,
    PythonThreads,
    read_names,
    with_functions,
    with_problem,
)
from machtrace.errors import MemoryReadError, TargetError
from machtrace.model.address import Avma
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.targets.linux.access import OtherTracer
from machtrace.targets.linux.capture import refused
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.thread_copy import (
    BEGIN_REMEDY,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CaptureFailure,
    ThreadCopy,
    UncopiedThread,
    copy_of_row,
)

_PAGE = 4096
_CACHED_PAGES_MAX = 1 << 13
_TOP = 1 << 64

_NAMES_NS = 1_000_000_000
"""Time between two readings of the threads' names."""
_NAMES_OF_NEW_THREADS_NS = 100_000_000


class FreezingCopier:
    """Stops all threads together, copies those wanted, and resumes them.

    A :class:`~machtrace.targets.shared.thread_copy.ThreadCopier`. Each copy also has the Python
    functions of all threads, copied before any thread is resumed and decoded afterwards. What one
    copy has in common with the last is recognised, so use one object for one process.
    """

    def __init__(
        self, directory: ProcessDirectory, other_tracer: OtherTracer, runtime: PythonRuntime
    ) -> None:
        self._directory = directory
        self._other_tracer = other_tracer
        self.runtime = runtime
        self._reader = _ptrace.PythonReader(runtime.layout.native(runtime.address))
        self._decoder = CopiedThreads(runtime.layout)
        self._python: list[tuple[dict[int, ThreadId], PythonThreads | None]] = []
        self._names: dict[int, str] = {}
        self._names_read_ns = 0
        """When the names were read last; 0 if never."""
        self._named_threads: set[int] = set()
        """The threads that existed then."""
        self._has_new_threads = False
        self._is_in_container: bool | None = None
        self.is_traced = False
        """Whether the calling OS thread has seized all threads."""

    def begin(self) -> None:
        """Discard the copies of a snapshot that was not completed."""
        self._python = []

    def copy(
        self, threads: Sequence[int], stack_ranges: array[int], *, stack_limit: int
    ) -> list[ThreadCopy]:
        """See :meth:`~machtrace.targets.shared.thread_copy.ThreadCopier.copy`."""
        copies = {copy.id: copy for copy in self._copies(tuple(threads), stack_ranges, stack_limit)}
        return [
            copies.get(thread) or UncopiedThread(id=thread, why=CaptureFailure.GONE, errno=0)
            for thread in threads
        ]

    def copy_all(self, stack_ranges: array[int], *, stack_limit: int) -> list[ThreadCopy]:
        """Copy every thread that exists while the process is frozen.

        An earlier list would have threads that exit before, and lack those that start.

        Raises:
            TargetError: this machine lacks the memory or the right to begin.
            TargetGoneError: the process exited.
        """
        return [
            copy
            for copy in self._copies(None, stack_ranges, stack_limit)
            if not (isinstance(copy, UncopiedThread) and copy.why is CaptureFailure.GONE)
        ]

    @property
    def is_failing(self) -> bool:
        """Whether the last copy found no interpreter: the process may have loaded another one."""
        copies = [python for _, python in self._python if python is not None]
        return any(None in dict(python.errors) or not python.functions for python in copies)

    def completed(self, snapshot: Snapshot) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Return the snapshot with the problems of Python functions, and the threads' functions."""
        copied = {thread.info.id for thread in snapshot.threads}
        runs: dict[ThreadId, PythonRuns] = {}
        copies, self._python = self._python, []
        for ids, python in copies:
            if python is None:
                snapshot = with_problem(snapshot, _not_frozen())
                continue
            known = {own: thread for own, thread in ids.items() if thread in copied}
            snapshot, thread_runs = with_functions(snapshot, python, known)
            runs |= thread_runs
        return snapshot, runs

    def _copies(
        self, threads: tuple[int, ...] | None, stack_ranges: array[int], stack_limit: int
    ) -> list[ThreadCopy]:
        copies = self._attempt(threads, stack_ranges, stack_limit)
        # One refused thread leaves the process unfrozen, so all are copied again.
        for _ in self._other_tracer.pauses(lambda: refused(self._directory, copies)):
            self._python.pop()
            copies[:] = self._attempt(threads, stack_ranges, stack_limit)
        return copies

    def _attempt(
        self, threads: tuple[int, ...] | None, stack_ranges: array[int], stack_limit: int
    ) -> list[ThreadCopy]:
        reads_names = self._should_read_names()
        try:
            is_brief = not reads_names and not self._is_in_container
            frozen = self._freeze(threads, stack_ranges, stack_limit, is_brief=is_brief)
        except (OSError, MemoryError, ValueError) as error:
            self._directory.thread_ids()  # raises TargetGoneError if the process exited
            raise TargetError(f"cannot copy threads ({error})", remedy=BEGIN_REMEDY) from error
        try:
            if reads_names and frozen.is_whole:
                self._read_names(frozen)
            # The kernel knows an id in the process's own namespace only until the thread exits.
            ids = self._own_ids(frozen.threads)
        finally:
            rows = frozen.resume()
        python = None
        if frozen.is_whole:
            python = self._decoder.decode(self._reader.copied(), self._names)
            if reads_names:
                self._named_threads = set(python.functions)
            self._has_new_threads = not python.functions.keys() <= self._named_threads
        self._python.append((ids, python))
        return [copy_of_row(row, since_ns=row[6]) for row in rows]

    def _should_read_names(self) -> bool:
        """Return whether names are due: seldom, for the process is stopped meanwhile."""
        age = time.monotonic_ns() - self._names_read_ns
        limit = _NAMES_OF_NEW_THREADS_NS if self._has_new_threads else _NAMES_NS
        return not self._names_read_ns or age > limit

    def _read_names(self, frozen: _ptrace.FrozenProcess) -> None:
        runtime = self.runtime
        self._names = read_names(FrozenMemory(frozen), runtime.address, runtime.layout)
        self._names_read_ns = time.monotonic_ns()

    def _freeze(
        self,
        threads: tuple[int, ...] | None,
        stack_ranges: array[int],
        stack_limit: int,
        *,
        is_brief: bool,
    ) -> _ptrace.FrozenProcess:
        folder = self._directory.open("task")
        try:
            return _ptrace.FrozenProcess(
                folder,
                threads,
                stack_ranges,
                stack_limit,
                STOP_LIMIT_NS,
                SLEEP_LIMIT_NS,
                self._reader,
                is_brief,
                self.is_traced,
            )
        finally:
            os.close(folder)

    def _own_ids(self, threads: Sequence[int]) -> dict[int, ThreadId]:
        """Map thread ids as the process itself knows them to ours; they differ in a container."""
        namespace_ids = self._directory.namespace_ids
        if self._is_in_container is None:
            self._is_in_container = len(namespace_ids(self._directory.pid)) > 1
        return {
            namespace_ids(thread)[-1] if self._is_in_container else thread: ThreadId(thread)
            for thread in threads
        }


class FrozenMemory:
    """The memory of a frozen process; each page is seldom read twice."""

    def __init__(self, frozen: _ptrace.FrozenProcess) -> None:
        self._frozen = frozen
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
            data = self._frozen.read(address, size)
        if len(data) != size:
            raise MemoryReadError(address, size)
        return data

    def _page(self, start: int) -> bytes:
        page = self._pages.get(start)
        if page is None:
            if len(self._pages) >= _CACHED_PAGES_MAX:
                self._pages.clear()
            page = self._frozen.read(start, _PAGE)
            self._pages[start] = page
        return page


def _not_frozen() -> TargetError:
    return TargetError(
        "Python functions were not read: not all threads could be stopped together",
        remedy="capture again; the other threads' problems name the reason",
    )
