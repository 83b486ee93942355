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


def read(path: Path) -> Spool:
    data = path.read_bytes()
    fields = HEAD.unpack_from(data)
    magic, version, expected, file_size = fields[:4]
    if magic != b"mtspool\n":
        raise ValueError("not a spool")
    if version != 1:
        raise ValueError(f"version {version}")
    if zlib.crc32(data[16:STATE_AT]) != expected:
        raise ValueError("checksum of the head")
    if file_size != len(data):
        raise ValueError("truncated")
    log_at, log_size, cells_at, cell_count, segments_at, segment_size, segment_count = fields[4:11]
    calls_at, stackless_at = fields[11:13]
    pid, _machine, tree_bits, rule_count, run = fields[15:]
    state, _events, folded = struct.unpack_from("<3Q", data, STATE_AT)
    change = struct.unpack_from("<4Q", data, STATE_AT + 24)
    losses = dict(zip(LOSSES, struct.unpack_from("<6Q", data, STATE_AT + 56), strict=True))
    problems: list[str] = []
    log = records(data[log_at : log_at + log_size], problems)

    cells = [struct.unpack_from("<2Q", data, cells_at + 16 * n) for n in range(cell_count)]
    stackless = list(struct.unpack_from(f"<{rule_count}Q", data, stackless_at))
    mark, index, key, value = change
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

    segments: list[tuple[int, int]] = []
    for number in range(segment_count):
        at = segments_at + number * segment_size
        sequence, _first = struct.unpack_from("<2Q", data, at)
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
    calls = list(struct.unpack_from(f"<{rule_count}Q", data, calls_at))
    return Spool(
        state, pid, tree_bits, run, losses, log, events, sums, calls, folded, problems
    )
