"""Waits of the threads of a process, and of the processes that its threads wait for.

Most surveys read only in which system call each thread is, and a few words of locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from machtrace.errors import TargetError
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import GIL, LockOwner, WaitsFor
from machtrace.model.memory import MemoryReader
from machtrace.model.polls import SystemCall
from machtrace.model.snapshot import Snapshot, ThreadSnapshot
from machtrace.watching.locks.deadlocks import BlockedThread, LockSurvey, stuck_threads
from machtrace.watching.locks.owners import (
    FLOCK,
    NOT_RECORDED,
    UNKNOWN_WAIT,
    Libc,
    LibcKind,
    LockContext,
    OwnedWait,
    WaitCall,
    child_wait,
    file_lock_kind,
    file_lock_wait,
    futex_wait,
    parse_file_locks,
    wait_call,
)

if TYPE_CHECKING:
    from machtrace.cpython.locks import LockReader

FileId = tuple[tuple[int, int], int]
"""Device (major, minor) and inode."""


class LockSource(Protocol):
    """Facts of processes that nothing stops. Every method raises TargetError if one has exited."""

    def refresh(self) -> None:
        """Begin a survey: facts of the last one are forgotten."""

    def threads(self, pid: int) -> Mapping[int, int]:
        """Return the system's ids of live threads by the ids that the process itself knows."""

    def call(self, pid: int, thread: int) -> SystemCall | None:
        """Return a thread's system call; None if it runs, or if that is hidden."""

    def switches(self, pid: int, thread: int) -> tuple[int, int] | None:
        """Return a thread's context switches, voluntary and involuntary."""

    def arch(self, pid: int) -> Arch:
        """Return the process's architecture."""

    def memory(self, pid: int) -> MemoryReader:
        """Return the process's memory."""

    def mapped_files(self, pid: int) -> frozenset[str]:
        """Return the paths of the process's mapped files."""

    def python(self, pid: int) -> LockReader | None:
        """Return the reader of the locks of its CPython; None if it has none."""

    def children(self, pid: int) -> Mapping[int, int]:
        """Return the system's ids of child processes by those that the process itself knows."""

    def file_locks(self) -> str:
        """Return the text of ``/proc/locks``."""

    def file(self, pid: int, descriptor: int) -> tuple[FileId | None, str]:
        """Return a file and its path; None and an empty text if unknown."""

    def flock_holders(self, file: FileId) -> tuple[int, ...]:
        """Return the processes that have the file open with a lock of flock(2)."""


_MAX_PROCESSES = 64
_UNOWNED_USES = 16
"""Surveys in which a wait is taken for one without an owner before it is examined again."""
_GIL_OFFSETS = range(32, 120)
"""Offsets of ``cond`` and ``mutex`` in ``_gil_runtime_state``; see ``cpython.threads``."""
_GLIBC, _MUSL = ("libc.so.6", "libc-2."), ("ld-musl-", "libc.musl-")
_RLOCK, _LOCK = "threading.RLock", "threading.Lock"
_NEVER_OWNED = (UNKNOWN_WAIT, _LOCK)


def libc_of(paths: Iterable[str]) -> Libc | None:
    """Return the C library of a process with these mapped files; None if it is not known."""
    for path in paths:
        name = path.rpartition("/")[2]
        if name.startswith(_GLIBC):
            minor = name.removeprefix("libc-2.").partition(".")[0]
            is_numbered = name.startswith("libc-2.") and minor.isdecimal()
            return Libc(LibcKind.GLIBC, (2, int(minor)) if is_numbered else None)
        if name.startswith(_MUSL) or (name == "libc.so" and "musl" in path):
            return Libc(LibcKind.MUSL)
    return None


class _GilWait(NamedTuple):
    """A wait for the interpreter lock, and the observation of its holder at that time."""

    call: SystemCall
    wait: OwnedWait
    holder: tuple[SystemCall | None, tuple[int, int] | None]


