"""A reader of spools, as docs/agent-spool.md states the format, for tests."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

IMAGE, NODES, THREAD, RULE, INCIDENT, EVENTS = range(1, 7)
HEAD = struct.Struct("<8sII12QIIII16s")
STATE_AT = 144
LOSSES = (
    "log_full",
    "stacks_full",
    "stacks_cut",
    "events_counted",
    "without_stack",
    "ignored",
)


@dataclass
class Event:
    """A call of a watched function."""

    number: int
    time: int
    stack: int
    thread: int
    rule: int
    depth: int
    flags: int
    calls: int


@dataclass
class Spool:
    """The contents of a spool."""

    state: int
    pid: int
    tree_bits: int
    run: bytes
    losses: dict[str, int]
    log: list[tuple[int, bytes]]
    events: list[Event]
    cells: Counter[tuple[int, int]]
    """Calls by rule and stack that are in no event; stack 0 for those whose stack is unknown."""
    calls: list[int]
    first_event: int
    """The first event whose calls are not in cells."""
    incomplete: list[str] = field(default_factory=list)

    def sums(self) -> Counter[tuple[int, int]]:
        """Return calls by rule and stack, all of them."""
        result = Counter(self.cells)
        for event in self.events:
            if event.number >= self.first_event:
                result[event.rule, event.stack] += event.calls
        return result


@dataclass
class Image:
    """An image that has frames of the spool."""

    number: int
    start: int
    size: int
    identifier: bytes
    path: str


@dataclass
class Rule:
    """A watched function, and what became of it."""

    number: int
    state: int
    slots: int
    counts_only: bool
    target: int
    symbol: str
    other: str = ""
    """The superclass's method, or one with the same implementation."""


