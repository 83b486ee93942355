"""Waits of a stack, identified by the functions at its inner end."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import NamedTuple

_EXAMINED = 24
"""Frames examined at the inner end."""
_UNDERSCORES = 3
"""``___pthread_mutex_lock`` of glibc's debug symbols has this many in front."""


class WaitKind(Enum):
    """The object of a wait."""

    MUTEX = "mutex"
    READ_WRITE_LOCK = "read-write lock"
    UNFAIR_LOCK = "unfair lock"
    ONCE = "another thread's initialisation"
    DISPATCH_SYNC = "dispatch_sync"
    DISPATCH_GROUP = "dispatch group"
    SEMAPHORE = "semaphore"
    CONDITION = "condition variable"
    JOIN = "the end of a thread"
    REPLY = "another process's reply"
    RUN_LOOP = "events: an idle run loop"
    WORK = "work: an idle worker thread"
    EVENT = "events of the system"
    MESSAGE = "a Mach message"
    SLEEP = "time to pass"
    WORD = "a word of memory to change"
    CHILD = "the end of a process"
    FILE = "a file or socket"

    @property
    def is_idle(self) -> bool:
        """Whether the thread is idle rather than blocked."""
        return self in (WaitKind.RUN_LOOP, WaitKind.WORK)

    @property
    def is_lock(self) -> bool:
        """Whether it waits for something that one thread owns."""
        return self in _LOCKS


_LOCKS = (
    WaitKind.MUTEX,
    WaitKind.READ_WRITE_LOCK,
    WaitKind.UNFAIR_LOCK,
    WaitKind.ONCE,
    WaitKind.DISPATCH_SYNC,
)


class Wait(NamedTuple):
    """A stack's wait."""

    kind: WaitKind
    function: str
    """The function that identifies it."""
    place: int
    """Its index in the stack, innermost first."""
    caller: str = ""
    """The first function outside of the waiting machinery, which requested the wait."""


