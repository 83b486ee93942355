"""Event loops of asyncio in this process: beacons around their waits, and the names of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from machtrace.model.symbol import CallStack, PythonFrame
from machtrace.model.text import short_location
from machtrace.targets.inprocess.beacons import idle_wait, silence, stated_by

_RUN_HANDLE = "Handle._run"
_EVENTS = "asyncio/events.py"
_STEP, _TASKS = "Task.__step", "asyncio/tasks.py"
_STEPS = ("task_step", "TaskStepMethWrapper_call")
_MAX_LENGTH = 12
_ARROW = " ← "


class LoopBeacons:
    """States the idle waits of event loops, as long as they are attached."""

    def __init__(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, Callable[[], None]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> bool:
        """State the idle waits of a loop; False if it has no selector, as uvloop's have none.

        To be called by the loop's thread, or before the loop runs.
        """
        selector: Any = getattr(loop, "_selector", None)
        if selector is None or loop in self._loops:
            return loop in self._loops
        wait = selector.select
        beacon = idle_wait(wait)
        selector.select = beacon

        def detach() -> None:
            # Another watcher may have wrapped it since: then its beacon stays, and costs little.
            if selector.__dict__.get("select") is beacon:
                del selector.select
                if getattr(selector, "select", None) != wait:
                    selector.select = wait

        self._loops[loop] = detach
        return True

    def detach_all(self) -> None:
        """Restore all loops."""
        for loop, detach in self._loops.items():
            thread = loop_thread(loop)
            detach()
            if thread is not None:
                silence(thread)
        self._loops.clear()

    def check(self) -> None:
        """Let threads whose loops do not run any more state nothing."""
        running = {loop_thread(loop) for loop in self._loops}
        if None not in running:
            return
        for thread in threading.enumerate():
            if thread.native_id is not None and thread.native_id not in running:
                stated = stated_by(thread.native_id)
                if stated is not None and stated[0]:
                    silence(thread.native_id)

    def current_task(self, thread: int) -> dict[str, str]:
        """Return the task that a thread's loop runs, and the tasks that await it, innermost first.

        Empty if the loop runs none, or runs in another thread.
        """
        loop = self._loop_of(thread)
        # Tasks come and go meanwhile: then the list of them raises.
        with suppress(RuntimeError):
            task = None if loop is None else asyncio.current_task(loop)
            if loop is not None and task is not None:
                return task_facts(task, asyncio.all_tasks(loop))
        return {}

    def task_of(self, thread: int, outermost: PythonFrame) -> dict[str, str]:
        """Return the task that runs a function, for which there must be one task alone."""
        loop = self._loop_of(thread)
        if loop is None:
            return {}
        with suppress(RuntimeError):
            tasks = asyncio.all_tasks(loop)
            matches = [task for task in tasks if _runs(task, outermost)]
            if len(matches) == 1:
                return task_facts(matches[0], tasks)
        return {}

    def _loop_of(self, thread: int) -> asyncio.AbstractEventLoop | None:
        return next((loop for loop in self._loops if loop_thread(loop) == thread), None)


def task_facts(task: asyncio.Task[Any], tasks: Iterable[asyncio.Task[Any]]) -> dict[str, str]:
    """Return a task's name, and the tasks that await it with their functions, as evidence."""
    facts = {"task": task.get_name()}
    chain: list[str] = []
    seen, waiting = {task}, [task]
    tasks = tuple(tasks)
    while waiting and len(chain) < _MAX_LENGTH:
        inner = waiting.pop(0)
        for outer in _awaiting(inner, tasks):
            if outer not in seen:
                seen.add(outer)
                waiting.append(outer)
                chain.append(f"{outer.get_name()}: {_ARROW.join(_suspended_in(outer))}")
    if chain:
        facts["awaited_by"] = _ARROW.join(chain)
    return facts


def _awaiting(
    task: asyncio.Task[Any], tasks: Iterable[asyncio.Task[Any]]
) -> Iterator[asyncio.Task[Any]]:
    """Yield the tasks that wait for a task, through ``gather`` and task groups, too."""
    # CPython 3.14 states them. Before it, a group's parent is known to the group's callback.
    stated = [*(getattr(task, "_asyncio_awaited_by", None) or ())]
    for future in stated:
        if isinstance(future, asyncio.Task):
            yield future
        else:
            yield from getattr(future, "_asyncio_awaited_by", None) or ()
    if stated:
        return
    callbacks = [callback for callback, _ in getattr(task, "_callbacks", None) or ()]
    parents = [
        getattr(getattr(callback, "__self__", None), "_parent_task", None) for callback in callbacks
    ]
    for other in tasks:
        future = getattr(other, "_fut_waiter", None)
        if future is None:
            continue
        children = getattr(future, "_children", None) or ()
        if future is task or task in children or other in parents:
            yield other


def _suspended_in(task: asyncio.Task[Any]) -> list[str]:
    """Return the functions of a task that waits, the innermost first."""
    functions: list[str] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None and len(functions) < _MAX_LENGTH:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        functions.append(
            f"{coroutine.__name__} ({short_location(frame.f_code.co_filename, frame.f_lineno)})"
        )
        coroutine = coroutine.cr_await
    return functions[::-1]


def _runs(task: asyncio.Task[Any], function: PythonFrame) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return (
        code is not None
        and code.co_qualname == function.name
        and code.co_filename == function.location.path
    )


def loop_thread(loop: asyncio.AbstractEventLoop) -> int | None:
    """Return the id of the thread that runs a loop; None if none does."""
    ident = getattr(loop, "_thread_id", None)
    if ident is None:
        return None
    return next((each.native_id for each in threading.enumerate() if each.ident == ident), None)


class AwaitChain(NamedTuple):
    """The functions of the task that a stack runs."""

    text: str
    """Innermost first: ``fetch (server.py:10) ← handle (server.py:40)``."""
    outermost: PythonFrame
    """The task's coroutine."""


def await_chain(stack: CallStack) -> AwaitChain | None:
    """Return the functions of the task that a stack runs; None outside of tasks."""
    chain: list[PythonFrame] = []
    is_task = False
    for frame in stack.frames:
        for function in frame.python:
            if function.name == _RUN_HANDLE and function.location.path.endswith(_EVENTS):
                if not chain or not is_task:
                    return None
                return AwaitChain(_ARROW.join(map(_shown, chain[:_MAX_LENGTH])), chain[-1])
            if function.name.startswith(_STEP) and function.location.path.endswith(_TASKS):
                is_task = True
            else:
                chain.append(function)
        if chain and not frame.python:
            name = "" if frame.symbol is None else frame.symbol.name
            image = "" if frame.image is None else frame.image.name
            is_task = is_task or name.startswith(_STEPS) or image.startswith("_asyncio")
    return None


def _shown(function: PythonFrame) -> str:
    name = function.name.rpartition(".")[2]
    return f"{name} ({short_location(function.location.path, function.location.line)})"