class LockSurveyor:
    """Surveys the waits of a process and of the processes that its threads wait for.

    Args:
        pid: the process.
        source: reads about processes.
    """

    def __init__(self, pid: int, source: LockSource) -> None:
        self._pid = pid
        self._source = source
        self._libc: dict[int, Libc | None] = {}
        self._python: dict[tuple[int, int], int] = {}
        """The addresses of Python's locks by thread and futex word."""
        self._unowned: dict[int, tuple[int, SystemCall | None]] = {}
        """Calls without an owner, by thread: uses left, and the call."""
        self._gil_waits: dict[int, _GilWait] = {}
        self._is_proving = False

    def survey(self) -> LockSurvey:
        """Return the stuck threads; most surveys read only which system call each thread is in.

        Raises:
            TargetGoneError: the process has exited.
        """
        self._source.refresh()
        threads: dict[int, BlockedThread] = {}
        processes: dict[int, tuple[int, ...]] = {}
        pending = [self._pid]
        while pending and len(processes) < _MAX_PROCESSES:
            pid = pending.pop()
            try:
                context = self._context(pid)
                processes[pid] = tuple(context.threads.values())
                blocked = dict(self._blocked(context))
            except TargetError:
                if pid == self._pid:
                    raise
                processes.setdefault(pid, ())
                continue
            threads |= blocked
            for thread in blocked.values():
                owner = thread.wait.owner
                pids = thread.wait.sharers if owner is None else (owner.pid, *thread.wait.sharers)
                pending += [one for one in pids if one and one not in processes]
        stuck = stuck_threads(threads, processes)
        if not stuck:
            return LockSurvey({}, processes)
        self._is_proving = True
        try:
            proven = self._proven({thread_id: threads[thread_id] for thread_id in stuck})
        finally:
            self._is_proving = False
        left = stuck_threads(proven, processes)
        return LockSurvey({thread_id: proven[thread_id] for thread_id in left}, processes)

    def wait(self, thread: int) -> OwnedWait | None:
        """Return what a thread of the process waits for; None if that has no owner by its kind.

        Raises:
            TargetGoneError: the process has exited.
        """
        self._source.refresh()
        context = self._context(self._pid)
        call = self._source.call(self._pid, thread)
        return None if call is None else self._wait(context, thread, call)

    def waits(self) -> Mapping[int, OwnedWait]:
        """Return what each thread of the process waits for. Raises as :meth:`wait` does."""
        return {thread: wait for thread, (_, wait) in self._calls_and_waits().items()}

    def _calls_and_waits(self) -> Mapping[int, tuple[SystemCall, OwnedWait]]:
        self._source.refresh()
        context = self._context(self._pid)
        waits: dict[int, tuple[SystemCall, OwnedWait]] = {}
        for thread in context.threads.values():
            call = self._source.call(self._pid, thread)
            wait = None if call is None else self._wait(context, thread, call)
            if call is None or wait is None:
                continue
            if wait.is_repeated or self._source.call(self._pid, thread) == call:
                waits[thread] = call, wait
        return waits

    def described(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the process with what its threads wait for now.

        Only recorded owners are added, to threads that still wait where they were copied. Raises
        as :meth:`wait` does.
        """
        waits = self._calls_and_waits()
        threads: list[ThreadSnapshot] = []
        for thread in snapshot.threads:
            call, wait = waits.get(thread.info.id, (None, None))
            if call is None or wait is None or wait.owner is None or call.sp != thread.registers.sp:
                threads.append(thread)
            else:
                threads.append(thread.with_info(replace(thread.info, waits_for=wait.waits_for)))
        return replace(snapshot, threads=tuple(threads))

    def _context(self, pid: int) -> LockContext:
        threads = self._source.threads(pid)
        if pid not in self._libc:
            self._libc[pid] = libc_of(self._source.mapped_files(pid))
        return LockContext(pid, threads, self._source.memory(pid), self._libc[pid])

    def _blocked(self, context: LockContext) -> Iterator[tuple[int, BlockedThread]]:
        for thread in context.threads.values():
            blocked = self._blocked_thread(context, thread)
            if blocked is not None:
                yield thread, blocked

    def _blocked_thread(self, context: LockContext, thread: int) -> BlockedThread | None:
        call = self._source.call(context.pid, thread)
        if call is None:
            last = self._gil_waits.get(thread)
            if last is None or self._holder(context.pid, last.wait) != last.holder:
                return None
            return BlockedThread(context.pid, thread, last.call, last.wait)
        uses, unowned = self._unowned.get(thread, (0, None))
        if uses and call == unowned:
            self._unowned[thread] = uses - 1, unowned
            return None
        wait = self._wait(context, thread, call)
        if wait is None or wait.waits_for.what in _NEVER_OWNED:
            if len(self._unowned) > _MAX_PROCESSES * len(context.threads):
                self._unowned.clear()
            self._unowned[thread] = _UNOWNED_USES, call
        if wait is None or not wait.is_repeated:
            self._gil_waits.pop(thread, None)
        if wait is None or wait.owner is None:
            return None
        if wait.is_repeated:
            holder = self._holder(context.pid, wait)
            if holder[0] is not None and holder[1] is not None:
                self._gil_waits[thread] = _GilWait(call, wait, holder)
        return BlockedThread(context.pid, thread, call, wait)

    def _holder(
        self, pid: int, wait: OwnedWait
    ) -> tuple[SystemCall | None, tuple[int, int] | None]:
        """Observe the thread that holds the interpreter lock: its call and its switches."""
        owner = wait.owner
        if owner is None or owner.thread is None:
            return None, None
        switches = self._source.switches(pid, owner.thread)
        return self._source.call(pid, owner.thread), switches

    def _proven(self, threads: Mapping[int, BlockedThread]) -> dict[int, BlockedThread]:
        """Return those that did not run while their owners were read once more."""
        switches = {
            thread_id: None if one.wait.is_repeated else self._switches(one)
            for thread_id, one in threads.items()
        }
        self._source.refresh()
        contexts: dict[int, LockContext] = {}
        again: dict[int, BlockedThread] = {}
        for thread_id, thread in threads.items():
            try:
                context = contexts.get(thread.pid) or self._context(thread.pid)
                contexts[thread.pid] = context
                observed = self._blocked_thread(context, thread_id)
            except TargetError:
                continue
            if observed is not None:
                again[thread_id] = observed._replace(switches=switches[thread_id])
        return {
            thread_id: observed
            for thread_id, observed in again.items()
            if observed.is_same_wait(
                threads[thread_id]._replace(
                    switches=switches[thread_id],
                    # Their sharers were not read before.
                    wait=threads[thread_id].wait._replace(sharers=observed.wait.sharers),
                )
            )
            and (observed.wait.is_repeated or self._switches(observed) == switches[thread_id])
        }

    def _switches(self, thread: BlockedThread) -> tuple[int, int] | None:
        try:
            return self._source.switches(thread.pid, thread.thread)
        except TargetError:
            return None

    def _wait(self, context: LockContext, thread: int, call: SystemCall) -> OwnedWait | None:
        kind = wait_call(call, self._source.arch(context.pid))
        if kind is WaitCall.FUTEX:
            wait = futex_wait(call, context)
            if wait is None or wait.owner is not None:
                return wait
            return self._python_wait(context, thread, call, wait)
        if kind in (WaitCall.WAIT4, WaitCall.WAITID):
            return OwnedWait(child_wait(call, kind, self._source.children(context.pid)))
        lock_kind = None if kind is None else file_lock_kind(call, kind)
        return None if lock_kind is None else self._file_wait(context, call, lock_kind)

    def _file_wait(self, context: LockContext, call: SystemCall, kind: str) -> OwnedWait:
        file, path = self._source.file(context.pid, call.arguments[0])
        locks = parse_file_locks(self._source.file_locks())
        waits_for = file_lock_wait(context.pid, kind, locks, file, path)
        owner = waits_for.owner
        is_shared = kind == FLOCK and self._is_proving and file is not None
        if not is_shared or file is None or owner is None or not owner.recorded:
            return OwnedWait(waits_for)
        # A lock of flock(2) belongs to the open file, which child processes share. To find them
        # takes long.
        holders = self._source.flock_holders(file)
        if owner.pid not in holders:
            return OwnedWait(waits_for._replace(owner=NOT_RECORDED))
        sharers = tuple(pid for pid in holders if pid != owner.pid)
        return OwnedWait(waits_for, sharers=sharers)

    def _python_wait(
        self, context: LockContext, thread: int, call: SystemCall, wait: OwnedWait
    ) -> OwnedWait:
        """Return what Python knows of a wait whose futex word has no owner."""
        reader = self._source.python(context.pid)
        if reader is None:
            return wait
        word = call.arguments[0]
        for gil in reader.gils():
            if word - gil.address in _GIL_OFFSETS:
                return self._with_owner(context, GIL, gil.address, gil.holder)._replace(
                    is_repeated=True
                )
        key = thread, word
        own_id = next(own for own, listed in context.threads.items() if listed == thread)
        lock = reader.waited(own_id, word, self._python.get(key))
        if lock is None:
            return wait
        if len(self._python) > _MAX_PROCESSES * len(context.threads):
            self._python.clear()
        self._python[key] = lock.address
        name = _RLOCK if lock.is_recursive else _LOCK
        return self._with_owner(context, name, lock.address, lock.owner)._replace(
            is_timed=wait.is_timed
        )

    def _with_owner(
        self, context: LockContext, name: str, address: int, own_id: int | None
    ) -> OwnedWait:
        """Return a wait for a lock of Python, whose owner has an id of the process's own."""
        owner = None if own_id is None else context.threads.get(own_id)
        recorded = owner is not None
        lock_owner = LockOwner(context.pid, owner, recorded=True) if recorded else NOT_RECORDED
        return OwnedWait(WaitsFor(name, Avma(address), lock_owner))
