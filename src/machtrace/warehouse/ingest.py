"""From records of logs to segments: reports are read, and added in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FormatError, MachtraceError
from machtrace.model.report import Report
from machtrace.reports.inputs import InputLimits, ReportInput, unpacked
from machtrace.reports.readers import read_source
from machtrace.warehouse.builder import SegmentBuilder, Source
from machtrace.warehouse.log import Record
from machtrace.warehouse.manifest import Manifest, Quarantined
from machtrace.warehouse.segment import Segment, without_reports
from machtrace.warehouse.segment_files import write_segment

_SEGMENT_OCCURRENCES = 1 << 20
"""Stacks of a segment that is made of reports."""


class Added(NamedTuple):
    """The result of making segments."""

    reports: int
    repeated: int
    """Reports that were there already."""
    quarantined: int
    """Records that could not be read."""


class Ingest:
    """Reports that become a segment in one transaction, with the offsets of their records."""

    def __init__(self, manifest: Manifest, folder_of: Callable[[int], Path]) -> None:
        """Add nothing yet.

        Args:
            manifest: that of the warehouse.
            folder_of: returns the folder of a segment, by its number.
        """
        self._manifest = manifest
        self._folder_of = folder_of
        self._read: dict[str, int] = {}
        self._quarantined: list[Quarantined] = []
        self._builder = SegmentBuilder()
        self._occurrences = 0
        self.total = Added(0, 0, 0)

    def add(self, log: str, record: Record, on_record: Callable[[str], object]) -> None:
        """Add the reports of a record; what cannot be read goes to quarantine.

        Args:
            log: the name of the record's log.
            record: the record.
            on_record: is called with the record's name before it is read.
        """
        name, received, body = _unframed(record.body)
        on_record(name)
        number = 0
        for item in unpacked(name, body, InputLimits(), is_named=True):
            try:
                for report in _reports(item):
                    source = Source(received, log, record.offset, body, number)
                    self.add_report(report, source)
                    number += 1
            except MachtraceError as error:
                self._quarantined.append(Quarantined(log, record.offset, item.name, str(error)))
        self._read[log] = record.end
        if self._occurrences >= _SEGMENT_OCCURRENCES:
            self.commit()

    def add_report(self, report: Report, source: Source) -> None:
        """Add one report."""
        self._builder.add(report, source)
        self._occurrences += sum(len(task.threads) for task in (report, *report.others))

    def commit(self) -> None:
        """Write a segment of the reports, in one transaction with the offsets of their records."""
        built = self._builder.build()
        self.add_segment(built, len(self._builder))
        self._builder, self._occurrences = SegmentBuilder(), 0

    def add_segment(self, built: Segment, reports: int) -> None:
        """Write a segment, without the reports that are there already.

        Args:
            built: the segment.
            reports: the number of reports that it was made of.
        """
        keys = built.reports["key"].to_pylist()
        known = self._manifest.known(keys)
        segment = without_reports(built, known) if known else built
        new = segment.reports.num_rows
        number, size = 0, 0
        if new:
            number = self._manifest.next_segment()
            size = write_segment(segment, self._folder_of(number))
        with self._manifest.transaction() as database:
            if new:
                store_segment(database, number, segment, size)
                rows = ((key,) for key in segment.reports["key"].to_pylist())
                database.executemany("INSERT INTO report VALUES (?)", rows)
            database.executemany(
                "INSERT OR REPLACE INTO log VALUES (?, ?)",
                self._read.items(),
            )
            database.executemany(
                "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?)", self._quarantined
            )
        self.total = Added(
            self.total.reports + new,
            self.total.repeated + reports - new,
            self.total.quarantined + len(self._quarantined),
        )
        self._read, self._quarantined = {}, []


def store_segment(database: sqlite3.Connection, number: int, segment: Segment, size: int) -> None:
    """Make a written segment exist, in a transaction of the manifest."""
    row = segment.reports.num_rows, segment.occurrences.num_rows, len(segment.tree), size, number
    database.execute(
        "UPDATE segment SET reports = ?, occurrences = ?, nodes = ?, bytes = ?, retired = NULL "
        "WHERE id = ?",
        row,
    )


def _reports(item: ReportInput) -> Iterator[Report]:
    if isinstance(item.source, MachtraceError):
        raise item.source
    yield from read_source(item.source).reports


def framed_record(name: str, received: int, body: bytes) -> bytes:
    """Return a record of a log: a line with facts, and the bytes as they were received."""
    head = json.dumps({"name": name, "received": received}).encode()
    return head + b"\n" + body


def _unframed(record: bytes) -> tuple[str, int, bytes]:
    head, _, body = record.partition(b"\n")
    try:
        row = json.loads(head)
        return str(row["name"]), int(row["received"]), body
    except (ValueError, KeyError, TypeError):
        raise FormatError("a record without a header", source="log", offset=0) from None