class Nodes:
    """The tree of a spool: the parent and the address of each node."""

    def __init__(self, spool: Spool) -> None:
        self.bits = spool.tree_bits
        self.parents: dict[int, int] = {}
        self.frames: dict[int, tuple[int, int]] = {}
        """By node: the image's number, or 0; and the offset in it, or the address."""
        self.images: dict[int, Image] = {}
        self.sent = 0
        """Bytes of all records of nodes."""
        for kind, payload in spool.log:
            if kind == IMAGE:
                image = read_image(payload)
                self.images[image.number] = image
            elif kind == NODES:
                self.sent += 16 + len(payload)
                self.read(payload)

    def home(self, parent: int, address: int) -> int:
        """Return the number of a node whose distance is 0."""
        mask = (1 << self.bits) - 1
        scattered = parent * 0x9E3779B1 & mask
        scattered ^= scattered >> (self.bits + 1) // 2
        scattered = scattered * 0x9E3779B1 & mask
        product = (address ^ address >> 32) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        return scattered + (product >> 64 - self.bits) & mask

    def read(self, payload: bytes) -> None:
        """Add the nodes of a record."""
        at = image = 0

        def number() -> int:
            nonlocal at
            value = shift = 0
            while True:
                byte = payload[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while at < len(payload):
            node, count = number(), number()
            for _ in range(count):
                distance, code = number(), number()
                if code & 1:
                    image = number()
                offset = number() if image == 0 else code >> 1
                address = offset + (self.images[image].start if image else 0)
                child = self.home(node, address) + distance & (1 << self.bits) - 1
                assert child not in self.parents
                assert node == 0 or node in self.parents
                self.parents[child] = node
                self.frames[child] = image, offset
                node = child

    def stack(self, node: int) -> list[int]:
        """Return addresses, innermost first."""
        result = []
        while node:
            image, offset = self.frames[node]
            result.append(offset + (self.images[image].start if image else 0))
            node = self.parents[node]
        return result


def read_image(payload: bytes) -> Image:
    number, id_size, start, size, _bias, path_size, _ = struct.unpack_from("<2I3Q2I", payload)
    text = payload[40:]
    assert len(text) == id_size + path_size
    return Image(number, start, size, text[:id_size], text[id_size:].decode())


def rules(spool: Spool) -> dict[str, Rule]:
    """Return the last record of each rule, by symbol."""
    result = {}
    for kind, payload in spool.log:
        if kind == RULE:
            number, state, slots, flags, target = struct.unpack_from("<4IQ", payload)
            symbol, _, other = payload[24:].decode().partition("\0")
            result[symbol] = Rule(number, state, slots, bool(flags & 1), target, symbol, other)
    return result


def checksum(header: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(header[:12]))


def records(region: bytes, problems: list[str]) -> list[tuple[int, bytes]]:
    """Return the kinds and payloads of a region's records."""
    result: list[tuple[int, bytes]] = []
    at = 0
    while at + 16 <= len(region):
        size, kind, unused, number, expected = struct.unpack_from("<IHHII", region, at)
        if size == 0:
            break
        end = at + size - unused
        if size % 8 or at + size > len(region) or number != len(result) or unused > 7:
            problems.append(f"record {len(result)} at {at}")
            break
        payload = region[at + 16 : end]
        if checksum(region[at : at + 16], payload) != expected:
            problems.append(f"checksum of record {number} at {at}")
            break
        result.append((kind, payload))
        at += size
    return result


def read_cells(data: bytes, fields: tuple[int, ...]) -> tuple[Counter[tuple[int, int]], int]:
    """Return calls by rule and stack of the cells, and how many events they include."""
    cells_at, cell_count, rule_count = fields[6], fields[7], fields[18]
    cells = [struct.unpack_from("<2Q", data, cells_at + 16 * n) for n in range(cell_count)]
    stackless = list(struct.unpack_from(f"<{rule_count}Q", data, fields[12]))
    folded, mark, index, key, value = struct.unpack_from("<5Q", data, STATE_AT + 16)
    if mark != 0:
        folded = mark - 1
        if index < cell_count:
            cells[index] = key, value
        else:
            stackless[index - cell_count] = value
    sums: Counter[tuple[int, int]] = Counter()
    for key, value in cells:
        if key:
            sums[key >> 32 & 0x7FFFFFFF, key & 0xFFFFFFFF] += value
    for rule, value in enumerate(stackless):
        if value:
            sums[rule, 0] += value
    return sums, folded


def read_segments(data: bytes, fields: tuple[int, ...], problems: list[str]) -> list[Event]:
    """Return the events of all segments, in their order."""
    segments_at, segment_size, segment_count = fields[8:11]
    segments: list[tuple[int, int]] = []
    for number in range(segment_count):
        at = segments_at + number * segment_size
        (sequence,) = struct.unpack_from("<Q", data, at)
        if sequence:
            segments.append((sequence, at))
    events: list[Event] = []
    for _, at in sorted(segments):
        for kind, payload in records(data[at + 16 : at + segment_size], problems):
            assert kind == EVENTS
            first, count, _ = struct.unpack_from("<QII", payload)
            for number in range(count):
                values = struct.unpack_from("<QIIHBBI", payload, 16 + 24 * number)
                events.append(Event(first + number, *values))
    return events


def read(path: Path) -> Spool:
    """Return what a spool has; raise ValueError if it is none."""
    data = path.read_bytes()
    fields = HEAD.unpack_from(data)
    magic, version, expected, file_size, log_at, log_size = fields[:6]
    for is_valid, problem in (
        (magic == b"mtspool\n", "not a spool"),
        (version == 1, f"version {version}"),
        (zlib.crc32(data[16:STATE_AT]) == expected, "checksum of the head"),
        (file_size == len(data), "truncated"),
    ):
        if not is_valid:
            raise ValueError(problem)
    pid, _machine, tree_bits, rule_count, run = fields[15:]
    (state,) = struct.unpack_from("<Q", data, STATE_AT)
    losses = dict(zip(LOSSES, struct.unpack_from("<6Q", data, STATE_AT + 56), strict=True))
    problems: list[str] = []
    log = records(data[log_at : log_at + log_size], problems)
    sums, folded = read_cells(data, fields)
    events = read_segments(data, fields, problems)
    calls = list(struct.unpack_from(f"<{rule_count}Q", data, fields[11]))
    return Spool(state, pid, tree_bits, run, losses, log, events, sums, calls, folded, problems)


# --- incidents ---

SEEN, LASTS, ENDED = 1, 2, 3
_INCIDENT = struct.Struct("<I4B2I8q4Qq")
_INCIDENT_STACK = struct.Struct("<q4I")


@dataclass
class IncidentStack:
    """A stack that the watchdog took."""

    time: int
    node: int
    thread: int
    flags: int


@dataclass
class Incident:
    """A record of an incident."""

    number: int
    kind: int
    phase: int
    verdict: int
    certain: int
    thread: int
    began: int
    at: int
    late: int
    limit: int
    value: int
    turns: int
    stacks: list[IncidentStack]


def incidents(spool: Spool) -> list[Incident]:
    """Return the records of incidents, in their order."""
    result = []
    for kind, payload in spool.log:
        if kind != INCIDENT:
            continue
        fields = _INCIDENT.unpack_from(payload)
        count = fields[6]
        assert len(payload) == _INCIDENT.size + count * _INCIDENT_STACK.size
        rows = _INCIDENT_STACK.iter_unpack(payload[_INCIDENT.size :])
        stacks = [IncidentStack(*row[:4]) for row in rows]
        result.append(Incident(*fields[:6], *fields[7:12], fields[15], stacks))
    return result
