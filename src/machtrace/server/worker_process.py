"""A process that works for the server: one that crashes or takes too long costs its task alone.

It gets tasks through a pipe and returns the answer to each of them. It starts with the first task,
and ends with the process that started it, also in the middle of a task.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

# A fork of a process with threads may hold their locks. A fork server has none, and its children
# share what it imported, so that another one is there in milliseconds. Apple's libraries must not
# be forked at all.
if sys.platform == "linux":
    _CONTEXT = get_context("forkserver")
    _CONTEXT.set_forkserver_preload(["machtrace.server.preloaded"])
else:
    _CONTEXT = get_context("spawn")
_CANCEL = None
"""The message that ends the present task."""
_READY = "ready"
"""The first message of a process."""
_START_SECONDS = 120.0
"""For a process that starts."""
_LAST_SECONDS = 5.0
"""For a process that has closed its pipe."""


class WorkerEndedError(Exception):
    """The process ended before it answered."""

    def __init__(self, status: int | None, *, is_late: bool) -> None:
        """Take the status with which it ended, and whether it was ended since it took too long."""
        super().__init__(status)
        self.status = status
        self.is_late = is_late


class WorkerProcess:
    """A process that answers tasks in sequence, and is replaced when it ended."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        """Start nothing yet.

        Args:
            name: the name of the process.
            target: its function, of a pipe and the arguments; see :func:`tasks`.
            arguments: further ones.
        """
        self._name = name
        self._target = target
        self._arguments = arguments
        self._pipe: Connection | None = None
        self._lock = Lock()
        self._is_over = False
        self._is_cancelled = False
        self.process: BaseProcess | None = None
        """The present one."""
        self.pid: int | None = None
        """Its number, or that of the last one."""

    def run(self, task: object, seconds: float) -> Any:  # noqa: ANN401 - any answer
        """Return the answer to a task.

        Raises:
            WorkerEndedError: the process ended, or was ended since it takes longer.
        """
        if self.process is not None and not self.process.is_alive():  # it was killed meanwhile
            self.close()
        pipe = self._pipe or self._start()
        is_late = False
        with suppress(EOFError, OSError):
            with self._lock:
                pipe.send(task)
                if self._is_cancelled:  # while it started
                    pipe.send(_CANCEL)
            if pipe.poll(seconds):
                return pipe.recv()
            is_late = True
        raise WorkerEndedError(self._end(is_late=is_late), is_late=is_late)

    def assign(self) -> None:
        """Give it a task, which another thread runs; :meth:`cancel` is about this one from now."""
        self._is_cancelled = False

    def cancel(self) -> None:
        """Make the process end its task soon; another thread runs it, or is about to."""
        self._is_cancelled = True
        if self._lock.acquire(blocking=False):
            try:
                if self._pipe is not None:
                    with suppress(OSError):
                        self._pipe.send(_CANCEL)
            finally:
                self._lock.release()
        else:  # the task is being sent
            self._kill()

    def kill(self) -> None:
        """End the process now, and for good; a thread that waits for an answer notices that."""
        self._is_over = True
        self._kill()

    def _kill(self) -> None:
        process = self.process
        if process is not None:
            with suppress(ValueError, OSError):  # the thread that waited has closed it
                process.kill()

    def close(self) -> None:
        """End the process."""
        self._end(is_late=True)

    def _end(self, *, is_late: bool) -> int | None:
        """End the process, and return the status with which it ended by itself."""
        process, self.process = self.process, None
        with self._lock:
            pipe, self._pipe = self._pipe, None
        status = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            if not is_late:  # its end of the pipe is closed, so that it has ended or is about to
                process.join(_LAST_SECONDS)
                status = process.exitcode
            process.kill()
            process.join()
            process.close()
        return status

    def _start(self) -> Connection:
        own, others = _CONTEXT.Pipe()
        process = _CONTEXT.Process(
            target=self._target, args=(others, *self._arguments), name=self._name
        )
        process.start()
        others.close()  # so that its end is seen
        self.process, self.pid, self._pipe = process, process.pid, own
        if self._is_over:  # meanwhile
            self._kill()
        # What it imports is no part of a task.
        with suppress(EOFError, OSError):
            if own.poll(_START_SECONDS):
                own.recv()
        return own


class Watch(Protocol):
    """An observer of a task that is computed; a thread calls its methods."""

    pause: float
    """Seconds between checks."""
    is_busy: bool

    def begin(self, task: Any) -> None:  # noqa: ANN401 - any task
        """A task came; it becomes busy."""

    def check(self) -> None:
        """Look after it."""

    def cancel(self) -> None:
        """End it soon."""


def tasks(pipe: Connection, watch: Watch | None = None) -> Iterator[Any]:
    """Yield the tasks of a pipe, in the process that computes them.

    A thread reads the pipe, so that the process ends with the one that started it, and a task can
    be watched and cancelled.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the server, which closes the pipe
        signal.signal(number, signal.SIG_IGN)
    pipe.send(_READY)
    waiting: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(pipe, waiting, watch), daemon=True).start()
    while True:
        yield waiting.get()


def _receive(pipe: Connection, waiting: SimpleQueue[Any], watch: Watch | None) -> None:
    try:
        while True:
            if watch is not None and watch.is_busy and not pipe.poll(watch.pause):
                watch.check()
                continue
            task = pipe.recv()
            if task is not _CANCEL:
                if watch is not None:
                    watch.begin(task)
                waiting.put(task)
            elif watch is not None:
                watch.cancel()
    finally:  # nobody waits for the answer
        os._exit(0)
