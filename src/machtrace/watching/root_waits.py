"""Root waits: the places where a thread's own loop waits for the next thing to do.

A thread there is idle, everywhere else it is away. Each new place is looked up once, by the
functions of its stack: the wait is a loop's own if only the loop's machinery lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from machtrace.model.arch import Arch
from machtrace.model.polls import CallPlace, ThreadPoll
from machtrace.model.symbol import CallStack

_RECURRENCES = 3
"""Times that a wait without names is entered again before its recurrence makes it a loop's."""


class WaitRole(Enum):
    """The part that a wait has in its thread."""

    ROOT = "root"
    """The outermost loop waits for events."""
    NESTED = "nested"
    """A loop within a task of the outer loop waits for events, such as that of a modal dialog."""
    WORKER = "worker"
    """A worker thread waits for work."""
    OWN = "own"
    """The thread's outermost function waits itself, such as in ``main``'s own loop."""
    UNNAMED = "unnamed"
    """The stack has no names that decide."""
    OTHER = "other"
    """A task waits."""

    @property
    def is_idle(self) -> bool:
        """Whether a thread in such a wait has nothing to do, as far as one stack shows."""
        return self in (WaitRole.ROOT, WaitRole.NESTED, WaitRole.WORKER)


_EVENT_CALLS = {
    Arch.X86_64: frozenset({7, 23, 34, 43, 128, 130, 208, 232, 270, 271, 281, 288, 426, 441}),
    Arch.ARM64: frozenset({4, 22, 72, 73, 133, 137, 202, 242, 426, 441}),
}
"""Numbers of system calls that wait for events, connections or signals: poll, select, pause,
accept, rt_sigtimedwait, rt_sigsuspend, io_getevents, epoll_wait, pselect6, ppoll, epoll_pwait,
accept4, io_uring_enter and epoll_pwait2."""
_SLEEP_CALLS = {Arch.X86_64: frozenset({35, 230}), Arch.ARM64: frozenset({101, 115})}
"""nanosleep and clock_nanosleep."""


class _Place:
    __slots__ = ("entries", "is_event", "is_sleep", "role", "switches")

    def __init__(self) -> None:
        self.role: WaitRole | None = None
        self.entries = 0
        self.switches: int | None = None
        self.is_event = self.is_sleep = False


class RootWaits:
    """The places where one thread waits, and their roles.

    Args:
        arch: of the process, which numbers its system calls.
    """

    def __init__(self, arch: Arch) -> None:
        table = Arch.ARM64 if arch.is_arm64 else Arch.X86_64
        self._events, self._sleeps = _EVENT_CALLS[table], _SLEEP_CALLS[table]
        self._places: dict[CallPlace, _Place] = {}

    def clear(self) -> None:
        """Forget all places: the process executes another program."""
        self._places.clear()

    def add(self, place: CallPlace, role: WaitRole) -> None:
        """Set the role that a place's stack has."""
        self._place(place).role = role

    def count(self, place: CallPlace, poll: ThreadPoll) -> None:
        """Count that a poll found the thread there."""
        known = self._place(place)
        runs = poll.run_ns
        if known.switches is None or (runs is not None and runs != known.switches):
            known.entries += 1
            known.switches = runs

    def role(self, place: CallPlace) -> WaitRole | None:
        """Return the role of a place as all that is known decides; None if it is not looked up."""
        known = self._places.get(place)
        if known is None or known.role is None:
            return None
        if known.role is WaitRole.OWN:
            # Waits for events come first: main may sleep in a task, and wait in its own loop.
            if known.is_event or (known.is_sleep and not self._has_event_root(place)):
                return WaitRole.ROOT
            return WaitRole.OTHER
        if known.role is WaitRole.UNNAMED:
            return WaitRole.ROOT if self._is_outermost(place, known) else WaitRole.OTHER
        return known.role

    def is_idle(self, place: CallPlace) -> bool:
        """Whether a thread in that place has nothing to do, as far as is known."""
        role = self.role(place)
        return role is not None and role.is_idle

    def _has_event_root(self, place: CallPlace) -> bool:
        return any(
            known.role in (WaitRole.ROOT, WaitRole.NESTED)
            or (known.role is WaitRole.OWN and known.is_event)
            for other, known in self._places.items()
            if other != place
        )

    def _is_outermost(self, place: CallPlace, known: _Place) -> bool:
        """Whether a place without names is a loop's, by its call, its depth and its recurrence."""
        deeper = [
            other
            for other, each in self._places.items()
            if other.sp > place.sp and (each.is_event or each.entries >= _RECURRENCES)
        ]
        if deeper:
            return False
        return known.is_event or (known.entries >= _RECURRENCES and not self._has_event_root(place))

    def _place(self, place: CallPlace) -> _Place:
        known = self._places.get(place)
        if known is None:
            known = self._places[place] = _Place()
            known.is_event = place.number in self._events
            known.is_sleep = place.number in self._sleeps
        return known


class _Function(NamedTuple):
    name: str
    file: str
    """The source file of a Python function; else empty."""


