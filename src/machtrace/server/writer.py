"""The writer of a server: received bytes to the log, the log to segments, symbols to names.

Two threads write. One appends to the log: all requests that wait are one ``fdatasync``, so that
none waits for more than two. The other has the manifest open, makes segments of what a process
reads, names frames, groups, compacts and deletes; it never delays an acknowledgement.
docs/decisions/0039 has the reasons.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeAlias, TypeVar

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.images.store_layout import parse_identifier
from machtrace.server.limits import (
    DISK_FULL,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    Limits,
    RefusedError,
)
from machtrace.server.reader_process import ReaderProcess
from machtrace.symbolstore.store import SymbolStore
from machtrace.warehouse.ingest import Body
from machtrace.warehouse.scrubbing.scrubber import ScrubError
from machtrace.warehouse.upkeep.deletion import Deleted, ExpiryError, store_trusted_clock
from machtrace.warehouse.warehouse import Warehouse

_GROUP_BYTES = 8 << 20
"""The bodies that are written at once; each is copied for that."""
_RETENTION_PAUSE = 3600.0
"""Seconds until what is old is deleted again."""
_UNSCRUBBED = "reports are refused, since {} of scrub.toml takes too long"
_PAUSE = 10.0
"""Seconds until what failed is tried again."""


@dataclass(slots=True)
class Progress:
    """Counts since the start."""

    received: int = 0
    received_bytes: int = 0
    commits: int = 0
    reports: int = 0
    repeated: int = 0
    quarantined: int = 0
    named: int = 0
    """Frames."""
    failures: int = 0
    """Segments or names that could not be made."""
    unscrubbed: int = 0
    """Requests that were refused, since scrubbing them took too long."""
    restarts: int = 0
    """Processes of readers that ended early."""
    unread_bytes: int = 0
    """Bytes of the log that are in no segment yet: now."""
    segments: int = 0
    """Now."""


_T = TypeVar("_T")
_Waiting: TypeAlias = tuple[Sequence[Body], asyncio.Future[list[str]]]


class Writer:
    """The only writer of a warehouse, as long as it is started."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.progress = Progress()
        self._folder = folder
        self._limits = limits
        self._store = SymbolStore(folder / "symbols")
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._commits: asyncio.Task[None] | None = None
        self._appending = ThreadPoolExecutor(1, "machtrace-append")
        self._warehouse: Warehouse | None = None
        self._thread = Thread(target=self._run, name="machtrace-segments", daemon=True)
        self._opened, self._work, self._stop = Event(), Event(), Event()
        self._reader = ReaderProcess(limits.reader_time, self._stop.is_set)
        self._error: MachtraceError | None = None
        self._lock = Lock()
        self._symbols: set[str] = set()
        self._may_lack_names = True
        self._jobs: deque[tuple[Callable[[Warehouse], Any], Future[Any]]] = deque()
        self._expired = -_RETENTION_PAUSE
        self._clock_problem = ""
        self._unscrubbed = ""
        self.deletions = 0
        """Beginnings and ends of deletions, which take files from queries that run; odd in one."""

    @property
    def is_alive(self) -> bool:
        """Whether it writes."""
        return self._thread.is_alive() and not self._stop.is_set()

    @property
    def problems(self) -> list[str]:
        """Why nothing is deleted by its age, and why reports were refused."""
        unscrubbed = (
            f"{self.progress.unscrubbed:,} {self._unscrubbed}" if self.progress.unscrubbed else ""
        )
        return [each for each in (self._clock_problem, unscrubbed) if each]

    def open(self) -> None:
        """Become the writer, and read what is in no segment yet.

        Raises:
            FileAccessError: another process writes.
        """
        self._thread.start()
        self._opened.wait()
        if self._error is not None:
            raise self._error
        self._work.set()

    def begin(self) -> None:
        """Accept reports from the running event loop; :meth:`open` was called."""
        self._commits = asyncio.create_task(self._commit_all())

    async def stop(self) -> None:
        """End; what was acknowledged stays in the log until the next start."""
        if self._commits is not None:
            self._commits.cancel()
        _refuse_all(self._waiting, RefusedError(UNAVAILABLE, "the server stops", retry_after=5))
        await asyncio.to_thread(self._appending.shutdown)
        self._stop.set()
        self._work.set()
        await asyncio.to_thread(self._thread.join)

    async def store(self, bodies: Sequence[Body]) -> list[str]:
        """Store bytes of reports, and return their identifiers; they are on the disk then.

        Raises:
            RefusedError: the log is too long, or the disk is full.
        """
        if not bodies:
            return []
        if self.progress.unread_bytes > self._limits.unread_bytes:
            raise RefusedError(TOO_MANY, "too many reports wait to be read", retry_after=30)
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((bodies, future))
        self._arrived.set()
        return await future

    async def perform(self, work: Callable[[Warehouse], _T]) -> _T:
        """Return what ``work`` makes of the warehouse in the thread that makes segments.

        Raises:
            RefusedError: the server stops before.
            MachtraceError: those of ``work``.
        """
        if not self.is_alive:
            raise RefusedError(UNAVAILABLE, "the server stops", retry_after=5)
        future: Future[_T] = Future()
        self._jobs.append((work, future))
        self._work.set()
        return await asyncio.wrap_future(future)

    def delete_device(self, warehouse: Warehouse, device: str, *, uncertain: bool) -> Deleted:
        """Delete a device; this is work for :meth:`perform`."""
        with self._deleting():
            deleted = warehouse.delete_device(device, self._reader.run, uncertain=uncertain)
            warehouse.regroup()
        self._may_lack_names = True  # of what was read for it
        self._work.set()
        return deleted

    @contextmanager
    def _deleting(self) -> Iterator[None]:
        self.deletions += 1
        try:
            yield
        finally:
            self.deletions += 1

    def name(self, identifiers: set[str]) -> None:
        """Name the frames of images in the background, since there are symbols of them."""
        with self._lock:
            self._symbols |= identifiers
        self._work.set()

    # --- the log ---

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            group = self._next_group()
            every = [bodies for bodies, _ in group]
            try:
                names = await loop.run_in_executor(self._appending, self._append, every)
            except asyncio.CancelledError:
                _refuse_all(group, RefusedError(UNAVAILABLE, "the server stops", retry_after=5))
                raise
            except Exception as error:  # noqa: BLE001 - each request gets it
                _refuse_all(group, error)
                continue
            for (_, future), own in zip(group, names, strict=True):
                if future.done():
                    continue
                if isinstance(own, ScrubError):
                    future.set_exception(RefusedError(TOO_LARGE, str(own), remedy=own.remedy))
                else:
                    future.set_result(own)
            self._work.set()

    def _next_group(self) -> list[_Waiting]:
        """Return requests that are written at once, the first ones that wait."""
        size = number = 0
        for bodies, _ in self._waiting:
            size += sum(len(body.data) for body in bodies)
            number += 1
            if size >= _GROUP_BYTES:
                break
        group, self._waiting = self._waiting[:number], self._waiting[number:]
        if not self._waiting:
            self._arrived.clear()
        return group

    def _append(self, groups: Sequence[Sequence[Body]]) -> list[list[str] | ScrubError]:
        size = sum(len(body.data) for bodies in groups for body in bodies)
        if shutil.disk_usage(self._folder).free < self._limits.free_bytes + size:
            raise RefusedError(DISK_FULL, "the disk of the server is full")
        if self._warehouse is None:
            raise RefusedError(UNAVAILABLE, "the server starts", retry_after=1)
        try:
            names = self._warehouse.receive_each(groups)
        except FileAccessError as error:
            raise RefusedError(DISK_FULL, f"the reports cannot be stored: {error.reason}") from None
        progress = self.progress
        stored = [
            bodies for bodies, own in zip(groups, names, strict=True) if isinstance(own, list)
        ]
        size = sum(len(body.data) for bodies in stored for body in bodies)
        progress.commits += 1
        progress.received += sum(map(len, stored))
        progress.received_bytes += size
        progress.unread_bytes += size
        if len(stored) < len(groups):
            if not progress.unscrubbed:
                rules = [own.rule for own in names if isinstance(own, ScrubError)]
                self._unscrubbed = _UNSCRUBBED.format(rules[0])
                sys.stderr.write(f"machtrace: {self._unscrubbed}\n")
            progress.unscrubbed += len(groups) - len(stored)
        return names

    # --- segments ---

    def _run(self) -> None:
        try:
            with Warehouse(self._folder) as warehouse:
                warehouse.receive([])  # become the writer; a torn record is cut off
                self._warehouse = warehouse
                self.progress.unread_bytes = warehouse.unread_bytes
                self._opened.set()
                while self._wait():
                    self._attempt(warehouse)
        except MachtraceError as error:
            self._error = error
        finally:
            self._reader.close()
            self._opened.set()
            while self._jobs:
                _, future = self._jobs.popleft()
                future.set_exception(RefusedError(UNAVAILABLE, "the server stops", retry_after=5))

    def _wait(self) -> bool:
        """Wait for work, and for more of it; return whether to continue."""
        self._work.wait(_RETENTION_PAUSE)
        self._work.clear()
        return not self._stop.wait(self._limits.linger)

    def _attempt(self, warehouse: Warehouse) -> None:
        with self._lock:
            symbols, self._symbols = self._symbols, set()
        while self._jobs:
            work, future = self._jobs.popleft()
            try:
                future.set_result(work(warehouse))
            except Exception as error:  # noqa: BLE001 - who waits gets it
                future.set_exception(error)
        try:
            self._update(warehouse, symbols)
            self._expire(warehouse)
        except Exception as error:  # noqa: BLE001 - reports are received all the same
            self.progress.failures += 1
            sys.stderr.write(f"machtrace: {type(error).__name__}: {error}\n")
            self._may_lack_names = True
            self._stop.wait(_PAUSE)
            self._work.set()

    def _update(self, warehouse: Warehouse, symbols: set[str]) -> None:
        progress = self.progress
        before = {row.id for row in warehouse.segments}
        added = warehouse.flush(run=self._reader.run)
        progress.restarts = self._reader.restarts
        progress.reports += added.reports
        progress.repeated += added.repeated
        progress.quarantined += added.quarantined
        progress.unread_bytes = warehouse.unread_bytes
        new = {row.id for row in warehouse.segments} - before
        named = self._name(warehouse, self._symbols_of(warehouse, new), new)
        if self._may_lack_names:
            # A server that was killed had symbols whose names it did not store.
            symbols = symbols | self._in_store({image.uuid for image in warehouse.wanted()})
        named += self._name(warehouse, symbols, None)
        self._may_lack_names = False
        progress.named += named
        if (added.reports or named) and not self._work.is_set():
            warehouse.regroup()
        if len(warehouse.segments) > self._limits.segments:
            warehouse.compact()
        progress.segments = len(warehouse.segments)

    def _expire(self, warehouse: Warehouse) -> None:
        """Delete what is old, now and then."""
        ages = self._limits.report_age, self._limits.raw_age
        if ages == (None, None) or time.monotonic() < self._expired + _RETENTION_PAUSE:
            return
        now = time.time_ns()
        reports, raw = (None if age is None else now - int(age * 10**9) for age in ages)
        is_trusted = self._limits.trust_clock
        clock = None if is_trusted else now
        before, self._clock_problem = self._clock_problem, ""
        with self._deleting():
            try:
                run = self._reader.run
                if warehouse.expire(reports=reports, raw=raw, run=run, clock=clock).reports:
                    warehouse.regroup()
                if is_trusted:
                    store_trusted_clock(warehouse.folder, now)
            except ExpiryError as error:
                self._clock_problem = f"{error}; {error.remedy}"
                if not before:  # once, not each hour
                    sys.stderr.write(f"machtrace: {self._clock_problem}\n")
        self._expired = time.monotonic()

    def _name(self, warehouse: Warehouse, symbols: set[str], segments: set[int] | None) -> int:
        if not symbols:
            return 0
        return warehouse.name([self._store.root], only=symbols, segments=segments)

    def _symbols_of(self, warehouse: Warehouse, segments: set[int]) -> set[str]:
        """Return the images of new segments whose symbols are in the store already."""
        rows = [
            row for segment in segments for row in warehouse.stacks_of(segment).images.to_pylist()
        ]
        return self._in_store({row["uuid"] for row in rows if row["uuid"]})

    def _in_store(self, images: set[str]) -> set[str]:
        names = {image: parse_identifier(image) for image in images}
        return {
            name for name, own in names.items() if own is not None and self._store.files_of(own)
        }


def _refuse_all(group: Sequence[_Waiting], error: Exception) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)
