"""Spools: mutated records whose checksums are right, so that their contents are read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from random import Random

import numpy as np

from fuzz.mutation import Mutation
from fuzz.target import ContractError, Target
from machtrace.reports.analysis.watched_calls import watched_calls
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.spool import Spool
from machtrace.reports.stacks.profiles import profile_of
from tests.support.writers import spool as writer

_CHECKED = 144
_RECORD = struct.Struct("<IHHI")
_STACKS = 10


def run(data: bytes) -> None:
    """Read columns and the report, which must have the same calls; and its JSON."""
    spool = Spool.parse(data, "fuzz")
    sums = spool.sums()
    total = sum(sums["calls"].tolist())
    if total != sum(spool.cells["calls"].tolist()) + sum(spool.events["calls"].tolist()):
        raise ContractError("the sums are not those of cells and events")
    for stack in np.unique(sums["stack"])[:_STACKS].tolist():
        spool.stack(stack)
    (report,) = read_source(ReportSource("fuzz", data)).reports
    if sum(tree.root_samples for tree in report.trees) != total:
        raise ContractError("the trees have not all calls")
    if watched_calls(report, _STACKS) is None:
        raise ContractError("the report has no facts")
    if sum(profile_of(report).samples.weights) != total:
        raise ContractError("the profile has not all calls")
    again = read_source(ReportSource("again", reports_json([report]).encode())).reports
    if again != (report,):
        raise ContractError("the report's JSON is read as another report")


def _seeds() -> Sequence[bytes]:
    log = writer.sample_log()
    events = [[writer.Call(1, writer.WORK, 0)] * 4, [writer.Call(5, writer.MAIN, 2)]]
    return [
        writer.SPOOL,
        writer.spool(log, events, cells=[(0, writer.MAIN, 3)], folded=3, state=1),
        writer.spool(log, events, change=(2, 0, 1 << 63 | writer.MAIN, 9)),
    ]


def _correct_checksums(data: bytearray, random: Random) -> None:
    """Make the checksums of the head and of all records right, in most cases."""
    if len(data) < writer.HEAD or random.getrandbits(3) == 0:
        return
    struct.pack_into("<I", data, 12, zlib.crc32(data[16:_CHECKED]))
    log_at, log_size = struct.unpack_from("<2Q", data, 24)
    segments_at, size, count = struct.unpack_from("<3Q", data, 56)
    regions, header = [(log_at, log_size)], writer.RECORD_SIZE
    if count <= len(data):
        regions += [(segments_at + at * size + 16, size - 16) for at in range(count)]
    for at, length in regions:
        end = min(at + length, len(data))
        while at + header <= end:
            taken, _, unused, _ = _RECORD.unpack_from(data, at)
            if not header <= taken <= end - at:
                break
            payload = data[at + header : at + max(header, taken - unused)]
            checksum = zlib.crc32(payload, zlib.crc32(data[at : at + 12]))
            struct.pack_into("<I", data, at + 12, checksum)
            at += taken  # noqa: PLW2901 - the next record


def _change_payload(data: bytearray, random: Random) -> None:
    """Replace a byte of a record's payload, or a word of the head; the checksums become right."""
    if random.getrandbits(2) == 0 and len(data) >= writer.HEAD:
        at = random.randrange(16, writer.HEAD) & ~7
        struct.pack_into("<Q", data, at, random.choice((0, 1, 7, len(data), 1 << 63, 1 << 20)))
    elif len(data) > writer.HEAD:
        data[random.randrange(writer.HEAD, len(data))] = random.getrandbits(8)
    _correct_checksums(data, random)


_MUTATIONS: tuple[Mutation, ...] = (_change_payload,) * 6 + (_correct_checksums,) * 4

TARGET = Target("spool", run, _seeds, _MUTATIONS)
