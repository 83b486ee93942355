"""The layout of a spool: its head, and its regions of checksummed records.

Source: docs/agent-spool.md, and ``agent/spool.h``. No number of the file is trusted: a region is
read as far as its records are complete and their checksums right.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from machtrace.errors import FormatError

MAGIC = b"mtspool\n"
VERSION = 1
IMAGE, NODES, THREAD, RULE, INCIDENT, EVENTS, MARK = range(1, 8)
"""Kinds of records."""
_HEAD = Struct("<8sII12QIIII16s")
_STATE = Struct("<13Q")
_RECORD = Struct("<IHHII")
_SEGMENT = Struct("<QQ")
_ALIGNMENT = 8
_CHECKED = 12
"""Bytes of a record's header that its checksum includes."""
_MAX_RULES = 1 << 16
_BITS = range(8, 29)


class Losses(NamedTuple):
    """Counts of what is not stored."""

    log_full: int
    """Records, and stacks of calls, for which the log had no room."""
    stacks_full: int
    """Stacks whose inner frames were not stored, since the tree was full."""
    stacks_cut: int
    """Stacks whose outer frames were not stored."""
    events_counted: int
    """Calls of known stack, but without time and thread."""
    without_stack: int
    """Calls without a stack."""
    ignored: int
    """Calls that the agent itself made, which are in no other count."""


class Change(NamedTuple):
    """A change of one cell; see docs/agent-spool.md."""

    mark: int
    cell: int
    key: int
    calls: int


class Head(NamedTuple):
    """The head of a spool; offsets and sizes are in bytes."""

    file_size: int
    log_at: int
    log_size: int
    cells_at: int
    cell_count: int
    segments_at: int
    segment_size: int
    segment_count: int
    calls_at: int
    stackless_at: int
    started_at: int
    """Nanoseconds since 1970."""
    started_ticks: int
    """The same moment on the clock of events, ``CLOCK_MONOTONIC``."""
    pid: int
    machine: int
    """ELF's number."""
    tree_bits: int
    rule_count: int
    run: bytes
    state: int
    events: int
    folded: int
    change: Change
    losses: Losses


class Record(NamedTuple):
    """A complete record."""

    kind: int
    payload: memoryview


def parse_head(data: bytes | memoryview, source: str) -> Head:
    """Return the head of a spool.

    Raises:
        FormatError: it is none, of another version, or damaged.
    """

    def fail(message: str, offset: int, remedy: str | None = None) -> FormatError:
        return FormatError(message, source=source, offset=offset, remedy=remedy)

    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise fail("not a spool", 0)
    if len(data) < _HEAD.size + _STATE.size:
        raise fail("the head of the spool is truncated", len(data))
    _, version, expected, *fields = _HEAD.unpack_from(data)
    if version != VERSION:
        remedy = "read it with a machtrace that is as new as the agent"
        raise fail(f"a spool of version {version}, not {VERSION}", 8, remedy)
    if crc32(data[16 : _HEAD.size]) != expected:
        raise fail("the checksum of the spool's head is wrong", 12)
    state, events, folded, *rest = _STATE.unpack_from(data, _HEAD.size)
    change, losses = Change(*rest[:4]), Losses(*rest[4:])
    head = Head._make((*fields, state, events, folded, change, losses))
    for offset, start, size in (
        (24, head.log_at, head.log_size),
        (40, head.cells_at, 16 * head.cell_count),
        (56, head.segments_at, head.segment_size * head.segment_count),
        (80, head.calls_at, 8 * head.rule_count),
        (88, head.stackless_at, 8 * head.rule_count),
    ):
        if start + size > head.file_size:
            raise fail("a part of the spool is outside of it", offset)
    is_valid = head.tree_bits in _BITS and head.rule_count <= _MAX_RULES
    if not is_valid or (head.segment_count and head.segment_size < _SEGMENT.size):
        raise fail("impossible sizes in the spool's head", 56)
    return head


def records(region: memoryview, name: str, problems: list[str]) -> Iterator[Record]:
    """Yield the complete records of a region; what ends it early is added to ``problems``."""
    at = number = 0
    while at + _RECORD.size <= len(region):
        size, kind, unused, its_number, expected = _RECORD.unpack_from(region, at)
        if size == 0:
            return
        is_valid = (
            size % _ALIGNMENT == 0
            and _RECORD.size + unused <= size <= len(region) - at
            and unused < _ALIGNMENT
            and its_number == number
        )
        payload = region[at + _RECORD.size : at + size - unused] if is_valid else region[:0]
        if not is_valid or crc32(payload, crc32(region[at : at + _CHECKED])) != expected:
            problems.append(f"{name}: record {number} is damaged; it and what follows are left out")
            return
        yield Record(kind, payload)
        at += size
        number += 1


def segments(data: memoryview, head: Head) -> list[memoryview]:
    """Return the segments that have events, without their heads, the oldest first."""
    used: list[tuple[int, int]] = []
    for index in range(head.segment_count):
        at = head.segments_at + index * head.segment_size
        if at + _SEGMENT.size > len(data):
            break
        number, _ = _SEGMENT.unpack_from(data, at)
        if number:
            used.append((number, at))
    return [data[at + _SEGMENT.size : at + head.segment_size] for _, at in sorted(used)]


def restore_checksums(data: bytearray, before: bytes) -> None:
    """Correct the checksums of a spool's log of which texts were overwritten.

    Args:
        data: the spool, of the same size.
        before: it before; records that were damaged then stay so.

    Raises:
        FormatError: it is no spool, or its head is damaged.
    """
    head = parse_head(before, "spool")
    at, end = head.log_at, min(head.log_at + head.log_size, len(data))
    while at + _RECORD.size <= end:
        size, _, unused, _, expected = _RECORD.unpack_from(before, at)
        if size % _ALIGNMENT or not _RECORD.size + unused <= size <= end - at:
            return
        payload = slice(at + _RECORD.size, at + size - unused)
        if crc32(before[payload], crc32(before[at : at + _CHECKED])) != expected:
            return
        checksum = crc32(data[payload], crc32(data[at : at + _CHECKED]))
        data[at + _CHECKED : at + _RECORD.size] = checksum.to_bytes(4, "little")
        at += size
