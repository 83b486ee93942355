"""Requests whose answers come later: each is given once, to the token that sent the request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from uuid import uuid4

from machtrace.errors import MachtraceError
from machtrace.server.limits import NOT_FOUND, UNAVAILABLE, RefusedError

_MAX_COUNT = 200
"""Jobs that run, or whose answer nobody collected yet."""
_RETRY_AFTER = 30
_FORGET_AFTER = 90.0
"""Seconds for which an answer waits."""


class _Job(NamedTuple):
    task: asyncio.Task[dict[str, Any]]
    token: str


class Jobs:
    """Work in another thread, in sequence, for requests of one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        # Not in the threads of other requests, all of which would wait for these.
        self._threads = ThreadPoolExecutor(1, "machtrace-names")

    def close(self) -> None:
        """Begin no other job."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(self, work: Callable[[], dict[str, Any]], token: str) -> str:
        """Begin, and return an identifier.

        Args:
            work: returns an answer without its status.
            token: the token of the request; others do not get the answer.

        Raises:
            RefusedError: too many jobs run.
        """
        if len(self._jobs) >= _MAX_COUNT:
            raise RefusedError(UNAVAILABLE, "too many requests at a time", retry_after=_RETRY_AFTER)
        name = str(uuid4())
        task = asyncio.create_task(self._answer(work))
        self._jobs[name] = _Job(task, token)
        loop = asyncio.get_running_loop()
        task.add_done_callback(lambda _: loop.call_later(_FORGET_AFTER, self._jobs.pop, name, None))
        return name

    async def answer(self, name: str, token: str, seconds: float | None) -> dict[str, Any]:
        """Return the answer, or that it is pending.

        Args:
            name: the identifier.
            token: that of the request.
            seconds: the time to wait; None: until it is there.

        Raises:
            RefusedError: there is no such job, or its answer was given.
        """
        job = self._jobs.get(name)
        if job is None or job.token != token:
            raise RefusedError(NOT_FOUND, "there is no such request")
        done, _ = await asyncio.wait([job.task], timeout=seconds)
        if not done:
            return {"status": "pending", "request_id": name, "retry_after": _RETRY_AFTER}
        self._jobs.pop(name, None)
        return job.task.result()

    async def _answer(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            return {"status": "completed", **await loop.run_in_executor(self._threads, work)}
        except MachtraceError as error:
            return {"status": "failed", "message": str(error)}
        except Exception as error:  # noqa: BLE001 - a client gets an answer, and no traceback
            sys.stderr.write(f"machtrace: {type(error).__name__}: {error}\n")
            return {"status": "internal_error"}
