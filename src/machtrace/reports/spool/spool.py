"""A spool as columns: events, sums of calls by function and stack, functions, images, threads."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from machtrace.errors import FileAccessError, FormatError
from machtrace.frozen import dataclass
from machtrace.reports.spool.incidents import SpoolIncident, parse_incidents
from machtrace.reports.spool.records import (
    EVENTS,
    IMAGE,
    INCIDENT,
    MARK,
    NODES,
    RULE,
    THREAD,
    Head,
    Losses,
    parse_head,
    records,
    segments,
)
from machtrace.reports.spool.tree import NO_IMAGE, ROOT, StackTree
from machtrace.reports.spool.values import (
    EVENT,
    STORED_EVENT,
    SUM,
    AppState,
    EventFlag,
    SpoolFrame,
    SpoolImage,
    SpoolMark,
    SpoolRule,
    SpoolThread,
)

__all__ = [
    "EVENT",
    "SUM",
    "AppState",
    "EventFlag",
    "Spool",
    "SpoolFrame",
    "SpoolImage",
    "SpoolMark",
    "SpoolRule",
    "SpoolThread",
]

_STATE_SHIFT, _STATES = 9, 7
_RULE_BITS = (1 << _STATE_SHIFT) - 1
_IMAGE = Struct("<2I3Q2I")
_THREAD = Struct("<2I")
_RULE = Struct("<4IQ")
_EVENTS = Struct("<QII")
_MARK = Struct("<QII")
_CONTINUED = 3
_ENDED = (2, _CONTINUED, 4)
"""The agent was stopped, began another file, or stored all before the process ended."""
_CELL_USED = 1 << 63
_COUNTS_ONLY = _PROGRAM = 1
_UNBOUND = "import slots that the loader has not bound"
_AT_ENTRY = 2
_HAS_BUDGET = 4
_MAX_CALLS = 1 << 48
"""Calls of one rule and stack: a million a second for eight years."""
_MAX_NUMBERS = 1 << 62
_MACHINES = {62: "x86_64", 183: "arm64"}


@dataclass(frozen=True, slots=True, eq=False)
class Spool:
    """The contents of a spool, read by :meth:`read` or :meth:`parse`."""

    source: str
    """The name in errors."""
    pid: int
    arch: str | None
    """``x86_64`` or ``arm64``; None for another machine."""
    run: bytes
    """Random bytes that no other spool has."""
    is_stopped: bool
    """Whether the agent was stopped. Else the process was killed, or ran when this was copied."""
    is_continued: bool
    """Whether the process's next spool follows."""
    started_at_ns: int
    """Nanoseconds since 1970."""
    started_ticks: int
    """The same moment on the clock of events."""
    rules: tuple[SpoolRule, ...]
    """By number; those that events name and the log does not have no name."""
    images: tuple[SpoolImage, ...]
    """In the log's order."""
    threads: dict[int, SpoolThread]
    """By number."""
    tree: StackTree
    events: npt.NDArray[np.void]
    """Calls with their time and thread, of the type :data:`EVENT`, in the order of the file: that
    of time within a thread.
    """
    cells: npt.NDArray[np.void]
    """Calls of the type :data:`SUM` that are not in :attr:`events`."""
    calls: npt.NDArray[np.uint64]
    """Calls by rule; of a process that was killed it may be ahead of the other counts."""
    overwritten: int
    """Events whose time and thread were overwritten; their calls are in :attr:`cells`."""
    losses: Losses
    marks: tuple[SpoolMark, ...]
    """By time."""
    incidents: tuple[SpoolIncident, ...]
    """Those of the watchdog, in their order."""
    unknown_records: dict[int, int]
    """Records of kinds that this version does not know, counted by kind."""
    problems: tuple[str, ...]
    """Damage, one line each."""

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Spool:
        """Read a spool.

        Raises:
            FileAccessError: the file cannot be read.
            FormatError: it is no spool, of another version, or its head is damaged.
        """
        try:
            # Checked before it is opened: opening a named pipe would wait for its other end.
            if not S_ISREG(Path(path).stat().st_mode):
                raise FileAccessError(str(path), "not a regular file")
            data = Path(path).read_bytes()
        except OSError as error:
            raise FileAccessError(str(path), error.strerror or str(error)) from error
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, source: str) -> Spool:
        """Return the contents of a spool's bytes.

        Raises:
            FormatError: they are no spool, of another version, or the head is damaged.
        """
        return _Reader(data, source).spool()

    @property
    def unbound(self) -> tuple[str, ...]:
        """Import slots left alone, since the loader had not bound them: a line each."""
        return tuple(mark.text for mark in self.marks if mark.text.startswith(_UNBOUND))

    def stack(self, node: int) -> tuple[SpoolFrame, ...]:
        """Return the frames of a stack, innermost first: the caller of the watched function.

        Args:
            node: its number in events and cells. An unknown one has no frames.
        """
        rows = self.tree.path(self.tree.rows.get(node, ROOT))
        return tuple(self._frame(row) for row in rows if not self.tree.is_cut(row))

    def _frame(self, row: int) -> SpoolFrame:
        index = self.tree.images[row]
        image = None if index == NO_IMAGE else self.images[index]
        return SpoolFrame(image, self.tree.offsets[row])

    def sums(self, *, by_state: bool = False) -> npt.NDArray[np.void]:
        """Return all calls by rule and stack, of the type :data:`SUM`: the most calls first.

        Args:
            by_state: whether calls in different states of the app are apart. Else it is 0.
        """
        events = self.events
        stored = np.empty(len(events), SUM)
        for name in SUM.names or ():
            stored[name] = events[name]
        parts = np.concatenate((self.cells, stored))
        if not by_state:
            parts["state"] = 0
        return _summed(parts)

    def wall_ns(self, time: int) -> int:
        """Return the time of an event as nanoseconds since 1970."""
        return self.started_at_ns + time - self.started_ticks


