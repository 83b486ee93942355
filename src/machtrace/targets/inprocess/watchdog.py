"""A thread of the extension that watches this process's threads, whatever Python does meanwhile.

See ``native/inprocess/core/watchdog.h``. Importing this raises ImportError where the package was
installed without its extensions.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from machtrace._native import _inprocess
from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import ArgumentError, FileAccessError, FormatError, ThreadGoneError
from machtrace.model.polls import CallPlace, ThreadPoll
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.inprocess.copier import begin_error, wanted_signal
from machtrace.targets.inprocess.series import SLEEP_LIMIT_NS, SnapshotMaker
from machtrace.targets.inprocess.watchdog_file import RECORD_START, record_line
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogItem,
    WatchdogReader,
    parse_polls,
)

STACK_LIMIT = 1 << 17
"""Bytes copied of each stack: of deeper ones the innermost."""

_ANSWER_LIMIT_NS = 30_000_000
"""How long a thread may take to copy itself: nothing is polled meanwhile."""

PREVIOUS = ".previous"
"""Suffix of the record that a killed process left, once its file is used again."""
_STARTED_NS = time.monotonic_ns()
_FRESH_NS = 5_000_000_000
"""The time since the last poll after which a record's process is no longer watched."""

ROOM = 16 << 20
"""Bytes of records that wait until they are taken."""


class WatchdogCounts(NamedTuple):
    """The watchdog's own work so far."""

    rounds: int
    """Times that it polled all watched threads."""
    late: int
    """Rounds that were more than one interval late."""
    latest_ns: int
    """The longest delay."""
    cpu_ns: int
    """Its processor time, until it was stopped."""
    captures: int
    stops: int
    """Threads that a signal stopped for their copy."""
    longest_stop_ns: int
    lost: int
    """Captures that were not recorded: there was no room, or another capture lasted too long."""


class OwnWatchdog(ClosedWhenLeft):
    """Watches threads of this process until it is closed.

    To be had by :meth:`machtrace.targets.inprocess.linux.SelfTarget.watchdog`.

    Args:
        limit_ns: the time that a watched thread may be busy; 0 to watch scopes alone.
        interval_ns: from poll to poll.
        snapshots: builds the snapshots of captures.
        layout: CPython's; None if it is not known.
        native_layout: the same, for the extension; empty if it is not known.
        record: the path of a file for the record; None for memory alone.
        info: what the record states about this process.

    Raises:
        TargetError: no signal can be had, or there is no memory or thread for it.
        FileAccessError: the record cannot be created.
    """

    def __init__(
        self,
        limit_ns: int,
        interval_ns: int,
        snapshots: SnapshotMaker,
        *,
        layout: PythonLayout | None,
        native_layout: bytes,
        record: str | None,
        info: bytes,
    ) -> None:
        self.layout = layout
        self._snapshots = snapshots
        self._reader = WatchdogReader()
        self._record = record
        self._pid = os.getpid()
        self._news = self._cpu_ns = 0
        wanted = wanted_signal()
        descriptor = -1 if record is None else _created(record)
        try:
            self._watchdog = _inprocess.Watchdog(
                limit_ns,
                interval_ns,
                STACK_LIMIT,
                _ANSWER_LIMIT_NS,
                SLEEP_LIMIT_NS,
                wanted,
                ROOM,
                descriptor,
                info,
                native_layout,
            )
        except (OSError, MemoryError, ValueError, OverflowError) as error:
            self._remove_record()
            if isinstance(error, OSError) and error.errno == errno.ENOSPC and record:
                raise FileAccessError(record, "no space for the record") from error
            raise begin_error(error, wanted) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def counts(self) -> WatchdogCounts:
        """The watchdog's own work so far."""
        counts = WatchdogCounts(*self._watchdog.counts())
        return counts._replace(cpu_ns=max(counts.cpu_ns, self._cpu_ns))

    def watch(self, thread: int) -> None:
        """Watch one more thread.

        Raises:
            ThreadGoneError: it does not exist.
            ArgumentError: too many are watched.
        """
        try:
            self._watchdog.watch(thread)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise ArgumentError(
                    "too many threads to watch", remedy="watch at most 64 threads of this process"
                ) from error
            raise ThreadGoneError(f"thread {thread} has exited", thread=thread) from error

    def unwatch(self, thread: int) -> None:
        """Stop watching a thread."""
        self._watchdog.unwatch(thread)

    def set_idle(self, thread: int, places: Sequence[CallPlace]) -> None:
        """Set the places where a watched thread is idle while it waits: the first sixteen."""
        self._watchdog.clear_idle(thread)
        for place in places:
            self._watchdog.add_idle(thread, place.number, place.sp, place.pc)

    def wait(self, timeout_ns: int) -> bool:
        """Wait for something new, without the interpreter's lock; False if nothing came."""
        before, self._news = self._news, self._watchdog.wait(self._news, timeout_ns)
        return before != self._news

    def wake(self) -> None:
        """Let :meth:`wait` return."""
        self._watchdog.wake()

    def take(self) -> Iterator[WatchdogItem]:
        """Yield the events and captures that were not taken yet, the oldest first."""
        return self._reader.read(self._watchdog.take())

    def polls(self, first: int) -> Iterator[tuple[int, int, ThreadPoll]]:
        """Yield number, thread and poll of the polls from this number on that are recorded."""
        while data := self._watchdog.polls(first):
            for number, thread, poll in parse_polls(data):
                yield number, thread, poll
                first = number + 1

    def copy_of(self, capture: WatchdogCapture) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Return the snapshot of a capture, and its threads' Python functions."""
        return self._snapshots.make(capture.recorded).snapshot, capture.python(self.layout)

    def close(self) -> None:
        """Stop; records can still be taken. The record's file is removed."""
        self._cpu_ns = self.counts.cpu_ns
        self._watchdog.stop()
        self._remove_record()

    def _remove_record(self) -> None:
        if self._record is not None and self._pid == os.getpid():
            with suppress(OSError):
                os.unlink(self._record)  # noqa: PTH108 - as it was created
        self._record = None


def _created(path: str) -> int:
    """Create the record's file: a new one, as another process may still read the old one."""
    try:
        _keep_old(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileAccessError:
        raise
    except OSError as error:
        raise FileAccessError(path, f"cannot create the record ({error.strerror})") from error


def _keep_old(path: str) -> None:
    """Rename the record that a killed process left; raise if there is something else."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - no Path for one file
            start = file.read(RECORD_START)
    except FileNotFoundError:
        return
    if start:
        try:
            line = record_line(start)
        except FormatError as error:
            raise FileAccessError(path, "exists and is no record: it is not replaced") from error
        now_ns = time.monotonic_ns()
        if line.pid == os.getpid():
            is_live = line.at_ns >= _STARTED_NS
        else:
            is_live = os.path.exists(f"/proc/{line.pid}")  # noqa: PTH110 - as above
            is_live = is_live and abs(now_ns - line.at_ns) < _FRESH_NS
        if is_live:
            refused = FileAccessError(path, f"process {line.pid} writes this record")
            refused.remedy = "name a file for each process and watcher"
            raise refused
    os.replace(path, f"{path}{PREVIOUS}")  # noqa: PTH105 - as above
