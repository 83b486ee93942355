"""The records of ``native/inprocess/core/watchdog.h``: polls, captures and events, as bytes.

Nothing here needs the extension, so that another process may read them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.recorded import recorded_runs
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.polls import SystemCall, ThreadPoll
from machtrace.model.snapshot import ThreadId
from machtrace.targets.inprocess.beacons import SILENT
from machtrace.targets.inprocess.records import RecordedCapture, thread_row
from machtrace.targets.shared.thread_copy import CopiedRow

_HEADER = struct.Struct("=QII")
_MAPPINGS = struct.Struct("=QIIQ")
_CAPTURE = struct.Struct("=QIIQQqqQ")
_PYTHON = struct.Struct("=QIIQIIII")
_BLOCK = struct.Struct("=QQ")
_EVENT = struct.Struct("=QIIQIIqqqqqQQQII24s")
_LINK_SIZE, _ROW_SIZE = 16, 64
_IMAGES_CHANGED, _ALL_THREADS, _TOO_LATE = 1, 2, 4
POLL = struct.Struct("=QqqqIBBBBq6QQQqqQqQQQIc3s")
"""``machtrace_watchdog_poll``."""
_MIN_CODE = 4096
_SOURCE = "the record of a watchdog"


class _Kind(IntEnum):
    MAPPINGS = 1
    THREAD = 2
    CAPTURE = 3
    PYTHON = 4
    MEMORY = 5
    EVENT = 6


class WatchdogPhase(Enum):
    """How far something that may be an incident has come."""

    ENDED = 0
    SUSPECTED = 1
    SEEN = 2
    """The limit was exceeded."""


class WatchdogCause(Enum):
    """The kind of thing that may take too long."""

    THREAD = 0
    """A watched thread did not return to its idle wait."""
    SCOPE = 1
    """A scope was not left in time."""
    GIL = 2
    """A thread held the interpreter's lock, and others waited for it."""


class WatchdogEvent(NamedTuple):
    """A phase that something reached. Times are ``CLOCK_MONOTONIC`` unless stated otherwise."""

    phase: WatchdogPhase
    incident: int
    """Its number, from 1."""
    cause: WatchdogCause
    thread: int
    began_ns: int
    """Exact for scopes and for threads that state it; else the last poll before."""
    at_ns: int
    """The poll that saw it."""
    boot_ns: int
    """The same on ``CLOCK_BOOTTIME``."""
    last_ns: int
    """The last poll before in the same state."""
    limit_ns: int
    key: int
    """The number of the task or scope; for the lock, how often its holder changed."""
    first_poll: int
    """The number of the first poll in this state."""
    poll: int
    waiters: int
    """Threads that wait for the lock."""
    waiter: int
    """One of them, or 0."""
    label: str
    """The scope's name."""


class PythonChain(NamedTuple):
    """The frames of one thread, as ``native/inprocess/core/python_chain.h`` copies them."""

    links: bytes
    rows: bytes
    is_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogCapture:
    """Threads that were copied while something lasted."""

    incident: int
    is_all: bool
    """Whether all threads were copied, and not the one thread alone."""
    is_late: bool
    """Whether what lasted ended before all threads were copied."""
    recorded: RecordedCapture
    chains: Mapping[int, PythonChain]
    """Python frames by thread."""
    code: Sequence[MemoryRegion]
    """Pieces of code, in the order in which they were recorded; the reader adds more."""
    code_count: int
    """The pieces until this capture, the code of its frames among them."""

    def python(self, layout: PythonLayout | None) -> dict[ThreadId, PythonRuns]:
        """Return the threads' Python functions, as far as all of them were copied."""
        if layout is None:
            return {}
        code = self.code[: self.code_count] if self.chains else ()
        memory = RegionMemory(_without_earlier(code))
        return {
            ThreadId(thread): recorded_runs(chain.links, chain.rows, memory, layout)
            for thread, chain in self.chains.items()
            if not chain.is_truncated
        }


WatchdogItem: TypeAlias = WatchdogEvent | WatchdogCapture


