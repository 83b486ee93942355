"""From records of logs to segments: reports are read, and added in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FormatError, MachtraceError
from machtrace.model.report import Report
from machtrace.reports.batches import collector_paused
from machtrace.reports.inputs import InputLimits, ReportInput, unpacked
from machtrace.reports.readers import read_source
from machtrace.reports.sentry.facts import user_key
from machtrace.warehouse.builder import SegmentBuilder, Source
from machtrace.warehouse.log import Record, read_record, records
from machtrace.warehouse.manifest import Manifest, Quarantined
from machtrace.warehouse.segment import Segment, merge, without_reports
from machtrace.warehouse.segment_files import write_segment

_BATCH_BYTES, _BATCH_RECORDS = 1 << 24, 64
"""Limits of the records that are read at once, by one process."""
_FACTS = ("app", "build", "device", "time", "devices")
"""The facts that a record states besides its bytes, if it is known."""
_SEGMENT_OCCURRENCES = 1 << 20
"""Stacks of a segment that is made of reports."""


class Body(NamedTuple):
    """Received bytes."""

    name: str
    data: bytes
    app: str = ""
    """The app of reports that do not state it."""
    build: str = ""
    """The build of reports that do not state it."""
    device: str = ""
    """The device of reports that do not state it."""
    time: int = 0
    """The time of reports that do not state it, in ns since 1970; 0: unknown."""
    devices: Mapping[str, str] = {}
    """Identifiers of devices, by what the bytes state instead."""


class Added(NamedTuple):
    """The result of making segments."""

    reports: int
    repeated: int
    """Reports that were there already."""
    quarantined: int
    """Records that could not be read."""


class LogRecord(NamedTuple):
    """A record, and the name of its log."""

    log: str
    record: Record


class BatchOutcome(NamedTuple):
    """The reports of some records, as a segment that nothing refers to yet."""

    segment: Segment
    records: int
    reports: int
    """The number of reports, of which several may be one incident."""
    read: dict[str, int]
    """By log: the offset up to which it was read."""
    quarantined: list[Quarantined]
    retried: Sequence[tuple[str, int]] = ()
    """Log and offset of records that were in quarantine, and were read again."""


def unread_batches(
    folder: Path, known: Mapping[str, int], end: tuple[str, int] | None
) -> Iterator[list[LogRecord]]:
    """Yield the records of logs that were not read, in batches.

    Args:
        folder: the logs'.
        known: by log: the offset up to which it was read.
        end: the log that is written and its size, up to which it is on the disk; None: no log is
            written. What follows may still be cut off.
    """
    batch: list[LogRecord] = []
    size = 0
    for path in sorted(folder.glob("*.log")):
        if end is not None and path.name > end[0]:
            break
        last = end[1] if end is not None and path.name == end[0] else None
        for record in records(path, known.get(path.name, 0), last):
            batch.append(LogRecord(path.name, record))
            size += len(record.body)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def read_batch(batch: Sequence[LogRecord]) -> BatchOutcome:
    """Read the reports of some records; what cannot be read goes to quarantine."""
    builder = SegmentBuilder()
    read: dict[str, int] = {}
    quarantined: list[Quarantined] = []
    with collector_paused():
        for log, record in batch:
            received, body = unframed(record.body)
            number = 0
            users = {user_key(name): own for name, own in body.devices.items()}
            devices = users | dict(body.devices)
            for item in unpacked(body.name, body.data, InputLimits(), is_named=True):
                reports = _reports(item)
                if isinstance(reports, str):
                    quarantined.append(Quarantined(log, record.offset, item.name, reports))
                    continue
                for report in reports:
                    facts = (body.data, number, body.app, body.build, body.device, body.time)
                    builder.add(report, Source(received, log, record.offset, *facts, devices))
                    number += 1
            read[log] = record.end
        return BatchOutcome(builder.build(), len(batch), len(builder), read, quarantined)


def quarantined_batches(
    folder: Path, places: Iterable[tuple[str, int]]
) -> Iterator[list[LogRecord]]:
    """Yield records that are in quarantine, each as a batch.

    Args:
        folder: the logs'.
        places: log and offset of each.
    """
    for log, offset in places:
        yield [LogRecord(log, Record(offset, read_record(folder / log, offset)))]


class Ingest:
    """Outcomes that become segments, each in one transaction with the offsets of its records."""

    def __init__(self, manifest: Manifest, folder_of: Callable[[int], Path]) -> None:
        """Add nothing yet.

        Args:
            manifest: that of the warehouse.
            folder_of: returns the folder of a segment, by its number.
        """
        self._manifest = manifest
        self._folder_of = folder_of
        self._waiting: list[BatchOutcome] = []
        self.total = Added(0, 0, 0)

    def add(self, outcome: BatchOutcome) -> None:
        """Add an outcome; it is committed with others when these are large enough."""
        self._waiting.append(outcome)
        stacks = sum(each.segment.occurrences.num_rows for each in self._waiting)
        if stacks >= _SEGMENT_OCCURRENCES:
            self.commit()

    def commit(self) -> None:
        """Write a segment of what was added, without the reports that are there already."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        alone = waiting[0].segment
        built = alone if len(waiting) == 1 else merge(each.segment for each in waiting)
        keys = built.reports["key"].to_pylist()
        known = self._manifest.known(keys)
        segment = without_reports(built, known) if known else built
        new = segment.reports.num_rows
        number, size = 0, 0
        if new:
            number = self._manifest.next_segment()
            size = write_segment(segment, self._folder_of(number))
        read: dict[str, int] = {}
        for each in waiting:
            read.update(each.read)
        quarantined = [row for each in waiting for row in each.quarantined]
        with self._manifest.transaction() as database:
            if new:
                store_segment(database, number, segment, size)
                rows = ((key,) for key in segment.reports["key"].to_pylist())
                database.executemany("INSERT INTO report VALUES (?)", rows)
            database.executemany("INSERT OR REPLACE INTO log VALUES (?, ?)", read.items())
            retried = [row for each in waiting for row in each.retried]
            database.executemany("DELETE FROM quarantine WHERE log = ? AND offset = ?", retried)
            database.executemany(
                "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?)", quarantined
            )
        reports = sum(each.reports for each in waiting)
        self.total = Added(
            self.total.reports + new,
            self.total.repeated + reports - new,
            self.total.quarantined + len(quarantined),
        )