_LOOPS = frozenset(
    {
        *("uv_run", "event_base_loop", "event_base_dispatch", "ev_run", "ev_loop"),
        *("g_main_context_iteration", "g_main_loop_run", "gtk_main", "g_application_run"),
        *("aeMain", "aeProcessEvents", "ngx_process_events_and_timers"),
        *("ngx_worker_process_cycle", "ngx_master_process_cycle", "ngx_single_process_cycle"),
        *("PostgresMain", "ServerLoop", "ReadCommand", "CFRunLoopRunSpecific", "__CFRunLoopRun"),
        *("QEventLoop::exec", "QEventLoop::processEvents", "QCoreApplication::exec"),
        *("sd_event_run", "sd_event_loop", "sd_event_wait", "zmq::epoll_t::loop"),
        *("boost::asio::detail::scheduler::run", "mio::poll::Poll::poll", "hub_main"),
        *("runtime.findRunnable", "runtime.findrunnable", "runtime.netpoll", "runtime.stopm"),
        *("runtime.notesleep", "runtime.notetsleep", "runtime.mPark", "runtime.sysmon"),
        *("runtime.templateThread", "apr_pollset_poll", "child_main", "listener_thread"),
    }
)
_LOOP_PATTERNS = (
    *("tokio::runtime::park", "tokio::runtime::io::driver", "tokio::runtime::time::"),
    *("tokio::runtime::scheduler", "QEventDispatcher", "QWindowSystem", "boost::asio::"),
)
_NESTABLE = frozenset(
    {
        *("uv_run", "event_base_loop", "ev_run", "g_main_context_iteration", "g_main_loop_run"),
        *("CFRunLoopRunSpecific", "QEventLoop::exec", "BaseEventLoop._run_once"),
    }
)
"""Loops that a task can enter again."""
_MAIN_OF_POSTGRES: tuple[str, ...] = (
    "BackgroundWriter",
    "Checkpointer",
    "WalWriter",
    "AutoVacLauncher",
)
_MAIN_OF_POSTGRES += ("ApplyLauncher", "PgArchiver", "SysLogger", "WalReceiver", "WalSnd")
_MACHINERY = frozenset(
    {
        *("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect"),
        *("pselect64", "kevent", "pause", "sigsuspend", "sigwait", "sigwaitinfo", "sigtimedwait"),
        *("accept", "accept4", "io_uring_enter", "io_getevents", "syscall", "nanosleep", "usleep"),
        *("clock_nanosleep", "sleep", "thrd_sleep", "syscall_cancel", "internal_syscall_cancel"),
        *("syscall_cancel_arch", "poll_chk", "ppoll_chk", "aeApiPoll", "epoll_dispatch"),
        *("poll_dispatch", "select_dispatch", "epoll_poll", "backend_poll", "g_poll"),
        *("ngx_epoll_process_events", "secure_read", "pq_recvbuf", "pq_getbyte", "pq_startmsgread"),
        *("SocketBackend", "WaitLatch", "WaitLatchOrSocket", "epoll_wait_uring"),
        *("runtime.epollwait", "runtime.futex", "runtime.futexsleep", "runtime.usleep"),
        *("internal/runtime/syscall.Syscall6", "internal/runtime/syscall.EpollWait"),
        *("runtime.pselect6", "restore_rt", "io_uring_wait_cqe", "io_uring_submit_and_wait"),
        *("_io_uring_get_cqe", "io_uring_wait_cqe_timeout", "pthread_cond_wait"),
        *("pthread_cond_timedwait", "pthread_cond_wait_common", "std::condition_variable::wait"),
        *("futex_abstimed_wait_common", "futex_abstimed_wait_common64", "futex_wait"),
        *("futex_abstimed_wait_cancelable64", "sem_wait", "uv_cond_wait", "uv_sem_wait"),
    }
)
_MACHINERY_PREFIXES = (
    *("uv__io_poll", "uv__epoll", "WaitEventSetWait", "g_main_context_", "mio::", "parking_lot::"),
    *("tokio::runtime::park", "std::sys::", "std::thread::park", "QTimerInfo", "qt_safe_poll"),
)
_WORKERS = frozenset(
    {
        *("start_wqthread", "Unsafe_Park", "Parker::park", "uv__worker", "worker"),
        *("g_thread_pool_thread_proxy", "gomp_thread_start", "blas_thread_server"),
        *("node::(anonymous namespace)::PlatformWorkerThread", "runtime.mstart"),
        "node::TaskQueue<v8::Task>::BlockingPop",
    }
)
_STARTS = frozenset(
    {
        *("libc_start_call_main", "libc_start_main", "libc_start_main_impl", "start"),
        *("start_thread", "clone", "clone3", "pthread_start", "thread_start"),
    }
)
"""Functions outside of a thread's first one, without underscores in front."""
_CLONE = "clone"

