"""The part that a wait has in its thread, by the functions of its stack."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from machtrace.model.symbol import CallStack
from machtrace.reports.analysis.waits.frames import WaitKind, wait_of


class WaitRole(Enum):
    """The part that a wait has in its thread."""

    ROOT = "root"
    """The outermost loop waits for events."""
    NESTED = "nested"
    """A loop within a task of the outer loop waits for events, such as that of a modal dialog."""
    WORKER = "worker"
    """A worker thread waits for work."""
    OWN = "own"
    """The thread's outermost function waits itself, such as in ``main``'s own loop: it is a root
    wait unless another wait is likelier to be one."""
    UNKNOWN = "unknown"
    """The stack has no names that decide, so the other waits of the thread do."""
    OTHER = "other"
    """A task waits."""

    @property
    def is_idle(self) -> bool:
        """Whether a thread in such a wait has nothing to do."""
        return self in (WaitRole.ROOT, WaitRole.WORKER)


class NamedWait(NamedTuple):
    """The role of a wait by its stack."""

    role: WaitRole
    caller: str
    """The innermost function that is none of the machinery of waits; may be empty."""
    path: tuple[tuple[str, str, int | None], ...] = ()
    """The names, files and lines of the Python functions: CPython's own stack differs between
    two visits of the same wait."""


UNDECIDED = (WaitRole.OWN, WaitRole.UNKNOWN)


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
        *(
            "runtime.notesleep",
            "runtime.notetsleep",
            "runtime.notetsleep_internal",
            "runtime.mPark",
            "runtime.sysmon",
        ),
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
        *("mach_msg", "mach_msg_trap", "mach_msg2_trap", "mach_msg2_internal"),
        *("mach_msg_overwrite", "mach_msg_overwrite_trap", "CFRunLoopServiceMachPort"),
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
_PYTHON_WAITS += ("multiprocessing/connection.py",)
_PYTHON_TASK_WAITS = (
    ("threading.py", ("Thread.join", "Thread._wait_for_tstate_lock")),
    ("subprocess.py", ("run", "Popen.wait", "Popen._wait", "Popen.communicate")),
)
"""Files and functions that are never a loop's own wait."""
_MODULE = "<module>"
_BOOTSTRAPS = ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run")


_TASK_WAITS = frozenset(
    {
        *(WaitKind.MUTEX, WaitKind.READ_WRITE_LOCK, WaitKind.UNFAIR_LOCK, WaitKind.ONCE),
        *(WaitKind.DISPATCH_SYNC, WaitKind.DISPATCH_GROUP, WaitKind.JOIN, WaitKind.CHILD),
        WaitKind.REPLY,
    }
)
"""Waits that are never a loop's own."""


_GIL_WAITS = frozenset({"take_gil", "_PyThreadState_Attach"})
"""Functions of CPython that wait for the interpreter's lock (the latter since 3.13)."""


def role_of(stack: CallStack) -> NamedWait:
    """Return the role of a wait by the functions of its stack."""
    functions = _functions(stack)
    python = [function for function in functions if function.file]
    native = [function.name for function in functions if not function.file]
    role, caller = _native_role(native)
    if python and not (role.is_idle or role is WaitRole.NESTED):
        role, caller = _python_role(python)
        if any(name in _GIL_WAITS for name in native):
            role = WaitRole.OTHER  # a loop that cannot continue has something to do
    wait = wait_of(native)
    is_lock = wait is not None and wait.kind in _TASK_WAITS and not python
    is_child = wait is not None and wait.kind is WaitKind.CHILD
    if role in UNDECIDED and (is_lock or is_child or any(map(_is_task_wait, python))):
        role = WaitRole.OTHER
    path = tuple(
        (each.name, each.location.path, each.location.line)
        for frame in stack.frames
        for each in frame.python
    )
    return NamedWait(role, caller, path)


def _functions(stack: CallStack) -> list[_Function]:
    functions: list[_Function] = []
    for frame in stack.frames:
        functions += [_Function(call.name, "") for call in frame.inlined if call.name]
        functions += [_Function(each.name, each.location.path) for each in frame.python]
        name = "" if frame.symbol is None or not frame.symbol.is_named else frame.symbol.name
        name = name.partition("@")[0].partition(" (.")[0].removesuffix(".abi0")  # Go's assembly
        functions.append(_Function(name, ""))
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


def _native_role(names: Sequence[str]) -> tuple[WaitRole, str]:
    index = next((at for at, name in enumerate(names) if not is_machinery(name)), len(names))
    rest = names[index:]
    first = rest[0] if rest else ""
    role = WaitRole.UNKNOWN
    if _is_loop(first):
        role = WaitRole.NESTED if _is_nested(rest) else WaitRole.ROOT
    elif index and (_bare(first) in _WORKERS or first in _WORKERS):
        role = WaitRole.WORKER
    elif any(_is_loop(name) for name in rest):
        tasks = takewhile(lambda name: not _is_loop(name), rest)
        # The functions of a stripped program between its loop and the wait may be the loop's, too.
        has_task = any(name and not is_machinery(name) for name in tasks)
        role = WaitRole.OTHER if has_task else WaitRole.UNKNOWN
    elif index and (first == "main" or (len(rest) > 1 and _bare(rest[1]) in _STARTS)):
        role = WaitRole.OWN
    return role, first


def is_machinery(name: str) -> bool:
    """Whether a function is a part of waits that every program has."""
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


def _is_task_wait(function: _Function) -> bool:
    return any(
        function.file.endswith(file) and function.name in names
        for file, names in _PYTHON_TASK_WAITS
    )


def _python_role(python: Sequence[_Function]) -> tuple[WaitRole, str]:
    def is_in(function: _Function, table: dict[str, str]) -> bool:
        return function.file.endswith(table.get(function.name, "\0"))

    index = next(
        (
            at
            for at, function in enumerate(python)
            if is_in(function, _PYTHON_LOOPS)
            or is_in(function, _PYTHON_WORKERS)
            or not function.file.endswith(_PYTHON_WAITS)
        ),
        len(python),
    )
    rest = python[index:]
    if not rest:
        return WaitRole.UNKNOWN, ""
    first = rest[0]
    role = WaitRole.UNKNOWN
    if is_in(first, _PYTHON_LOOPS):
        role = WaitRole.ROOT
        if first.name in _NESTABLE and first in rest[1:]:
            role = WaitRole.NESTED
    elif is_in(first, _PYTHON_WORKERS):
        role = WaitRole.WORKER
    elif any(is_in(function, _PYTHON_LOOPS) for function in rest):
        role = WaitRole.OTHER
    elif all(function.name == _MODULE or function.name in _BOOTSTRAPS for function in rest):
        role = WaitRole.OWN
    return role, first.name