def store_segment(database: sqlite3.Connection, number: int, segment: Segment, size: int) -> None:
    """Make a written segment exist, in a transaction of the manifest."""
    row = segment.reports.num_rows, segment.occurrences.num_rows, len(segment.tree), size, number
    database.execute(
        "UPDATE segment SET reports = ?, occurrences = ?, nodes = ?, bytes = ?, retired = NULL "
        "WHERE id = ?",
        row,
    )


def _reports(item: ReportInput) -> Sequence[Report] | str:
    """Return the reports of an input, or why there are none."""
    if isinstance(item.source, MachtraceError):
        return str(item.source)
    try:
        return read_source(item.source).reports
    except MachtraceError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one report must not stop all that follow it
        return f"its reader failed: {type(error).__name__}: {error}"


def framed_record(body: Body, received: int) -> bytes:
    """Return a record of a log: a line with facts, and the bytes as they were received."""
    facts = {"name": body.name, "received": received}
    facts |= {name: text for name in _FACTS if (text := getattr(body, name))}
    return json.dumps(facts).encode() + b"\n" + body.data


def unframed(record: bytes) -> tuple[int, Body]:
    """Return when a record of a log was received, in ns since 1970, and its bytes.

    Raises:
        FormatError: it has no header.
    """
    head, _, data = record.partition(b"\n")
    try:
        row = json.loads(head)
        app, build, device = (str(row.get(name, "")) for name in _FACTS[:3])
        devices = {name: str(own) for name, own in row.get("devices", {}).items()}
        body = Body(str(row["name"]), data, app, build, device, int(row.get("time", 0)), devices)
        return int(row["received"]), body
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError("a record without a header", source="log", offset=0) from None
