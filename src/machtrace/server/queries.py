"""Pools of processes that compute: one for SQL of clients, and one for all other pages.

A condition or a query in SQL may run as long as it is allowed to. Such tasks have processes of
their own, of a lower priority, so that pages without them are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request

from machtrace.server.limits import UNAVAILABLE, RefusedError
from machtrace.server.query_process import QueryLimits, QueryProcess, Task

_GONE = 499
"""The status of a request whose client has left, as other servers count it."""
_RETRY_AFTER = 2


class QueryPool:
    """Some processes that answer tasks of one kind. One event loop uses it."""

    def __init__(self, limits: QueryLimits, processes: int, waiting: int, idle: float) -> None:
        """Start nothing yet.

        Args:
            limits: those of each process.
            processes: how many run at a time.
            waiting: how many tasks wait for one of these.
            idle: seconds after which a process without a task ends.
        """
        self._limits = limits
        self._most_waiting = waiting
        self._idle_time = idle
        self._waiting = 0
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[QueryProcess] = []
        self._used: set[QueryProcess] = set()
        self._timers: dict[QueryProcess, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(processes, "machtrace-query")
        self._is_closed = False

    async def answer(self, task: Task) -> Any:  # noqa: ANN401 - any answer
        """Return the answer to a task, which ends if this is cancelled.

        Raises:
            RefusedError: too many tasks wait; and see ``QueryProcess.answer``.
        """
        if self._slots.locked() and self._waiting >= self._most_waiting:
            raise RefusedError(
                UNAVAILABLE,
                "too many queries at a time",
                remedy="try again soon",
                retry_after=_RETRY_AFTER,
            )
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        if self._is_closed:
            self._slots.release()
            raise _stopping()
        process = self._idle.pop() if self._idle else QueryProcess(self._limits)
        process.assign()
        # It has the place until its process has ended with it, also if it is cancelled.
        running = asyncio.create_task(self._answer(process, task))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            process.cancel()
            running.add_done_callback(_forget)
            raise

    def stop(self) -> None:
        """Refuse all tasks, also those that are computed."""
        self._is_closed = True
        for process in self._used:
            process.kill()

    def close(self) -> None:
        """End all processes."""
        self.stop()
        self._threads.shutdown()  # they see the ends of their processes
        for process in (*self._idle, *self._used):
            process.close()
        self._idle.clear()

    async def _answer(self, process: QueryProcess, task: Task) -> Any:  # noqa: ANN401
        loop = asyncio.get_running_loop()
        self._used.add(process)
        timer = self._timers.pop(process, None)
        if timer is not None:
            timer.cancel()
        try:
            return await loop.run_in_executor(self._threads, process.answer, task)
        except RefusedError:
            if self._is_closed:
                raise _stopping() from None
            raise
        finally:
            if not self._is_closed:
                self._used.discard(process)
                self._idle.append(process)  # the one that was used last is the next one
                self._timers[process] = loop.call_later(self._idle_time, self._end, process)
            self._slots.release()

    def _end(self, process: QueryProcess) -> None:
        """End a process that had no task for some time."""
        self._timers.pop(process, None)
        self._idle.remove(process)
        process.close()


def _stopping() -> RefusedError:
    return RefusedError(UNAVAILABLE, "the server stops", remedy="try again soon", retry_after=5)


def _forget(task: asyncio.Task[Any]) -> None:
    """Take the outcome, which nobody waits for."""
    if not task.cancelled():
        task.exception()


async def run_for(request: Request, pool: QueryPool, task: Task) -> Any:  # noqa: ANN401
    """Return the answer of a pool to a request, unless the client leaves before.

    Args:
        request: its body was read.
        pool: the pool.
        task: what is computed.

    Raises:
        RefusedError: see :meth:`QueryPool.answer`.
    """
    answer = asyncio.ensure_future(pool.answer(task))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise RefusedError(_GONE, "the client has left")
    finally:
        leaving.cancel()
        if not answer.done():
            answer.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
