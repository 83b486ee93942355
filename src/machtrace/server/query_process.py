"""The process that computes answers: it reads the warehouse, within limits of time and memory.

SQL of a client may take any time and any memory, so that it never runs in the process that
acknowledges reports. A query that takes too long is interrupted; one that continues, or that takes
more memory than DuckDB knows of, ends its process.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from machtrace.errors import MachtraceError, MemoryLimitError
from machtrace.server.limits import TIMEOUT, TOO_LARGE, UNAVAILABLE, RefusedError
from machtrace.server.worker_process import WorkerEndedError, WorkerProcess, tasks
from machtrace.warehouse.spills import remove_spills, served_resources
from machtrace.warehouse.warehouse import Warehouse

try:
    import resource
except ImportError:  # pragma: no cover - not a Unix
    resource = None  # type: ignore[assignment]

_TOO_LATE, _TOO_LARGE = 80, 81
"""Statuses of a process that ended itself."""
_GRACE = 2.0
"""Seconds in which a query ends that was interrupted."""
_RESERVED = 4
"""Address space for each byte of memory: allocators keep what they may use again."""
_KIB = 1024


class QueryLimits(NamedTuple):
    """Limits of a process. Sizes are in bytes, times in seconds."""

    folder: Path
    """The warehouse."""
    seconds: float
    """A task."""
    memory: int
    """Memory of a task, besides that of the idle process."""
    spill: int
    """For what does not fit into memory, on the disk."""
    answer: int
    niceness: int
    """As ``nice`` counts it."""


class Task(NamedTuple):
    """A computation of an answer."""

    work: Callable[..., Any]
    """A function of the warehouse and the arguments, by which the other process finds it."""
    arguments: tuple[Any, ...]


class _Reply(NamedTuple):
    answer: bytes
    """Pickled; or the error."""
    is_error: bool
    is_last: bool
    """Whether the process ends, since it has grown."""


class WorkFailedError(Exception):
    """The work failed with an error of the program."""


class QueryProcess:
    """Computes answers in another process, which starts when it is needed."""

    def __init__(self, limits: QueryLimits) -> None:
        """Start nothing yet."""
        self._limits = limits
        self._worker = WorkerProcess("machtrace-query", _serve, limits)

    def answer(self, task: Task) -> Any:  # noqa: ANN401 - any answer
        """Return the answer to a task.

        Raises:
            RefusedError: it takes too long or too much memory, or its process crashed.
            MachtraceError: those of the work.
            WorkFailedError: the work failed.
        """
        seconds = self._limits.seconds
        try:
            reply: _Reply = self._worker.run(task, seconds + 2 * _GRACE)
        except WorkerEndedError as error:
            self._remove_spills()
            if error.is_late or error.status == _TOO_LATE:
                raise too_late(seconds) from None
            if error.status == _TOO_LARGE:
                raise too_much_memory(self._limits.memory) from None
            raise RefusedError(
                UNAVAILABLE,
                "the process of the query ended early: it crashed, or was killed",
                remedy=MemoryLimitError.remedy,
            ) from None
        if reply.is_last:
            self.close()
        value = pickle.loads(reply.answer)  # noqa: S301 - of our own process
        if reply.is_error:
            raise value
        return value

    def assign(self) -> None:
        """Give it a task; :meth:`cancel` is about this one from now."""
        self._worker.assign()

    def cancel(self) -> None:
        """End the task soon; the thread that waits for it gets an error."""
        self._worker.cancel()

    def kill(self) -> None:
        """End the process now."""
        self._worker.kill()

    def close(self) -> None:
        """End the process, and remove what it stored."""
        self._worker.close()
        self._remove_spills()

    def _remove_spills(self) -> None:
        if self._worker.pid is not None:
            remove_spills(self._limits.folder, self._worker.pid)


def too_late(seconds: float) -> RefusedError:
    """Return the refusal of what takes too long."""
    return RefusedError(
        TIMEOUT,
        f"it takes longer than {seconds:g} seconds",
        remedy="choose fewer reports: a build, a day, a simpler condition",
    )


def too_much_memory(size: int) -> RefusedError:
    """Return the refusal of what takes too much memory."""
    return RefusedError(
        UNAVAILABLE,
        f"it takes more memory than a query may: {size >> 20:,} MiB",
        remedy=MemoryLimitError.remedy,
    )


# --- in the other process ---


class _Watch:
    """Ends a task that takes too long or too much memory, or that nobody waits for."""

    pause = 0.02

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._end = 0.0
        self._most = 0
        self.is_busy = False
        self.is_over = False
        """Whether the present task was interrupted."""
        self.warehouse: Warehouse | None = None

    def begin(self, _task: object) -> None:
        with self._lock:
            self.is_busy, self.is_over = True, False
            self._end = time.monotonic() + self._limits.seconds

    def end(self) -> bool:
        """Watch no longer, and return whether the task was interrupted."""
        with self._lock:
            self.is_busy = False
            return self.is_over

    def check(self) -> None:
        if self._most and _resident() > self._most:
            os._exit(_TOO_LARGE)
        if time.monotonic() > self._end:
            if self.is_over:
                os._exit(_TOO_LATE)
            self.cancel()

    def cancel(self) -> None:
        with self._lock:
            if not self.is_busy or self.is_over:
                return
            self.is_over = True
            self._end = time.monotonic() + _GRACE
            if self.warehouse is not None:
                self.warehouse.interrupt()

    def limit(self) -> None:
        """Allow what the idle process has and a task's memory."""
        self._most = _resident() + self._limits.memory