def _summed(parts: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    rules = parts["rule"].astype(np.uint64) | parts["state"].astype(np.uint64) << np.uint64(16)
    keys = rules << np.uint64(32) | parts["stack"].astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    firsts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else order
    sums = parts[order][firsts]
    if len(firsts):
        sums["calls"] = np.add.reduceat(parts["calls"][order], firsts)
    order = np.lexsort(
        (sums["stack"], sums["state"], sums["rule"], -sums["calls"].astype(np.int64))
    )
    return sums[order]


class _Reader:
    def __init__(self, data: bytes, source: str) -> None:
        self._data, self._source = memoryview(data), source
        self._head: Head = parse_head(data, source)
        self._problems: list[str] = []
        if len(data) < self._head.file_size:
            size = f"{len(data):,} of {self._head.file_size:,} bytes"
            self._problems.append(f"the spool is truncated: {size} are present")
        self._rules: dict[int, SpoolRule] = {}
        self._images: list[SpoolImage] = []
        self._starts: dict[int, tuple[int, int]] = {}
        self._threads: dict[int, SpoolThread] = {}
        self._tree = StackTree(self._head.tree_bits)
        self._node_payloads: list[memoryview] = []
        self._marks: list[SpoolMark] = []
        self._incidents: list[bytes] = []
        self._unknown: Counter[int] = Counter()

    def spool(self) -> Spool:
        """Return the contents."""
        head = self._head
        self._read_log()
        incidents, others = parse_incidents(self._incidents)
        if others:
            self._unknown[INCIDENT] += others
        events, numbers = self._events()
        cells, folded = self._cells()
        # Calls of folded events are in cells.
        is_single = numbers >= folded
        events, numbers = events[is_single], numbers[is_single]
        missing = self._unlink_stacks(events) + self._unlink_stacks(cells)
        if missing:
            self._problems.append(f"calls whose stack is not in the file: {missing:,}")
        return Spool(
            source=self._source,
            pid=head.pid,
            arch=_MACHINES.get(head.machine),
            run=head.run,
            is_stopped=head.state in _ENDED,
            is_continued=head.state == _CONTINUED,
            started_at_ns=head.started_at,
            started_ticks=head.started_ticks,
            rules=tuple(self._rules[number] for number in sorted(self._rules)),
            images=tuple(self._images),
            threads=self._threads,
            tree=self._tree,
            events=events,
            cells=cells,
            calls=self._words(head.calls_at, head.rule_count),
            overwritten=int(folded),
            losses=head.losses,
            marks=tuple(sorted(self._marks)),
            incidents=incidents,
            unknown_records=dict(self._unknown),
            problems=tuple(self._problems),
        )

    def _read_log(self) -> None:
        head = self._head
        region = self._data[head.log_at : head.log_at + head.log_size]
        readers = {
            IMAGE: self._image,
            NODES: self._nodes,
            THREAD: self._thread,
            RULE: self._rule,
            INCIDENT: self._incident,
            MARK: self._mark,
        }
        invalid = 0
        for kind, payload in records(region, "the log", self._problems):
            reader = readers.get(kind)
            if reader is None:
                self._unknown[kind] += 1
            elif not reader(payload):
                invalid += 1
        invalid += self._tree.read(self._node_payloads, self._starts)
        if invalid:
            self._problems.append(f"invalid records in the log: {invalid:,}")

    def _image(self, payload: memoryview) -> bool:
        if len(payload) < _IMAGE.size:
            return False
        number, id_size, start, size, bias, path_size, flags = _IMAGE.unpack_from(payload)
        text = bytes(payload[_IMAGE.size :])
        if not number or number in self._starts or id_size + path_size > len(text):
            return False
        path = text[id_size : id_size + path_size].decode("utf-8", "surrogateescape")
        self._starts[number] = len(self._images), start
        self._images.append(
            SpoolImage(number, start, size, bias, text[:id_size], path, bool(flags & _PROGRAM))
        )
        return True

    def _nodes(self, payload: memoryview) -> bool:
        self._node_payloads.append(payload)
        return True

    def _thread(self, payload: memoryview) -> bool:
        if len(payload) < _THREAD.size:
            return False
        number, thread_id = _THREAD.unpack_from(payload)
        name = bytes(payload[_THREAD.size :]).partition(b"\0")[0]
        text = name.decode("utf-8", "surrogateescape")
        self._threads[number] = SpoolThread(number, thread_id, text)
        return True

    def _rule(self, payload: memoryview) -> bool:
        if len(payload) < _RULE.size:
            return False
        number, state, slots, flags, target = _RULE.unpack_from(payload)
        if number >= self._head.rule_count:
            return False
        text = bytes(payload[_RULE.size :]).decode("utf-8", "surrogateescape")
        symbol, _, other = text.partition("\0")
        self._rules[number] = SpoolRule(
            number,
            state,
            slots,
            bool(flags & _COUNTS_ONLY),
            bool(flags & _AT_ENTRY),
            target,
            symbol,
            other,
            bool(flags & _HAS_BUDGET),
        )
        return True

    def _incident(self, payload: memoryview) -> bool:
        self._incidents.append(bytes(payload))
        return True

    def _mark(self, payload: memoryview) -> bool:
        if len(payload) < _MARK.size:
            return False
        time, state, _ = _MARK.unpack_from(payload)
        text = bytes(payload[_MARK.size :]).decode("utf-8", "replace")
        self._marks.append(SpoolMark(time, AppState(state & _STATES), text))
        return True

    def _events(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Return all events of the segments, and their numbers."""
        parts: list[memoryview] = []
        firsts: list[int] = []
        counts: list[int] = []
        invalid = 0
        for region in segments(self._data, self._head):
            for kind, payload in records(region, "a segment", self._problems):
                if kind != EVENTS:
                    self._unknown[kind] += 1
                    continue
                is_long = len(payload) >= _EVENTS.size
                first, count, _ = _EVENTS.unpack_from(payload) if is_long else (0, 0, 0)
                end = _EVENTS.size + STORED_EVENT.itemsize * count
                if not count or end > len(payload) or first + count > _MAX_NUMBERS:
                    invalid += 1
                    continue
                parts.append(payload[_EVENTS.size : end])
                firsts.append(first)
                counts.append(count)
        # Bytes are joined, since records may be many and small; a bytearray can be written to.
        stored = np.frombuffer(bytearray().join(parts), STORED_EVENT)
        events = np.empty(len(stored), EVENT)
        for name in STORED_EVENT.names or ():
            events[name] = stored[name]
        events["state"] = stored["rule"] >> _STATE_SHIFT & _STATES
        events["rule"] &= _RULE_BITS
        sizes = np.array(counts, np.int64)
        before = np.cumsum(sizes) - sizes
        all_numbers = np.repeat(np.array(firsts, np.int64) - before, sizes)
        all_numbers += np.arange(len(events), dtype=np.int64)
        is_valid = events["rule"] < self._head.rule_count
        invalid += len(events) - int(np.count_nonzero(is_valid))
        if invalid:
            self._problems.append(f"invalid events: {invalid:,}")
        return events[is_valid], all_numbers[is_valid]

    def _cells(self) -> tuple[npt.NDArray[np.void], int]:
        """Return calls that are in no event, and how many events they include."""
        head, change = self._head, self._head.change
        cells = self._words(head.cells_at, 2 * head.cell_count).copy()
        stackless = self._words(head.stackless_at, head.rule_count).copy()
        folded = head.folded
        if change.mark:
            # The change was not ended, or its end was not stored: it is valid in both cases.
            folded = change.mark - 1
            cell = change.cell - head.cell_count
            if change.cell < len(cells) // 2:
                cells[2 * change.cell : 2 * change.cell + 2] = change.key, change.calls
            elif 0 <= cell < len(stackless):
                stackless[cell] = change.calls
        keys, calls = cells[0 : len(cells) & ~1 : 2], cells[1::2]
        used = np.flatnonzero((keys & np.uint64(_CELL_USED)) != 0)
        result = np.zeros(len(used) + len(stackless), SUM)
        rules = keys[used] >> np.uint64(32) & np.uint64(0x7FFF_FFFF)
        rules = np.minimum(rules, 0xFFFF)
        result["rule"][: len(used)] = rules & np.uint64(_RULE_BITS)
        result["state"][: len(used)] = rules >> np.uint64(_STATE_SHIFT) & np.uint64(_STATES)
        result["stack"][: len(used)] = keys[used] & np.uint64(0xFFFF_FFFF)
        result["calls"][: len(used)] = calls[used]
        result["rule"][len(used) :] = np.arange(len(stackless))
        result["calls"][len(used) :] = stackless
        is_valid = (result["calls"] < _MAX_CALLS) & (result["rule"] < head.rule_count)
        if not is_valid.all():
            invalid = len(result) - int(np.count_nonzero(is_valid))
            self._problems.append(f"cells with impossible values: {invalid:,}")
        result = result[is_valid & (result["calls"] > 0)]
        if float(result["calls"].astype(np.float64).sum()) >= _MAX_NUMBERS:
            raise FormatError(
                "impossible counts of calls", source=self._source, offset=head.cells_at
            )
        return result, min(folded, _MAX_NUMBERS)

    def _words(self, start: int, count: int) -> npt.NDArray[np.uint64]:
        """Return words of the file; fewer if it is truncated."""
        available = max(0, len(self._data) - start) // 8
        words: npt.NDArray[np.uint64] = np.frombuffer(
            self._data, np.dtype("<u8"), min(count, available), min(start, len(self._data))
        )
        return words

    def _unlink_stacks(self, rows: npt.NDArray[Any]) -> int:
        """Set the stack of calls whose node is not stored to 0, the unknown one; count them."""
        rows_of = self._tree.rows_of(rows["stack"])
        missing = np.flatnonzero((rows_of == ROOT) & (rows["stack"] != ROOT))
        rows["stack"][missing] = ROOT
        return int(rows["calls"][missing].sum(dtype=np.uint64))
