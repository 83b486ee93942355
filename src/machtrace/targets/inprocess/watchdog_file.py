"""The record of a watchdog as a file: readable after its process was killed.

The file has the state of what was wrong at the last poll, the last polls, and the events and
captures that were not delivered yet (``struct machtrace_watchdog_head`` of
``native/inprocess/core/watchdog.h``).
"""

from __future__ import annotations

import json
import os
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from os import PathLike
from typing import NamedTuple

from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.recorded import layout_in
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.polls import ThreadPoll
from machtrace.model.snapshot import LinuxFacts, ProcessInfo, Snapshot, ThreadId
from machtrace.targets.inprocess.watchdog_records import (
    POLL,
    WatchdogCapture,
    WatchdogItem,
    WatchdogPhase,
    WatchdogReader,
    parse_polls,
)
from machtrace.targets.linux.core_facts import GatheredFacts
from machtrace.targets.linux.procfs import ProcessDirectory

_MAGIC = b"machwtc1"
_HEAD = struct.Struct("=8sIIQQQQQQ")
_LINE = struct.Struct("=IIIIqqqQQQ")
RECORD_START = _HEAD.size + _LINE.size
"""Bytes of a record before the text about its process."""
_RECORD = struct.Struct("=QII")
_MAX_ROOM = 1 << 32
_NO_NAME: dict[int, str] = {}


class WatchdogLine(NamedTuple):
    """The state at the last poll; times are ``CLOCK_MONOTONIC`` unless stated otherwise."""

    pid: int
    thread: int
    """The thread that was wrong longest; 0 for none."""
    phase: WatchdogPhase
    at_ns: int
    boot_ns: int
    """The same on ``CLOCK_BOOTTIME``."""
    began_ns: int
    incident: int
    polls: int
    """In all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogFile:
    """The contents of a record."""

    source: str
    """Its name in errors."""
    process: ProcessInfo
    limit_ns: int
    wall_offset_ns: int | None
    """Nanoseconds since 1970 less ``CLOCK_BOOTTIME``; None if that is not recorded."""
    line: WatchdogLine
    items: tuple[WatchdogItem, ...]
    """Events and captures that were not delivered, the oldest first."""
    polls: tuple[tuple[int, int, ThreadPoll], ...]
    """Number, thread and poll, by number."""
    layout: PythonLayout | None
    """CPython's."""
    names: dict[int, str]
    """Names of threads, as far as they are known."""

    def copies(
        self, captures: Iterable[WatchdogCapture]
    ) -> Iterator[tuple[Snapshot, dict[ThreadId, PythonRuns]]]:
        """Yield the snapshot of each capture, and its threads' Python functions."""
        from machtrace.targets.inprocess.series import SnapshotMaker

        gathered = GatheredFacts(LinuxFacts(name=self.process.name), ())
        # The images are files of this machine; the directory is only where they are sought.
        with ProcessDirectory(os.getpid()) as directory:
            maker = SnapshotMaker(
                directory,
                self.process,
                _NoMemory(),
                gathered,
                lambda thread: self.names.get(thread, ""),
            )
            for capture in captures:
                yield maker.make(capture.recorded).snapshot, capture.python(self.layout)


class _NoMemory:
    """The memory of a process that is gone."""

    def read(self, address: Avma, size: int, /) -> bytes:
        raise MemoryReadError(address, size)


def stated_process(process: ProcessInfo, limit_ns: int, version: int, head: bytes) -> bytes:
    """Return the text in the record by which :func:`read_watchdog_file` knows the process.

    Args:
        process: it.
        limit_ns: the time that a watched thread may be busy.
        version: of CPython (``Py_Version``).
        head: the start of its ``_PyRuntime``; empty if that is not known.
    """
    return json.dumps(
        {
            "pid": process.pid,
            "path": process.path,
            "arch": process.arch.value,
            "pointer_mask": process.pointer_mask.bits,
            "limit_ns": limit_ns,
            "wall_offset_ns": time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            "python": version,
            "runtime": b64encode(head).decode() if head else None,
        }
    ).encode()


def read_watchdog_file(path: str | PathLike[str]) -> WatchdogFile:
    """Read a record, of a process that was killed or one that still runs.

    Raises:
        FileAccessError: it cannot be read.
        FormatError: it is no record.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - a path as it was given
            data = file.read()
    except OSError as error:
        raise FileAccessError(name, f"cannot read ({error.strerror})") from error
    return parse_watchdog_file(data, name)


def parse_watchdog_file(data: bytes, source: str) -> WatchdogFile:
    """Parse a record, as :func:`read_watchdog_file` reads it; ``source`` is its name in errors."""
    try:
        return _parse(data, source)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"invalid record ({error})", source=source, offset=0) from error


def _parse(data: bytes, source: str) -> WatchdogFile:
    magic, poll_size, poll_count, polls_at, ring_at, room, info_size, published, taken = (
        _HEAD.unpack_from(data)
    )
    if magic != _MAGIC or poll_size != POLL.size or not 0 < room < _MAX_ROOM:
        raise FormatError("not a record of a watchdog", source=source, offset=0)
    if len(data) < ring_at + room:
        raise FormatError("the record is truncated", source=source, offset=len(data))
    if not 0 <= published - taken <= room:
        raise FormatError("invalid positions in the record", source=source, offset=0)
    line = record_line(data)
    start = RECORD_START
    info = json.loads(data[start : start + info_size])
    head = b64decode(info["runtime"]) if info["runtime"] else b""
    rows = sorted(
        row for row in parse_polls(data[polls_at : polls_at + poll_count * poll_size]) if row[0] > 0
    )
    return WatchdogFile(
        source=source,
        process=ProcessInfo(
            pid=line.pid,
            path=str(info["path"]),
            arch=Arch(info["arch"]),
            pointer_mask=PacMask(int(info["pointer_mask"])),
        ),
        limit_ns=int(info["limit_ns"]),
        wall_offset_ns=info.get("wall_offset_ns"),
        line=line,
        items=tuple(_items(data[ring_at : ring_at + room], taken, published)),
        polls=tuple(rows),
        layout=layout_in(head, int(info["python"])) if head else None,
        names=dict(_NO_NAME),
    )


def record_line(start: bytes) -> WatchdogLine:
    """Return the state in the first :data:`RECORD_START` bytes of a record.

    Raises:
        FormatError: they are of no record.
    """
    if not start.startswith(_MAGIC) or len(start) < RECORD_START:
        raise FormatError("not a record of a watchdog", source="the record", offset=0)
    _, pid, thread, phase, at, boot_at, began, incident, _, polls = _LINE.unpack_from(
        start, _HEAD.size
    )
    return WatchdogLine(pid, thread, WatchdogPhase(phase), at, boot_at, began, incident, polls)


def _items(ring: bytes, position: int, published: int) -> Iterator[WatchdogItem]:
    """Read the ring's records, up to the first that is invalid."""
    reader = WatchdogReader()
    while position < published and len(ring):
        at = position % len(ring)
        size, kind, _ = _RECORD.unpack_from(ring, at)
        if size < _RECORD.size or at + size > len(ring):
            return
        if kind:
            with suppress(FormatError):
                yield from reader.read(ring[at : at + size])
        position += size