def _serve(pipe: Connection, limits: QueryLimits) -> None:
    """Answer tasks until the pipe is closed."""
    _stand_back(limits.niceness)
    watch = _Watch(limits)
    idle = 0
    with suppress(OSError):
        for task in tasks(pipe, watch):
            if watch.warehouse is None:
                watch.warehouse = _opened(limits)
            if not idle:
                idle = _prepared(watch, limits)
            reply = _reply(task, watch, limits)
            is_last = _resident() - idle > limits.memory // 4
            if watch.end():
                # An interrupted warehouse refuses what follows.
                watch.warehouse.close()
                watch.warehouse = None
            pipe.send(reply._replace(is_last=is_last))
            if is_last:
                return


def _reply(task: Task, watch: _Watch, limits: QueryLimits) -> _Reply:
    try:
        answer = pickle.dumps(task.work(watch.warehouse, *task.arguments))
        _check_size(len(answer), limits.answer)
    except Exception as error:  # noqa: BLE001 - the caller gets it
        return _Reply(pickle.dumps(_stated(error, watch, limits)), is_error=True, is_last=False)
    return _Reply(answer, is_error=False, is_last=False)


def _check_size(size: int, most: int) -> None:
    if size > most + _SPARE:
        raise RefusedError(
            TOO_LARGE,
            f"the answer is larger than {most >> 20:,} MiB",
            remedy=MemoryLimitError.remedy,
        )


_SPARE = 1 << 16
"""Bytes of an answer besides its content."""


def _stated(error: Exception, watch: _Watch, limits: QueryLimits) -> Exception:
    """Return the error that the caller gets."""
    if isinstance(error, RefusedError):
        return error
    if watch.is_over:
        return too_late(limits.seconds)
    if isinstance(error, MemoryError):
        return too_much_memory(limits.memory)
    if isinstance(error, MemoryLimitError):
        return RefusedError(UNAVAILABLE, str(error), remedy=error.remedy)
    if isinstance(error, MachtraceError):
        return error
    return WorkFailedError(f"{type(error).__name__}: {error}")


def _opened(limits: QueryLimits) -> Warehouse:
    warehouse = Warehouse(limits.folder)
    # The other half is for what is computed without DuckDB.
    warehouse.connections.keep(served_resources(limits.folder, limits.memory // 2, limits.spill))
    return warehouse


def _stand_back(niceness: int) -> None:
    """Let others have the processor first, and die first if the machine has no memory."""
    with suppress(OSError, AttributeError):
        os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if resource is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prepared(watch: _Watch, limits: QueryLimits) -> int:
    """Set the limits of memory, and return what the idle process has."""
    watch.limit()
    if resource is not None:
        # The watch compares what is used, but it may have to wait for the interpreter's lock.
        most = _reserved() + _RESERVED * limits.memory
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return _resident()


def _resident() -> int:
    """Return the memory that this process has, in bytes; where that is not known, the most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - often
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        if resource is None:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * _KIB


def _reserved() -> int:
    """Return the private address space of this process, in bytes, or more."""
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[5]) * _PAGE
    return 1 << 40


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