_SELECTORS = "selectors.py"
_PYTHON_LOOPS = {
    "BaseEventLoop._run_once": "asyncio/base_events.py",
    "BaseServer.serve_forever": "socketserver.py",
    "EpollIOManager.get_events": "trio/_core/_io_epoll.py",
    "Arbiter.sleep": "gunicorn/arbiter.py",
    "SyncWorker.wait": "gunicorn/workers/sync.py",
    "_PollLikeMixin.doPoll": "twisted/internet/base.py",
    "EPollReactor.doPoll": "twisted/internet/epollreactor.py",
    "Hub.run": "gevent/hub.py",
    "Server.wait_for_termination": "grpc/_server.py",
}
_PYTHON_WORKERS = {
    "_worker": "concurrent/futures/thread.py",
    "worker": "multiprocessing/pool.py",
    "Pool._handle_tasks": "multiprocessing/pool.py",
    "Pool._handle_results": "multiprocessing/pool.py",
    "Pool._wait_for_updates": "multiprocessing/pool.py",
    "Timer.run": "threading.py",
    "QueueListener._monitor": "logging/handlers.py",
}
_PYTHON_WAITS: tuple[str, ...] = (
    "threading.py",
    "queue.py",
    "multiprocessing/queues.py",
    _SELECTORS,
)
_PYTHON_WAITS += ("multiprocessing/connection.py", "<frozen")
_MODULE = "<module>"
_BOOTSTRAPS = ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run")


def role_of(stack: CallStack, *, is_main: bool = True) -> WaitRole:
    """Return the role of a wait by the functions of its stack."""
    functions = _functions(stack)
    python = [function for function in functions if function.file]
    native = [function for function in functions if not function.file]
    by_native = _native_role(native, has_python=bool(python))
    if not python or by_native.is_idle:
        return by_native
    return _python_role(python, is_main=is_main)


def _functions(stack: CallStack) -> list[_Function]:
    functions: list[_Function] = []
    for frame in stack.frames:
        functions += [_Function(call.name, "") for call in frame.inlined if call.name]
        functions += [_Function(each.name, each.location.path) for each in frame.python]
        name = "" if frame.symbol is None or not frame.symbol.is_named else frame.symbol.name
        functions.append(_Function(name.partition("@")[0].partition(" (.")[0], ""))
    return functions


def _bare(name: str) -> str:
    return name.lstrip("_").removeprefix("GI_").lstrip("_").partition("(")[0]


def _is_loop(name: str) -> bool:
    bare = name.partition("(")[0]
    return (
        bare in _LOOPS
        or bare.startswith(_LOOP_PATTERNS)
        or (bare.endswith("Main") and bare.startswith(_MAIN_OF_POSTGRES))
    )


def _native_role(native: Sequence[_Function], *, has_python: bool) -> WaitRole:
    names = [function.name for function in native]
    index = next((at for at, name in enumerate(names) if not _is_machinery(name)), len(names))
    rest = names[index:]
    first = rest[0] if rest else ""
    is_outermost = first == "main" or (len(rest) > 1 and _bare(rest[1]) in _STARTS)
    role = WaitRole.OTHER
    if _is_loop(first):
        role = WaitRole.NESTED if _is_nested(rest) else WaitRole.ROOT
    elif index and (_bare(first) in _WORKERS or first in _WORKERS):
        role = WaitRole.WORKER
    elif not first and not has_python:
        role = WaitRole.UNNAMED
    elif index and is_outermost and not has_python:
        role = WaitRole.OWN
    return role


def _is_machinery(name: str) -> bool:
    return _bare(name) in _MACHINERY or name.startswith(_MACHINERY_PREFIXES)


def _is_nested(names: Sequence[str]) -> bool:
    """Return whether another loop runs the one at the inner end, with a task between them."""
    has_task = False
    for name in names:
        bare = name.partition("(")[0]
        if not _is_loop(name):
            has_task = has_task or bool(name)
        elif has_task and bare in _NESTABLE:
            return True
    return False


def _python_role(python: Sequence[_Function], *, is_main: bool) -> WaitRole:
    index = 0
    while index < len(python) and python[index].file.endswith(_PYTHON_WAITS[:4]):
        if python[index].name in _PYTHON_LOOPS or python[index].name in _PYTHON_WORKERS:
            break
        index += 1
    if index == len(python):
        return WaitRole.OWN if is_main else WaitRole.OTHER
    first = python[index]
    if first.file.endswith(_PYTHON_LOOPS.get(first.name, "\0")):
        is_nested = (
            any(
                other.name == first.name and other.file == first.file
                for other in python[index + 1 :]
            )
            and first.name in _NESTABLE
        )
        return WaitRole.NESTED if is_nested else WaitRole.ROOT
    if first.file.endswith(_PYTHON_WORKERS.get(first.name, "\0")):
        return WaitRole.WORKER
    waits_directly = index == 0 or all(
        function.file.endswith(_SELECTORS) for function in python[:index]
    )
    outer = [each for each in python[index + 1 :] if each.name not in _BOOTSTRAPS]
    is_outermost = all(each.name == _MODULE or each.file.startswith("<frozen") for each in outer)
    if waits_directly and is_outermost:
        return WaitRole.OWN
    return WaitRole.OTHER
