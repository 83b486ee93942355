"""Spools as docs/agent-spool.md states them, written for tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

IMAGE, NODES, THREAD, RULE, INCIDENT, EVENTS, MARK = range(1, 8)
BITS = 12
RULES = 8
LOG, SEGMENT = 2048, 512
RECORD_SIZE = 16
BATCH = 512
"""Events of a record, as the agent writes them."""
HEAD = 256
STATE_AT = 144
CHANGE_AT = STATE_AT + 24
STARTED = 1_770_000_000_000_000_000
LOSSES_AT = CHANGE_AT + 32


class Call(NamedTuple):
    """An event."""

    time: int
    stack: int
    rule: int
    thread: int = 1
    calls: int = 1
    flags: int = 0


def record(kind: int, payload: bytes, number: int) -> bytes:
    unused = -len(payload) % 8
    header = struct.pack("<IHHI", 16 + len(payload) + unused, kind, unused, number)
    checksum = zlib.crc32(payload, zlib.crc32(header))
    return header + struct.pack("<I", checksum) + payload + bytes(unused)


def sequence(records: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(record(kind, payload, at) for at, (kind, payload) in enumerate(records))


def image(
    number: int, start: int, size: int, path: str, identifier: bytes = b"", flags: int = 0
) -> bytes:
    fields = struct.pack("<2I3Q2I", number, len(identifier), start, size, start, len(path), flags)
    return fields + identifier + path.encode()


def rule(number: int, symbol: str, state: int = 1, target: int = 0, flags: int = 0) -> bytes:
    return struct.pack("<4IQ", number, state, 1, flags, target) + symbol.encode()


def varints(*values: int) -> bytes:
    result = bytearray()
    for value in values:
        rest = value
        while rest >= 128:
            result.append(rest & 127 | 128)
            rest >>= 7
        result.append(rest)
    return bytes(result)


def node(parent: int, address: int, distance: int = 0, bits: int = BITS) -> int:
    """Return the number of a node."""
    mask = (1 << bits) - 1
    scattered = parent * 0x9E3779B1 & mask
    scattered = (scattered ^ scattered >> (bits + 1) // 2) * 0x9E3779B1 & mask
    product = (address ^ address >> 32) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return scattered + (product >> 64 - bits) + distance & mask


def incident(
    number: int, phase: int, *, value: int, stacks: Sequence[tuple[int, int]] = (), kind: int = 1
) -> bytes:
    """Return the payload of an incident of a blocked thread; stacks are times and nodes."""
    times = (2_000_000, 2_000_000 + value, 0, 250_000_000, value, value, 1, 2)
    head = struct.pack("<I4BII8q", number, kind, phase, 1, 1, 700, len(stacks), *times)
    rows = b"".join(struct.pack("<qIIII", time, stack, 700, 0, 0) for time, stack in stacks)
    return head + struct.pack("<4Qq", 3, 4, 5, 6, -1) + rows


def event_payload(first: int, calls: Sequence[Call]) -> bytes:
    return struct.pack("<QII", first, len(calls), 0) + b"".join(
        struct.pack(
            "<QIIHBBI", call.time, call.stack, call.thread, call.rule, 0, call.flags, call.calls
        )
        for call in calls
    )


def spool(
    log: Sequence[tuple[int, bytes]],
    events: Sequence[Sequence[Call]] = (),
    *,
    cells: Sequence[tuple[int, int, int]] = (),
    stackless: Sequence[int] = (),
    state: int = 2,
    folded: int = 0,
    change: tuple[int, int, int, int] = (0, 0, 0, 0),
    losses: Sequence[int] = (0, 0, 0, 0, 0, 0),
    version: int = 1,
    log_size: int = LOG,
    segment_size: int = SEGMENT,
    started: int = STARTED,
    ticks: int = 1_000_000,
) -> bytes:
    """Return a spool; of ``events``, each list is a segment. Cells are rule, stack and calls."""
    cells_at = HEAD + log_size
    segments_at = cells_at + 16 * 8
    calls_at = segments_at + 4 * segment_size
    size = calls_at + 16 * RULES
    segments, first = b"", 0
    for number, calls in enumerate(events):
        text = struct.pack("<QQ", number + 1, first)
        text += sequence(
            (EVENTS, event_payload(first + at, calls[at : at + BATCH]))
            for at in range(0, len(calls), BATCH)
        )
        segments += text.ljust(segment_size, b"\0")
        first += len(calls)
    checked = struct.pack(
        "<12QIIII16s",
        *(size, HEAD, log_size, cells_at, 8, segments_at, segment_size, 4),
        *(calls_at, calls_at + 8 * RULES, started, ticks),
        *(455, 183, BITS, RULES, bytes(range(16))),
    )
    head = b"mtspool\n" + struct.pack("<II", version, zlib.crc32(checked)) + checked
    head += struct.pack("<3Q4Q6Q", state, first, folded, *change, *losses)
    used = b"".join(
        struct.pack("<QQ", 1 << 63 | number << 32 | stack, calls) for number, stack, calls in cells
    )
    sums = [0] * 1024
    for number, _, in_cell in cells:
        sums[number] += in_cell
    for call in (call for segment in events for call in segment):
        sums[call.rule] += call.calls
    for number, without_stack in enumerate(stackless):
        sums[number] += without_stack
    return b"".join(
        (
            head.ljust(HEAD, b"\0"),
            sequence(log).ljust(log_size, b"\0"),
            used.ljust(16 * 8, b"\0"),
            segments.ljust(4 * segment_size, b"\0"),
            struct.pack(f"<{RULES}Q", *sums[:RULES]),
            struct.pack(f"<{RULES}Q", *stackless, *[0] * (RULES - len(stackless))),
        )
    )


START, SYSTEM = 0x1_0000_0000, 0x1_8000_0000
MAIN = node(0, START + 0x1A0)
WORK = node(MAIN, START + 0x300)
OUTSIDE = node(WORK, 0x1234_5678)
LOADED = node(node(0, 16), START + 0x200)
"""Stacks of :data:`SPOOL`: each one frame more, and one below the mark of an era."""


def sample_log() -> list[tuple[int, bytes]]:
    """Return the records of :data:`SPOOL`."""
    chain = varints(0, 3, 0, 0x1A0 << 1 | 1, 1, 0, 0x300 << 1, 0, 1, 0, 0x1234_5678)
    era = varints(0, 2, 0, 1, 0, 16, 0, 0x200 << 1 | 1, 1)
    return [
        (RULE, rule(0, "open", target=SYSTEM + 0x40)),
        (RULE, rule(1, "absent", state=2)),
        (RULE, rule(2, "-[A b:]\0-[B b:]", state=4)),
        (IMAGE, image(1, START, 0x8000, "/private/var/App.app/App", bytes(range(1, 17)), 1)),
        (IMAGE, image(2, SYSTEM, 0x4000, "/usr/lib/libsystem_kernel.dylib")),
        (NODES, chain + era),
        (THREAD, struct.pack("<II", 1, 700) + b"worker\0"),
        (77, b"of a later version"),
        (INCIDENT, incident(1, 1, value=260_000_000, stacks=[(5_000_000, WORK)])),
        (INCIDENT, b"of another form"),
        (INCIDENT, incident(1, 3, value=900_000_000, stacks=[(9_000_000, MAIN)])),
    ]


SPOOL = spool(
    sample_log(),
    [
        [Call(1_000_500, WORK, 0), Call(1_002_000, OUTSIDE, 0, calls=2)],
        [Call(1_001_000, LOADED, 2), Call(1_003_000, WORK, 0, thread=2)],
    ],
    cells=[(0, MAIN, 40), (2, WORK, 3)],
    stackless=[5],
    losses=(0, 0, 1, 43, 5, 7),
)
"""A spool with something of everything."""
