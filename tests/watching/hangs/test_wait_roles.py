"""Roles of waits by the functions of their stacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from machtrace.model.symbol import CallStack, Certainty, PythonFrame, SourceLocation
from machtrace.watching.hangs.wait_roles import WaitRole, role_of
from tests.support.reports.incidents import frame, stack

STDLIB = "/usr/lib/python3.11/"
LOOP = ("BaseEventLoop._run_once", "asyncio/base_events.py")
SELECT = ("EpollSelector.select", "selectors.py")


def native(*names: str) -> CallStack:
    """Return a stack of C functions, innermost first; an empty name is unknown."""
    frames = []
    for name in names:
        known = frame("main")
        assert known.symbol is not None
        symbol = replace(
            known.symbol, name=name, certainty=Certainty.EXACT if name else Certainty.NONE
        )
        frames.append(replace(known, symbol=symbol))
    return replace(stack(("main",)), frames=tuple(frames))


def python(wait: str, *functions: tuple[str, str]) -> CallStack:
    """Return a stack with one run of CPython's loop below a wait."""
    below = native(wait, "_PyEval_EvalFrameDefault", "Py_RunMain", "main")
    runs = tuple(
        PythonFrame(name, SourceLocation(path if path.startswith("/") else STDLIB + path, 1))
        for name, path in functions
    )
    frames = list(below.frames)
    frames[1] = replace(frames[1], python=runs)
    return replace(below, frames=tuple(frames))


START = ("__libc_start_call_main", "__libc_start_main_impl", "_start")


@pytest.mark.parametrize(
    "names",
    [
        ("epoll_pwait", "uv__io_poll", "uv_run", "node::SpinEventLoop", "main"),
        ("epoll_wait", "epoll_dispatch", "event_base_loop", "main"),
        ("__GI___poll", "g_main_context_iterate", "g_main_loop_run", "main"),
        ("epoll_wait", "aeApiPoll", "aeProcessEvents", "aeMain", "main"),
        ("epoll_wait", "ngx_epoll_process_events", "ngx_process_events_and_timers", "main"),
        ("epoll_wait", "WaitEventSetWaitBlock", "WaitEventSetWait", "ServerLoop", "PostmasterMain"),
        (
            *("epoll_wait", "WaitEventSetWait", "secure_read", "pq_recvbuf", "pq_getbyte"),
            *("SocketBackend", "PostgresMain", "ServerLoop", "main"),
        ),
        ("epoll_wait", "WaitEventSetWait", "WaitLatch", "CheckpointerMain", "main"),
        ("runtime.futex", "runtime.futexsleep", "runtime.notesleep", "runtime.mPark"),
        ("runtime.epollwait.abi0", "runtime.netpoll", "runtime.findRunnable", "runtime.schedule"),
        (
            "runtime.futex.abi0",
            "runtime.futexsleep",
            "runtime.notetsleep_internal",
            "runtime.sysmon",
        ),
    ],
)
def test_waits_of_known_loops_are_root_waits(names: tuple[str, ...]) -> None:
    assert role_of(native(*names)).role is WaitRole.ROOT


@pytest.mark.parametrize(
    "names",
    [
        ("clock_nanosleep", "on_timer", "uv__run_timers", "uv_run", "main"),
        ("read", "load_config", "on_request", "aeProcessEvents", "aeMain", "main"),
        ("epoll_wait", "WaitEventSetWait", "WaitLatch", "ProcSleep", "PostgresMain", "ServerLoop"),
        ("futex_wait", "__lll_lock_wait", "pthread_mutex_lock", "flush", "main", *START),
        ("wait4", "waitpid", "system", "main", *START),
    ],
)
def test_waits_of_tasks_are_none(names: tuple[str, ...]) -> None:
    assert role_of(native(*names)).role is WaitRole.OTHER


def test_a_loop_in_a_task_of_a_loop_is_nested() -> None:
    names = ("epoll_wait", "uv__io_poll", "uv_run", "wait_for_reply", "uv__run_timers", "uv_run")
    assert role_of(native(*names)).role is WaitRole.NESTED


@pytest.mark.parametrize("call", ["epoll_wait", "pause", "accept", "__GI___nanosleep"])
def test_a_wait_in_main_is_mains_own(call: str) -> None:
    assert role_of(native(call, "main", *START)).role is WaitRole.OWN


def test_a_wait_without_names_is_undecided() -> None:
    assert role_of(native("epoll_wait", "", "", "")).role is WaitRole.UNKNOWN


@pytest.mark.parametrize(
    "names",
    [
        ("epoll_wait", "", "aeMain", "main", *START),
        ("epoll_wait", "WaitEventSetWait", "secure_read", "", "pq_getbyte", "PostgresMain", ""),
    ],
)
def test_a_stripped_loop_is_undecided(names: tuple[str, ...]) -> None:
    assert role_of(native(*names)).role is WaitRole.UNKNOWN


def test_a_wait_in_a_function_of_the_program_has_its_caller() -> None:
    wait = role_of(native("epoll_wait", "wait_for_events", "serve", "main", *START))
    assert wait == (WaitRole.UNKNOWN, "wait_for_events", ())


@pytest.mark.parametrize(
    ("functions", "role"),
    [
        ((SELECT, LOOP), WaitRole.ROOT),
        ((SELECT, LOOP, ("Handle._run", "asyncio/events.py"), LOOP), WaitRole.NESTED),
        ((("handler", "/app.py"), ("Handle._run", "asyncio/events.py"), LOOP), WaitRole.OTHER),
        (
            (
                ("_PollLikeSelector.select", "selectors.py"),
                ("Popen._communicate", "subprocess.py"),
                ("run", "subprocess.py"),
                ("handler", "/app.py"),
                LOOP,
            ),
            WaitRole.OTHER,
        ),
        ((("_worker", "concurrent/futures/thread.py"),), WaitRole.WORKER),
        ((("<module>", "/app.py"),), WaitRole.OWN),
        ((("Thread.join", "threading.py"), ("main", "/app.py")), WaitRole.OTHER),
        ((("Queue.get", "queue.py"), ("serve", "/app.py")), WaitRole.UNKNOWN),
    ],
)
def test_roles_of_python_programs(functions: tuple[tuple[str, str], ...], role: WaitRole) -> None:
    assert role_of(python("epoll_wait", *functions)).role is role


def test_a_loop_that_waits_for_the_interpreter_lock_is_not_idle() -> None:
    stack = python("epoll_wait", SELECT, LOOP)
    waiting = native("futex_wait", "pthread_cond_timedwait", "take_gil", "PyEval_RestoreThread")
    in_gil = replace(stack, frames=(*waiting.frames, *stack.frames[1:]))
    assert role_of(stack).role is WaitRole.ROOT
    assert role_of(in_gil).role is WaitRole.OTHER
