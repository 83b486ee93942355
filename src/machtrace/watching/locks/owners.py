"""Owners of what blocked Linux threads wait for, as locks and the kernel record them.

A futex word alone does not state its lock's kind. A lock is recognised by all of its fields: a
thread of the process that lives owns it, its word is locked and has waiters, and fields that must
be zero are. Where any of that fails, the owner is not recorded.

Structures: ``nptl/pthread_mutex_lock.c``, ``nptl/pthread_rwlock_common.c``, ``nptl/descr.h`` and
``sysdeps/nptl/bits/struct_mutex.h`` of glibc 2.25 and later; ``src/internal/pthread_impl.h`` of
musl 1.1 and 1.2; futex(2). Offsets are those of 64-bit processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from struct import Struct
from typing import NamedTuple

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.incident.facts import LockOwner, WaitsFor
from machtrace.model.memory import MemoryReader
from machtrace.model.polls import SystemCall


class LibcKind(Enum):
    """A C library."""

    GLIBC = "glibc"
    MUSL = "musl"


class Libc(NamedTuple):
    """The C library of a process."""

    kind: LibcKind
    version: tuple[int, int] | None = None
    """None if unknown: glibc then counts as new enough."""


class WaitCall(Enum):
    """A system call whose wait may have an owner."""

    FUTEX = "futex"
    WAIT4 = "wait4"
    WAITID = "waitid"
    FLOCK = "flock"
    FCNTL = "fcntl"


_X86_64 = {202: "futex", 61: "wait4", 247: "waitid", 73: "flock", 72: "fcntl"}
_ARM64 = {98: "futex", 260: "wait4", 95: "waitid", 32: "flock", 25: "fcntl"}


def wait_call(call: SystemCall, arch: Arch) -> WaitCall | None:
    """Return the kind of a system call; None for others."""
    if arch is not Arch.X86_64 and not arch.is_arm64:
        return None
    name = (_X86_64 if arch is Arch.X86_64 else _ARM64).get(call.number)
    return None if name is None else WaitCall(name)


class OwnedWait(NamedTuple):
    """A wait, and who can end it."""

    waits_for: WaitsFor
    is_timed: bool = False
    """Whether it ends by itself: it has a time limit."""
    is_repeated: bool = False
    """Whether the thread wakes from time to time and waits again, as for the interpreter lock."""
    sharers: tuple[int, ...] = ()
    """Other processes that can end it: they share the open file whose lock it is."""

    @property
    def owner(self) -> LockOwner | None:
        """The owner, where it is recorded."""
        owner = self.waits_for.owner
        return owner if owner is not None and owner.recorded else None


NOT_RECORDED = LockOwner(None, None, recorded=False)
UNKNOWN_WAIT = "semaphore or condition variable"
_MUSL_UNKNOWN = "lock, semaphore or condition variable"


class LockContext(NamedTuple):
    """A process, as far as its locks refer to it."""

    pid: int
    threads: Mapping[int, int]
    """The system's ids of live threads by the ids that the process itself knows."""
    memory: MemoryReader
    libc: Libc | None
    """None if unknown, as of a statically linked program: the locks of each are recognised."""


_WAIT, _LOCK_PI, _WAIT_BITSET, _WAIT_REQUEUE_PI, _LOCK_PI2 = 0, 6, 9, 11, 13
_COMMAND = 0x7F
_PRIVATE = 0x80
_WORD = 0xFFFFFFFF
_WAITERS, _OWNER_DIED, _TID = 0x80000000, 0x40000000, 0x3FFFFFFF
_FUTEX_ARGUMENTS = 4
_UINT = Struct("<I")
_POINTER = Struct("<Q")


class _FutexWait(NamedTuple):
    """A thread's wait in futex(2)."""

    word: int
    """The address of the futex word (Avma)."""
    command: int
    is_shared: bool
    value: int
    """The value that the word had when the wait began."""
    is_timed: bool


def futex_wait(call: SystemCall, context: LockContext) -> OwnedWait | None:
    """Return what a thread in futex(2) waits for; None if it does not wait.

    Args:
        call: the thread's.
        context: its process.
    """
    if len(call.arguments) < _FUTEX_ARGUMENTS:
        return None
    word, operation, value, timeout = call.arguments[:_FUTEX_ARGUMENTS]
    command = operation & _COMMAND
    if command not in (_WAIT, _LOCK_PI, _WAIT_BITSET, _WAIT_REQUEUE_PI, _LOCK_PI2):
        return None
    wait = _FutexWait(word, command, not operation & _PRIVATE, value & _WORD, bool(timeout))
    try:
        waits_for = _lock(wait, context)
    except MemoryReadError:
        waits_for = None
    if waits_for is None:
        is_musl = context.libc is not None and context.libc.kind is LibcKind.MUSL
        name = UNKNOWN_WAIT if command == _WAIT_BITSET else _MUSL_UNKNOWN if is_musl else "futex"
        waits_for = WaitsFor(name, Avma(word), NOT_RECORDED)
    return OwnedWait(waits_for, is_timed=wait.is_timed)