_CALLS: dict[WaitKind, tuple[str, ...]] = {
    WaitKind.DISPATCH_SYNC: (
        "__DISPATCH_WAIT_FOR_QUEUE__",
        "_dispatch_sync_f_slow",
        "_dispatch_sync_wait",
        "_dispatch_barrier_sync_f_slow",
        "_dispatch_async_and_wait_f_slow",
    ),
    WaitKind.ONCE: ("_dispatch_once_wait", "_os_once_gate_wait", "__cxa_guard_acquire"),
    WaitKind.DISPATCH_GROUP: ("_dispatch_group_wait_slow", "dispatch_group_wait"),
    WaitKind.UNFAIR_LOCK: (
        "_os_unfair_lock_lock_slow",
        "_os_unfair_recursive_lock_lock_slow",
        "os_unfair_lock_lock",
    ),
    WaitKind.READ_WRITE_LOCK: (
        "__psynch_rw_rdlock",
        "__psynch_rw_wrlock",
        "_pthread_rwlock_lock_slow",
        "pthread_rwlock_rdlock",
        "pthread_rwlock_wrlock",
    ),
    WaitKind.MUTEX: (
        *("_pthread_mutex_firstfit_lock_slow", "_pthread_mutex_firstfit_lock_wait"),
        *("_pthread_mutex_lock_wait", "__psynch_mutexwait", "psynch_mtxcontinue"),
        *("pthread_mutex_lock", "__pthread_mutex_lock", "__GI___pthread_mutex_lock"),
        *("__lll_lock_wait", "__lll_lock_wait_private", "objc_sync_enter"),
    ),
    WaitKind.JOIN: ("_pthread_join", "pthread_join", "__pthread_clockjoin_ex"),
    WaitKind.CONDITION: (
        *("_pthread_cond_wait", "__psynch_cvwait", "psynch_cvcontinue", "pthread_cond_wait"),
        *("pthread_cond_timedwait", "__pthread_cond_wait"),
    ),
    WaitKind.REPLY: (
        *("xpc_connection_send_message_with_reply_sync", "xpc_pipe_routine"),
        *("_xpc_pipe_mach_msg", "xpc_session_send_message_with_reply_sync"),
        "dispatch_mach_send_with_result_and_wait_for_reply",
        "_dispatch_mach_send_and_wait_for_reply",
    ),
    WaitKind.RUN_LOOP: ("__CFRunLoopServiceMachPort", "CFRunLoopServiceMachPort"),
    WaitKind.WORK: ("__workq_kernreturn", "_workq_kernreturn", "start_wqthread"),
    WaitKind.SEMAPHORE: (
        *("_dispatch_semaphore_wait_slow", "_dispatch_sema4_wait", "semaphore_wait_trap"),
        *("semaphore_timedwait_trap", "semaphore_wait_signal_trap"),
        *("semaphore_timedwait_signal_trap", "sem_wait", "__psynch_semwait"),
    ),
    WaitKind.EVENT: ("kevent", "kevent64", "kevent_id", "kevent_qos", "epoll_wait"),
    WaitKind.SLEEP: ("__semwait_signal", "nanosleep", "clock_nanosleep", "swtch_pri"),
    WaitKind.CHILD: ("__wait4", "wait4", "waitpid"),
    WaitKind.FILE: ("__select", "poll", "__poll", "read", "__read_nocancel", "__recvfrom"),
    WaitKind.MESSAGE: ("mach_msg_trap", "mach_msg2_trap", "mach_msg_overwrite_trap"),
    WaitKind.WORD: (
        *("__ulock_wait", "__ulock_wait2", "ulock_wait", "futex_wait", "syscall"),
        *("__futex_abstimed_wait_common64", "__futex_abstimed_wait_common"),
    ),
}
"""Function names by kind, the most specific kinds first."""
_RANKS = {kind: rank for rank, kind in enumerate(_CALLS)}
_KINDS = {name: kind for kind, names in _CALLS.items() for name in names}
_TRAPS = frozenset(
    name
    for kind in (
        *(WaitKind.MESSAGE, WaitKind.WORD, WaitKind.SLEEP, WaitKind.EVENT, WaitKind.CHILD),
        *(WaitKind.FILE, WaitKind.WORK),
    )
    for name in _CALLS[kind]
) | {
    *("__psynch_mutexwait", "__psynch_cvwait", "__psynch_rw_rdlock", "__psynch_rw_wrlock"),
    *("__psynch_semwait", "semaphore_wait_trap", "semaphore_timedwait_trap"),
    *("semaphore_wait_signal_trap", "semaphore_timedwait_signal_trap", "psynch_mtxcontinue"),
    *("psynch_cvcontinue", "__lll_lock_wait", "__lll_lock_wait_private", "_dispatch_once_wait"),
}
_START = "start_wqthread"
_BETWEEN = (
    *("_dispatch", "dispatch_", "_dlock", "_os_", "os_", "pthread_", "_pthread", "__pthread"),
    *("__psynch", "psynch", "mach_msg", "_xpc", "xpc_", "__ulock", "semaphore_", "thread_block"),
    *(
        "_semaphore",
        "__GI_",
        "__lll",
        "lll_",
        "futex",
        "__futex",
        "std::",
        "CFRunLoopServiceMachPort",
    ),
)
"""Prefixes of the waiting machinery; the first function outside of it requested the wait."""
_OTHERS_CODE = frozenset(
    {
        "_dispatch_client_callout",
        "_dispatch_client_callout2",
        "_dispatch_call_block_and_release",
        "_dispatch_lane_serial_drain",
    }
)
"""Functions that run another's block: frames outside of it do not wait for it."""


def _spelling(name: str) -> str:
    """Return a name as :data:`_KINDS` has it: without glibc's prefix and up to three ``_``."""
    if name in _KINDS:
        return name
    bare = name.removeprefix("__GI_")
    for count in range(_UNDERSCORES + 1):
        if bare[:count].strip("_"):
            break
        if bare[count:] in _KINDS:
            return bare[count:]
    return name


def wait_of(names: Iterable[str]) -> Wait | None:
    """Return what a stack waits for; None if it seems to run.

    Args:
        names: of its functions, innermost first; the kernel's frames may precede.
    """
    best: Wait | None = None
    is_waiting = False
    caller = ""
    for place, name in enumerate(islice(names, _EXAMINED)):
        name = _spelling(name)  # noqa: PLW2901 - as the tables above have it
        kind = _KINDS.get(name)
        if name in _OTHERS_CODE or (best and kind is None and not name.startswith(_BETWEEN)):
            caller = name
            break
        if kind is None or (name == _START and place > 1):
            continue
        is_waiting = is_waiting or name in _TRAPS
        if best is None or _RANKS[kind] < _RANKS[best.kind]:
            best = Wait(kind, name, place)
    return best._replace(caller=caller) if best is not None and is_waiting else None