@dataclass(slots=True)
class WatchdogReader:
    """Reads records in the order in which they were taken."""

    _threads: list[CopiedRow] = field(default_factory=list)
    _chains: dict[int, PythonChain] = field(default_factory=dict)
    _mappings: list[str] = field(default_factory=list)
    _code: list[MemoryRegion] = field(default_factory=list)
    """Pieces of code, of the incidents that last."""
    _most_code: int = _MIN_CODE
    """Pieces after which those that were recorded again are left out."""
    _lasting: set[int] = field(default_factory=set)

    def read(self, data: bytes | memoryview) -> Iterator[WatchdogItem]:
        """Yield events and captures.

        Raises:
            FormatError: it is no such record.
        """
        view = memoryview(data)
        at = 0
        while at < len(view):
            try:
                size, kind, count = _HEADER.unpack_from(view, at)
                record = view[at : at + size]
                if size < _HEADER.size or len(record) != size:
                    raise FormatError("a record is truncated", source=_SOURCE, offset=at)
                yield from self._item(kind, count, record, at)
            except (struct.error, ValueError) as error:
                raise FormatError("invalid record", source=_SOURCE, offset=at) from error
            at += size

    def _item(self, kind: int, count: int, record: memoryview, at: int) -> Iterator[WatchdogItem]:
        match kind:
            case _Kind.MAPPINGS:
                length = _MAPPINGS.unpack_from(record)[3]
                text = bytes(record[_MAPPINGS.size : _MAPPINGS.size + length])
                known = text.decode(errors="surrogateescape")
                if not self._threads:
                    self._mappings = []
                self._mappings.append(known)
            case _Kind.THREAD:
                self._threads.append(thread_row(record))
            case _Kind.PYTHON:
                _, _, _, thread, links, rows, is_truncated, _ = _PYTHON.unpack_from(record)
                middle = _PYTHON.size + links * _LINK_SIZE
                end = middle + rows * _ROW_SIZE
                self._chains[thread] = PythonChain(
                    bytes(record[_PYTHON.size : middle]),
                    bytes(record[middle:end]),
                    bool(is_truncated),
                )
            case _Kind.MEMORY:
                if len(self._code) > self._most_code:
                    self._code = _without_earlier(self._code)
                    self._most_code = 2 * len(self._code) + _MIN_CODE
                self._code += _blocks(record, count)
            case _Kind.CAPTURE:
                yield self._capture(record)
            case _Kind.EVENT:
                event = _event(record)
                self._follow(event)
                yield event
            case _:
                raise FormatError("unknown kind of record", source=_SOURCE, offset=at)

    def _follow(self, event: WatchdogEvent) -> None:
        if event.phase is WatchdogPhase.ENDED:
            self._lasting.discard(event.incident)
        else:
            self._lasting.add(event.incident)
        if not self._lasting:
            self._code = []

    def _capture(self, record: memoryview) -> WatchdogCapture:
        _, _, _, incident, listed, began, ended, bits = _CAPTURE.unpack_from(record)
        threads, self._threads = tuple(self._threads), []
        chains, self._chains = self._chains, {}
        mappings, self._mappings = self._mappings, self._mappings[-1:]
        return WatchdogCapture(
            incident=incident,
            is_all=bool(bits & _ALL_THREADS),
            is_late=bool(bits & _TOO_LATE),
            recorded=RecordedCapture(
                tick=incident,
                began_ns=began,
                ended_ns=ended,
                listed=listed,
                threads=threads,
                images_changed=bool(bits & _IMAGES_CHANGED),
                mappings=tuple(mappings),
            ),
            chains=chains,
            code=self._code,
            code_count=len(self._code),
        )


def _without_earlier(code: Iterable[MemoryRegion]) -> list[MemoryRegion]:
    """Return the last piece of each address, but no part of an earlier one."""
    regions: dict[int, MemoryRegion] = {}
    for region in code:
        known = regions.get(region.start)
        if known is None or len(known.data) <= len(region.data):
            regions[region.start] = region
    return [*regions.values()]


def _blocks(record: memoryview, count: int) -> Iterator[MemoryRegion]:
    at = _HEADER.size
    for _ in range(count):
        address, size = _BLOCK.unpack_from(record, at)
        at += _BLOCK.size
        yield MemoryRegion(Avma(address), bytes(record[at : at + size]))
        at += -(-size // 8) * 8


def _event(record: memoryview) -> WatchdogEvent:
    _, _, phase, incident, cause, *numbers = _EVENT.unpack_from(record)
    label = numbers.pop().partition(b"\0")[0].decode(errors="replace")
    row = (WatchdogPhase(phase), incident, WatchdogCause(cause), *numbers, label)
    return WatchdogEvent._make(row)


def parse_polls(data: bytes | memoryview) -> Iterator[tuple[int, int, ThreadPoll]]:
    """Yield number, thread and poll of each recorded poll."""
    for row in POLL.iter_unpack(data):
        number, at, boot_at, late, thread, has_call, is_running, has_schedule, has_status = row[:9]
        call = None
        if has_call and not is_running:
            call = SystemCall(row[9], tuple(row[10:16]), Avma(row[16]), Avma(row[17]))
        ran, delayed, _, busy_since, task, voluntary, involuntary, tracer, state = row[18:27]
        states_itself = busy_since != SILENT
        yield (
            number,
            thread,
            ThreadPoll(
                at,
                boot_at,
                bool(is_running) if has_call or has_status else None,
                call,
                ran if has_schedule else None,
                delayed if has_schedule else None,
                (voluntary, involuntary) if has_status else None,
                state.decode("latin-1") if has_status else None,
                tracer=tracer if has_status else None,
                busy_since_ns=busy_since if states_itself else None,
                task=task if states_itself else None,
                late_ns=max(0, late),
            ),
        )
