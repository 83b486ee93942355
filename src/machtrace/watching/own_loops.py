"""Event loops of asyncio in this process: beacons around their waits, and the names of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from machtrace.model.symbol import CallStack
from machtrace.targets.inprocess.beacons import idle_wait, silence, stated_by

_RUN_HANDLE = "Handle._run"
_EVENTS = "asyncio/events.py"
_LONGEST = 12


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
        """Return the name of the task that a thread's loop runs, and of tasks that await it."""
        loop = next((each for each in self._loops if loop_thread(each) == thread), None)
        if loop is None:
            return {}
        with suppress(RuntimeError):
            task = asyncio.current_task(loop)
            if task is None:
                return {}
            facts = {"task": task.get_name()}
            waiting = [
                each.get_name()
                for each in asyncio.all_tasks(loop)
                if getattr(each, "_fut_waiter", None) is task
            ]
            if waiting:
                facts["awaited_by"] = ", ".join(sorted(waiting)[:_LONGEST])
            return facts
        return {}


def loop_thread(loop: asyncio.AbstractEventLoop) -> int | None:
    """Return the id of the thread that runs a loop; None if none does."""
    ident = getattr(loop, "_thread_id", None)
    if ident is None:
        return None
    return next((each.native_id for each in threading.enumerate() if each.ident == ident), None)


def await_chain(stack: CallStack) -> str:
    """Return the functions of the task that a stack runs, the task's own first; empty if none."""
    chain: list[str] = []
    for frame in stack.frames:
        for function in frame.python:
            if function.name == _RUN_HANDLE and function.location.path.endswith(_EVENTS):
                return " > ".join(reversed(chain[-_LONGEST:]))
            chain.append(function.name)
    return ""