def _lock(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    if wait.command == _WAIT_REQUEUE_PI:
        return WaitsFor("condition variable", Avma(wait.word), NOT_RECORDED)
    current = _uint(context.memory, wait.word)
    if wait.command in (_LOCK_PI, _LOCK_PI2):
        is_valid = current & _WAITERS and not current & _OWNER_DIED
        owner = _owner(current & _TID if is_valid else 0, context)
        return WaitsFor("priority-inheriting mutex", Avma(wait.word), owner or NOT_RECORDED)
    if current != wait.value:
        return None
    for read in _LOCKS[None if context.libc is None else context.libc.kind]:
        try:
            waits_for = read(wait, context)
        except MemoryReadError:
            continue  # the end of a mapping, beyond another kind of lock
        if waits_for is not None:
            return waits_for
    return None


def _owner(thread: int, context: LockContext) -> LockOwner | None:
    """Return the owner with an id of the process's own; None if no such thread lives."""
    known = context.threads.get(thread)
    return None if known is None else LockOwner(context.pid, known, recorded=True)


_MUTEX = Struct("<IIIIIhhQQ")
"""Lock word, count, owner, users, kind, spins, elision, and the links of a robust mutex."""
_RECURSIVE, _ROBUST, _INHERITS, _PROTECTS = 1, 0x10, 0x20, 0x40
_KIND, _KINDS = 3, 0x3FF
_NAMES = ("mutex", "recursive mutex", "error-checking mutex", "mutex")
"""By ``PTHREAD_MUTEX_TIMED_NP`` and the kinds after it; the last one is adaptive."""
_CONTENDED = 2
_CEILING_SHIFT = 19


def _glibc_mutex(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    lock, count, owner, users, kind, *_, previous, following = _MUTEX.unpack(
        context.memory.read(Avma(wait.word), _MUTEX.size)
    )
    # pthread_mutex_lock uses FUTEX_WAIT, and pthread_mutex_clocklock the other one.
    is_mutex = wait.command == _WAIT or wait.is_timed
    is_mutex = is_mutex and not kind & (~_KINDS | _INHERITS)
    is_mutex = is_mutex and 1 <= users <= len(context.threads)
    # A robust mutex counts, whatever its type.
    is_counted = bool(kind & _ROBUST) or kind & _KIND == _RECURSIVE
    if not is_mutex or bool(count) != is_counted:
        return None
    name = _NAMES[kind & _KIND]
    if kind & _ROBUST:
        name = f"robust {name}"
        is_locked = bool(lock & _WAITERS) and lock & _TID == owner
    else:
        state = lock & ((1 << _CEILING_SHIFT) - 1) if kind & _PROTECTS else lock
        is_locked = state == _CONTENDED and not previous and not following
    holder = _owner(owner, context) if is_locked else None
    return None if holder is None else WaitsFor(name, Avma(wait.word), holder)


_RWLOCK = Struct("<8IbB6xQI")
"""Readers, writers, ``__wrphase_futex``, ``__writers_futex``, two pads, the writer's id, whether it
is shared, then elision, pads and flags."""
_PHASE_OFFSET, _WRITERS_OFFSET = 8, 12
_WRITE_LOCKED, _USED = 3, 2
_MAX_FLAGS = 3


def _glibc_rwlock(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    version = context.libc and context.libc.version
    if wait.command != _WAIT_BITSET or not wait.value & _USED or wait.value > _WRITE_LOCKED:
        return None
    if version is not None and version < (2, 25):
        return None
    for offset in (_PHASE_OFFSET, _WRITERS_OFFSET):
        at = Avma(wait.word - offset)
        fields = _RWLOCK.unpack(context.memory.read(at, _RWLOCK.size))
        readers, _, *futexes, pad, second_pad, writer, shared, elision, byte, pads, flags = fields
        if pad or second_pad or elision or byte or pads or flags > _MAX_FLAGS:
            continue
        if bool(shared) != wait.is_shared or any(value > _WRITE_LOCKED for value in futexes):
            continue
        is_locked = readers & _WRITE_LOCKED == _WRITE_LOCKED
        owner = _owner(writer, context) if is_locked else None
        if owner is not None or (not writer and readers):
            return WaitsFor("read-write lock", at, owner or NOT_RECORDED)
    return None


_STREAM_LOCK = Struct("<iiQ")
"""``_IO_lock_t``: lock word, count, the owner's ``struct pthread``."""
_SELF_OFFSET, _TID_OFFSET = 16, 720
"""``tcbhead_t.self`` and ``tid`` in ``struct pthread`` of x86-64. The links of the list of threads
precede the id everywhere."""
_LINKS = Struct("<QQ")


def _glibc_stream(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    lock, count, owner = _STREAM_LOCK.unpack(
        context.memory.read(Avma(wait.word), _STREAM_LOCK.size)
    )
    if wait.command != _WAIT or lock != _CONTENDED or count < 1 or not owner:
        return None
    if _pointer(context.memory, owner + _SELF_OFFSET) != owner:
        return None
    holder = _owner(_uint(context.memory, owner + _TID_OFFSET), context)
    return None if holder is None else WaitsFor("lock of a stdio stream", Avma(wait.word), holder)


def _glibc_join(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    # The kernel clears and wakes the word when the thread ends, with a shared futex.
    if not wait.is_shared or not wait.value:
        return None
    holder = _owner(wait.value, context)
    links = wait.word - _LINKS.size
    following, previous = _LINKS.unpack(context.memory.read(Avma(links), _LINKS.size))
    if _pointer(context.memory, following + _POINTER.size) != links:
        return None
    if holder is None or _pointer(context.memory, previous) != links:
        return None
    return WaitsFor("end of a thread", Avma(wait.word), holder)


_MUSL_MUTEX = Struct("<IIIiiiQQ")
"""Type, lock word, waiters, three more words, previous and next mutex of the owner."""
_MUSL_WORD, _MUSL_NEXT = 4, 32
_MUSL_OWNED = 3
"""Types whose word has an owner: 1 is recursive, 2 checks errors; 4 is the flag of robust ones."""
_MUSL_ROBUST, _MUSL_KIND, _MUSL_TYPES = 4, 0xF, 0x8F
_MUSL_NORMAL = _WAITERS | 16
"""A normal mutex's word: ``EBUSY`` instead of an owner."""


def _musl_mutex(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    start = wait.word - _MUSL_WORD
    kind, word, waiters, *_, previous, _ = _MUSL_MUTEX.unpack(
        context.memory.read(Avma(start), _MUSL_MUTEX.size)
    )
    if not word & _WAITERS or word & _OWNER_DIED or kind & ~_MUSL_TYPES:
        return None
    if word == _MUSL_NORMAL and not kind & _MUSL_KIND:
        return WaitsFor("mutex", Avma(start), NOT_RECORDED)
    if not kind & (_MUSL_OWNED | _MUSL_ROBUST) or not 1 <= waiters <= len(context.threads):
        return None
    # A mutex with an owner is in the owner's list of robust ones, whatever its type.
    if _pointer(context.memory, previous) != start + _MUSL_NEXT:
        return None
    holder = _owner(word & _TID, context)
    name = f"{'robust ' if kind & _MUSL_ROBUST else ''}{_NAMES[kind & _MUSL_OWNED]}"
    return None if holder is None else WaitsFor(name, Avma(start), holder)


_MUSL_SELF, _MUSL_TID = 56, 8
"""Bytes from the start of musl's ``struct pthread``, and from its ``tid``, to ``detach_state``."""
_MUSL_STATES = (1, 2)
"""``DT_EXITING``, ``DT_JOINABLE``."""


def _musl_join(wait: _FutexWait, context: LockContext) -> WaitsFor | None:
    if wait.value not in _MUSL_STATES:
        return None
    start = wait.word - _MUSL_SELF
    if _pointer(context.memory, start) != start:
        return None
    holder = _owner(_uint(context.memory, wait.word - _MUSL_TID), context)
    return None if holder is None else WaitsFor("end of a thread", Avma(wait.word), holder)


_GLIBC = (_glibc_mutex, _glibc_rwlock, _glibc_stream, _glibc_join)
_MUSL = (_musl_mutex, _musl_join)
_LOCKS = {LibcKind.GLIBC: _GLIBC, LibcKind.MUSL: _MUSL, None: (*_GLIBC, *_MUSL)}


def _uint(memory: MemoryReader, address: int) -> int:
    value: int = _UINT.unpack(memory.read(Avma(address), _UINT.size))[0]
    return value


def _pointer(memory: MemoryReader, address: int) -> int:
    value: int = _POINTER.unpack(memory.read(Avma(address), _POINTER.size))[0]
    return value


_ANY_CHILD, _P_ALL, _P_PID, _P_PIDFD = -1, 0, 1, 3
_ID_MASK = 0xFFFFFFFF
_SIGN = 1 << 31


def child_wait(call: SystemCall, kind: WaitCall, children: Mapping[int, int]) -> WaitsFor:
    """Return what wait4(2) or waitid(2) waits for; it has an owner if one child can end it.

    Args:
        call: the thread's.
        kind: which of the two.
        children: the system's ids of the children by those that the process itself knows.
    """
    selector, number = (_P_PID, call.arguments[0])
    if kind is WaitCall.WAITID:
        selector, number = call.arguments[:2]
    number &= _ID_MASK
    number -= (number & _SIGN) << 1
    child: int | None = None
    if selector == _P_PID and number > 0:
        child = children.get(number)
        text = f"process {number if child is None else child}"
    elif selector == _P_ALL or (kind is WaitCall.WAIT4 and number == _ANY_CHILD):
        child = next(iter(children.values())) if len(children) == 1 else None
        text = f"any of {len(children)} child processes" if child is None else f"process {child}"
    else:
        text = "process of a descriptor" if selector == _P_PIDFD else "a process of a group"
    owner = NOT_RECORDED if child is None else LockOwner(child, None, recorded=True)
    return WaitsFor(f"end of {text}", None, owner)


class FileLock(NamedTuple):
    """A line of ``/proc/locks`` (proc(5)): a lock of a file, or a request that waits for one."""

    number: int
    """Equal for a lock and the requests that it blocks."""
    is_request: bool
    kind: str
    """``FLOCK``, ``POSIX`` or ``OFDLCK``."""
    pid: int
    """-1 if the lock belongs to an open file instead of a process."""
    device: tuple[int, int]
    inode: int


_LOCK_WORDS = 8
FLOCK = "FLOCK"
"""The kind of lock of flock(2)."""
_LOCK_KINDS = (FLOCK, "POSIX", "OFDLCK")


def parse_file_locks(text: str) -> tuple[FileLock, ...]:
    """Parse ``/proc/locks``; lines of other forms are left out."""
    locks: list[FileLock] = []
    for line in text.splitlines():
        number, *words = line.replace("->", " -> ").split()
        is_request = bool(words) and words[0] == "->"
        words = words[is_request:]
        if len(words) < _LOCK_WORDS - 1 or words[0] not in _LOCK_KINDS:
            continue
        try:
            major, minor, inode = words[4].split(":")
            device = int(major, 16), int(minor, 16)
            pid, index = int(words[3]), int(number.rstrip(":"))
            locks.append(FileLock(index, is_request, words[0], pid, device, int(inode)))
        except ValueError:
            continue
    return tuple(locks)


_F_SETLKW, _F_OFD_SETLKW = 7, 38
_LOCK_NB = 4


def file_lock_kind(call: SystemCall, kind: WaitCall) -> str | None:
    """Return the kind of lock that flock(2) or fcntl(2) waits for; None if it does not wait."""
    if kind is WaitCall.FLOCK:
        return None if call.arguments[1] & _LOCK_NB else FLOCK
    return {_F_SETLKW: "POSIX", _F_OFD_SETLKW: "OFDLCK"}.get(call.arguments[1])


def file_lock_wait(
    pid: int,
    kind: str,
    locks: Sequence[FileLock],
    file: tuple[tuple[int, int], int] | None,
    path: str = "",
) -> WaitsFor:
    """Return what a thread in flock(2) or fcntl(2) waits for.

    Args:
        pid: the thread's process.
        kind: see :func:`file_lock_kind`.
        locks: the system's.
        file: device and inode of the file; None if unknown.
        path: the file's; empty if unknown.
    """
    name = "flock" if kind == FLOCK else "record lock"
    name = f"{name} of {path}" if path else name
    requests = [lock for lock in locks if lock.is_request and lock.kind == kind]
    if kind != "OFDLCK":
        requests = [lock for lock in requests if lock.pid == pid]
    if file is not None:
        # Some file systems report another device number in stat(2).
        requests = [lock for lock in requests if lock.inode == file[1]]
    numbers = {lock.number for lock in requests}
    holders = {lock.pid for lock in locks if not lock.is_request and lock.number in numbers}
    holder = holders.pop() if len(holders) == 1 else 0
    owner = LockOwner(holder, None, recorded=True) if holder > 0 else NOT_RECORDED
    return WaitsFor(name, None, owner)
