"""The records of ``native/inprocess/core/series.h``: captures of this process, as bytes.

Nothing here needs the extension, so that another process may read them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import field

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.targets.shared.thread_copy import CopiedRow

_HEADER = struct.Struct("=QII")
_MAPPINGS = struct.Struct("=QIIQ")
_THREAD = struct.Struct("=QIIQQiiIIqqqQQQQ272s")
_CAPTURE = struct.Struct("=QIIQQqqQ")
_MAPPINGS_KIND, _THREAD_KIND, _CAPTURE_KIND = 1, 2, 3
_SOURCE = "captures of this process"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCapture:
    """One capture of all threads."""

    tick: int
    """How many intervals after the first one it was due."""
    began_ns: int
    """``CLOCK_MONOTONIC``."""
    ended_ns: int
    listed: int
    """Threads that there were; beyond the first 4096 they were not copied."""
    threads: tuple[CopiedRow, ...]
    images_changed: bool
    """Whether images came or went while threads were copied. What was there neither before nor
    after is not known."""
    mappings: tuple[str, ...]
    """``/proc/self/maps`` before the first was copied, or earlier if no image had changed; and
    after the last, where images changed meanwhile."""


@dataclass(slots=True)
class RecordReader:
    """Reads records in the order in which they were taken, however they were parted.

    A record may not be parted itself: what is taken at one time is read at one time.
    """

    _threads: list[CopiedRow] = field(default_factory=list)
    _mappings: tuple[str, ...] = ()

    def read(self, data: bytes) -> Iterator[RecordedCapture]:
        """Yield the captures that end in ``data``.

        Raises:
            FormatError: it is no such record.
        """
        view = memoryview(data)
        at = 0
        while at < len(view):
            try:
                size, kind, _ = _HEADER.unpack_from(view, at)
                record = view[at : at + size]
                if size < _HEADER.size or len(record) != size:
                    raise FormatError("a record is truncated", source=_SOURCE, offset=at)
                if kind == _MAPPINGS_KIND:
                    length = _MAPPINGS.unpack_from(record)[3]
                    text = bytes(record[_MAPPINGS.size : _MAPPINGS.size + length])
                    self._take_mappings(text.decode(errors="surrogateescape"))
                elif kind == _THREAD_KIND:
                    self._threads.append(thread_row(record))
                elif kind == _CAPTURE_KIND:
                    yield self._capture(record)
                else:
                    raise FormatError("unknown kind of record", source=_SOURCE, offset=at)
            except struct.error as error:
                raise FormatError("a record is too short", source=_SOURCE, offset=at) from error
            at += size

    def _take_mappings(self, text: str) -> None:
        # Before the threads, what was known earlier is done with.
        self._mappings = (*self._mappings, text) if self._threads else (text,)

    def _capture(self, record: memoryview) -> RecordedCapture:
        _, _, _, tick, listed, began, ended, images_changed = _CAPTURE.unpack_from(record)
        threads, self._threads = tuple(self._threads), []
        mappings, self._mappings = self._mappings, self._mappings[-1:]
        return RecordedCapture(
            tick=tick,
            began_ns=began,
            ended_ns=ended,
            listed=listed,
            threads=threads,
            images_changed=bool(images_changed),
            mappings=mappings,
        )


def thread_row(record: memoryview) -> CopiedRow:
    """Return the row of a thread's record."""
    fields = _THREAD.unpack_from(record)
    _, _, count, thread, pthread, outcome, errno, uninterruptible, registers_size = fields[:9]
    requested, stopped, resumed = fields[9:12]
    stacks: list[tuple[int, bytes]] = []
    at = _THREAD.size
    for index in range(min(count, 2)):
        start, size = fields[12 + index], fields[14 + index]
        stacks.append((start, bytes(record[at : at + size])))
        at += size
    registers = fields[16][:registers_size]
    return (
        thread,
        outcome,
        errno,
        uninterruptible,
        registers,
        tuple(stacks),
        requested,
        stopped,
        resumed,
        pthread,
    )
