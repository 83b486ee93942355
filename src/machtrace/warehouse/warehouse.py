"""A folder that is a warehouse: received reports, segments with their stacks, and the manifest.

::

    warehouse/
        manifest.sqlite   what exists
        log/N.log         the bytes of reports, as they were received
        segments/N/       Parquet files

Bytes go to a log first; they are on the disk when :meth:`Warehouse.receive` returns. :meth:`flush`
makes segments of what the logs have. One process writes at a time; any number reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeAlias

from machtrace.errors import ArgumentError, FileAccessError
from machtrace.images.resolver import Search
from machtrace.model.report import Report
from machtrace.model.text import counted
from machtrace.reports.analysis.grouping_rules import parse_rules
from machtrace.symbolizer.report_names import ReportNames
from machtrace.warehouse.builder import SegmentBuilder, Source
from machtrace.warehouse.columns import SourceFacts, StackColumns, segment_of
from machtrace.warehouse.grouping.decisions import store_decision
from machtrace.warehouse.grouping.store import RULES
from machtrace.warehouse.ingest import (
    Added,
    BatchOutcome,
    Body,
    Ingest,
    LogRecord,
    framed_record,
    quarantined_batches,
    read_batch,
    unread_batches,
)
from machtrace.warehouse.log import LogWriter
from machtrace.warehouse.manifest import Manifest
from machtrace.warehouse.names import renamed
from machtrace.warehouse.reader import MANIFEST, WarehouseReader
from machtrace.warehouse.scrubbing.scrubber import (
    Scrubber,
    ScrubError,
    open_scrubber,
    opened_key,
)
from machtrace.warehouse.segment import Segment
from machtrace.warehouse.segment_files import read_table, sync_folder, write_names
from machtrace.warehouse.triage import State
from machtrace.warehouse.upkeep.compaction import MAX_STACKS, compact
from machtrace.warehouse.upkeep.deletion import (
    CLOCK_SLACK,
    DAYS,
    Deleted,
    check_clock,
    delete,
    device_names,
    device_records,
    records_before,
    report_key,
)
from machtrace.warehouse.upkeep.left_over import remove_left_over

# --- Who writes to a warehouse, and the log that is written now ---

_LOG_BYTES = 1 << 28
"""The size at which the next log begins."""


class WriterLock:
    """One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None

    def acquire(self) -> None:
        """Become the writer, if this process is not yet.

        Raises:
            FileAccessError: another process writes.
        """
        if self._lock is not None:
            return
        import fcntl

        path = self._folder / "writer.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileAccessError(str(path), error.strerror or str(error)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise FileAccessError(str(self._folder), "another process writes to it") from None
        self._lock = lock

    def release(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Logs:
    """The logs of a warehouse, in sequence; only the last one grows.

    One thread may append while another one begins the next log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log: LogWriter | None = None
        self._lock = Lock()

    @property
    def end(self) -> tuple[str, int] | None:
        """The log that is written and its size on the disk; None before the first record."""
        log = self._log
        return None if log is None else (log.path.name, log.size)

    @property
    def written(self) -> list[str]:
        """The logs that are not written any more, by name; :meth:`begin_next` was called."""
        last = "" if self._log is None else self._log.path.name
        return sorted(path.name for path in self.folder.glob("*.log") if path.name < last)

    def append(self, bodies: Sequence[bytes]) -> list[str]:
        """Append records, and return their identifiers; they are on the disk then.

        Raises:
            FileAccessError: they cannot be written; none of them stays.
        """
        with self._lock:
            log = self._with_room(_LOG_BYTES)
            return [f"{log.path.stem}-{offset}" for offset in log.append(bodies)]

    def begin_next(self) -> None:
        """Begin another log, so that none that has records is written any more.

        Raises:
            FileAccessError: it cannot be created.
        """
        with self._lock:
            self._with_room(1)

    def close(self) -> None:
        """Close the log that is written."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _with_room(self, most: int) -> LogWriter:
        if self._log is None:
            paths = sorted(self.folder.glob("*.log"))
            self._log = self._opened(paths[-1] if paths else self.folder / f"{1:08}.log")
        if self._log.size >= most:
            full = self._log
            # Another thread may read `end` at any moment.
            self._log = self._opened(full.path.with_name(f"{int(full.path.stem) + 1:08}.log"))
            full.close()
        return self._log

    def _opened(self, path: Path) -> LogWriter:
        log = LogWriter(path)
        sync_folder(self.folder)
        return log


# --- The folder: received reports, segments with their stacks, and the manifest ---

Run: TypeAlias = Callable[[Iterator[list[LogRecord]]], Iterable[BatchOutcome]]
"""Applies ``ingest.read_batch`` to batches, in order, such as in several processes."""
_PLACES = "SELECT segment, key, raw, raw_offset, device FROM reports WHERE"


class Warehouse(WarehouseReader):
    """An open warehouse.

    The first change makes this process its writer, until it is closed.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a warehouse.

        Raises:
            FileAccessError: the folder is no warehouse, or cannot be read.
            FormatError: its manifest is damaged, or a later version's.
        """
        super().__init__(folder)
        self._lock = WriterLock(self.folder)
        self._logs = Logs(self.folder / "log")

    @classmethod
    def create(cls, folder: str | Path) -> Self:
        """Create a warehouse in a folder that is empty or does not exist, and open it.

        Raises:
            FileAccessError: the folder has files, or cannot be written.
        """
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise FileAccessError(str(folder), "the folder is not empty")
            for name in ("log", "segments", "names"):
                (path / name).mkdir()
            sync_folder(path)
        except OSError as error:
            if isinstance(error, FileAccessError):
                raise
            raise FileAccessError(str(folder), error.strerror or str(error)) from None
        Manifest(path / MANIFEST, is_new=True).close()
        return cls(path)

    def close(self) -> None:
        """Close it; what was received stays in the log."""
        self._logs.close()
        self._lock.release()
        super().close()

    # --- receiving ---

    def receive(self, bodies: Sequence[Body | tuple[str, bytes]]) -> list[str]:
        """Store bytes of reports, scrubbed if there are rules; they are on the disk then.

        One thread may receive while another one does all the rest.

        Args:
            bodies: a name and the bytes of each.

        Returns:
            An identifier of each record.

        Raises:
            FileAccessError: they cannot be stored, as when the disk is full; none of them stays.
            ScrubError: scrubbing one takes too long; none of them stays.
        """
        (names,) = self.receive_each([[Body(*body) for body in bodies]])
        if isinstance(names, ScrubError):
            raise names
        return names

    def receive_each(self, groups: Sequence[Sequence[Body]]) -> list[list[str] | ScrubError]:
        """Store bytes of reports of several senders at once, as :meth:`receive`.

        Returns:
            By group the identifiers, or why none of its bodies can be scrubbed.

        Raises:
            FileAccessError: they cannot be stored, as when the disk is full; none of them stays.
        """
        self._lock.acquire()
        now = time.time_ns()
        scrub = (lambda body: body) if self._scrubber is None else self._scrubber.scrub
        records: list[bytes] = []
        answers: list[range | ScrubError] = []
        for bodies in groups:
            try:
                own = [framed_record(scrub(body), now) for body in bodies]
            except ScrubError as error:
                answers.append(error)
                continue
            answers.append(range(len(records), len(records) + len(own)))
            records += own
        names = self._logs.append(records)
        return [
            answer if isinstance(answer, ScrubError) else names[answer.start : answer.stop]
            for answer in answers
        ]

    def flush(
        self,
        on_records: Callable[[int], object] = lambda _: None,
        run: Run | None = None,
    ) -> Added:
        """Make segments of all records that are in none yet.

        Args:
            on_records: is called with the number of records that were read.
            run: applies ``ingest.read_batch`` to batches; None: in this process.

        Raises:
            FileAccessError: a segment cannot be written; what was received stays in the log.
        """
        self._lock.acquire()
        remove_left_over(self.folder, self._manifest)
        ingest = Ingest(self._manifest, self.segment_folder)
        batches = unread_batches(self._logs.folder, self._manifest.logs(), self._logs.end)
        for outcome in map(read_batch, batches) if run is None else run(batches):
            ingest.add(outcome)
            on_records(outcome.records)
        ingest.commit()
        return ingest.total

    def add(self, reports: Iterable[Report]) -> Added:
        """Add reports that are no files, such as captured ones, as a segment.

        Raises:
            FileAccessError: the segment cannot be written.
        """
        self._lock.acquire()
        builder = SegmentBuilder()
        for number, report in enumerate(reports):
            source = Source(received=time.time_ns(), body=os.urandom(16), number=number)
            builder.add(report, source)
        return self._add(builder.build(), len(builder))

    def add_columns(self, columns: StackColumns, facts: SourceFacts) -> Added:
        """Add stacks that are columns, such as a profiler's, as a segment.

        Raises:
            ArgumentError: columns of different lengths, or a row that is not listed.
            FileAccessError: the segment cannot be written.
        """
        self._lock.acquire()
        return self._add(segment_of(columns, facts), 1)

    @cached_property
    def _scrubber(self) -> Scrubber | None:
        return open_scrubber(self.folder)

    # --- issues ---

    def regroup(self) -> dict[str, str]:
        """Group all reports with the names of now, and return the aliases of earlier issues.

        Raises:
            FileAccessError: another process writes, or the groups cannot be stored.
            MissingExtraError: DuckDB is not installed.
        """
        self._lock.acquire()
        return self.groups.update()

    def set_rules(self, text: str | None) -> dict[str, str]:
        """Group all reports by other rules from now on, and return the aliases of earlier issues.

        Args:
            text: grouping rules; None for none.

        Raises:
            RulesError: they are invalid.
            FileAccessError: another process writes, or they cannot be stored.
        """
        if text is not None:
            parse_rules(text, RULES)
        self._lock.acquire()
        self.groups.set_rules(text)
        return self.regroup()

    def decide(self, issue: str, state: State, note: str = "") -> str:
        """Store a decision about an issue, and return its present identifier.

        Any process may decide, also while another one writes.

        Args:
            issue: its identifier, or an earlier one.
            state: the decision.
            note: any text.

        Raises:
            ArgumentError: no issue has this identifier.
            FileAccessError: it cannot be stored.
        """
        groups = self.groups
        return store_decision(self._manifest, issue, state, note, lambda: groups.table().ids)

    # --- names ---

    def name(
        self,
        search: Search = (),
        only: Collection[str] | None = None,
        on_image: Callable[[str], object] = lambda _: None,
        *,
        segments: Collection[int] | None = None,
    ) -> int:
        """Name the stored frames by symbols, and return how many of them have names by these.

        Args:
            search: files and folders with symbols, besides the store.
            only: UUIDs or build ids of the images, in hexadecimal; None: all.
            on_image: is called with the name of each image that is looked up.
            segments: the numbers of those with the frames; None: all.

        Raises:
            FileAccessError, FormatError: a segment cannot be read, or names cannot be written.
        """
        self._lock.acquire()
        names = ReportNames(search)
        count = 0
        for row in self.segments:
            if segments is not None and row.id not in segments:
                continue
            images = read_table(self.segment_folder(row.id) / "images.parquet", "images")
            if only is not None and not set(images["uuid"].to_pylist()).intersection(only):
                continue
            result = renamed(self.frames_of(row.id), names, only, on_image)
            if result.frames:
                count += result.frames
                file = f"{row.id:08}-{time.time_ns()}.parquet"
                write_names(result.names, self.folder / "names" / file)
                with self._manifest.transaction() as database:
                    database.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (row.id, file))
        remove_left_over(self.folder, self._manifest)
        return count

    # --- upkeep ---

    def compact(self, most: int = MAX_STACKS) -> int:
        """Replace segments by larger ones, and return how many were replaced.

        Args:
            most: the number of stacks of a segment that is not joined with others.

        Raises:
            FileAccessError, FormatError: a segment cannot be read or written.
        """
        self._lock.acquire()
        return compact(self.folder, self._manifest, self.segment, most)

    def delete_device(
        self, device: str, run: Run | None = None, *, uncertain: bool = False
    ) -> Deleted:
        """Delete the reports of a device, and all records of the logs with reports of it.

        Where such a record has reports of other devices as well, these lose their bytes.

        Args:
            device: its identifier, trimmed, as the reports state it, before or after scrubbing.
            run: see :meth:`flush`.
            uncertain: whether to delete reports, too, that may be another device's: earlier
                versions stored hashes as short as the identifiers.

        Raises:
            ArgumentError: an empty identifier; or some may be another device's, and none was
                deleted.
            FileAccessError, FormatError: a segment or a log cannot be read or written.
        """
        if not device.strip():
            raise ArgumentError("an empty device", remedy="pass the column device of a report")
        logs = self._written_logs(run)
        names = device_names(device, self._scrubber or opened_key(self.folder))
        every = names.sure | names.unsure
        rows = self.query(f"{_PLACES} list_contains(?, device)", [sorted(every)]).to_pylist()
        known = {(row["raw"], row["raw_offset"]) for row in rows}
        apply = run or (lambda batches: map(read_batch, batches))
        raw = device_records(self._logs.folder, logs, names, known, apply)
        unsure = [row for row in rows if row["device"] in names.unsure]
        number = len(unsure) + sum(map(len, raw.unsure.values()))
        if number and not uncertain:
            raise ArgumentError(
                f"{counted(number, 'report')} may be of {device!r} or of another device, whose "
                "stored hash is too short to differ: nothing was deleted",
                remedy="delete them by their keys, or all of them: --uncertain, or ?uncertain=true",
            )
        return self._delete(rows, raw.every())

    def delete_report(self, key: str) -> Deleted:
        """Delete a report, and the record of its bytes.

        Args:
            key: its column ``key``, in hexadecimal.

        Raises:
            ArgumentError: no key.
            FileAccessError, FormatError: a segment or a log cannot be read or written.
        """
        self._written_logs()
        return self._delete(self.query(f"{_PLACES} key = ?", [report_key(key)]).to_pylist(), {})

    def expire(
        self,
        *,
        reports: int | None = None,
        raw: int | None = None,
        run: Run | None = None,
        clock: int | None = None,
    ) -> Deleted:
        """Delete what was received before a time, in ns since 1970.

        Args:
            reports: that of reports, whose bytes are deleted with them; None: no report.
            raw: that of the bytes in the logs; None: that of reports.
            run: see :meth:`flush`.
            clock: the present time, by which the others were made; nothing is deleted if nothing
                was received for long, or it selects more than half. None: they are certain.

        Raises:
            ExpiryError: the clock may be wrong.
            FileAccessError, FormatError: a segment or a log cannot be read or written.
        """
        reports, folder = reports or 0, self._logs.folder
        text, values, last = f"{_PLACES} received < ?", [reports], max(reports, raw or 0)
        every = sorted(path.name for path in folder.glob("*.log"))
        old = records_before(folder, every, last, clock)
        rows = self.query(text, values)
        if not any(old.values()) and not rows.num_rows:
            return Deleted(0, 0)
        if clock is not None:
            days = self.query(DAYS, [clock + CLOCK_SLACK]).to_pylist()
            counts = rows.num_rows, sum(row.reports for row in self.segments)
            check_clock(clock, days, counts, folder, old, reports if rows.num_rows else last)
        logs = self._written_logs(run)
        rows = self.query(text, values)
        return self._delete(rows.to_pylist(), records_before(folder, logs, last, clock))

    def retry(self, run: Run | None = None) -> Added:
        """Read the records in quarantine again, as after an upgrade.

        Args:
            run: see :meth:`flush`.

        Raises:
            FileAccessError: a segment cannot be written; the records stay in quarantine.
        """
        self._lock.acquire()
        ingest = Ingest(self._manifest, self.segment_folder)
        places = list(dict.fromkeys((row.log, row.offset) for row in self.quarantined))
        batches = quarantined_batches(self._logs.folder, places)
        outcomes = map(read_batch, batches) if run is None else run(batches)
        for place, outcome in zip(places, outcomes, strict=False):
            ingest.add(outcome._replace(read={}, retried=[place]))
        ingest.commit()
        return ingest.total

    # --- inside ---

    def _add(self, segment: Segment, reports: int) -> Added:
        ingest = Ingest(self._manifest, self.segment_folder)
        ingest.add(BatchOutcome(segment, 0, reports, {}, []))
        ingest.commit()
        return ingest.total

    def _written_logs(self, run: Run | None = None) -> list[str]:
        """Return the logs that are in segments as a whole; further records go to another one."""
        self._lock.acquire()
        self._logs.begin_next()
        self.flush(run=run)
        return self._logs.written

    def _delete(self, rows: Iterable[dict[str, Any]], raw: dict[str, set[int]]) -> Deleted:
        reports: dict[int, set[bytes]] = {}
        for row in rows:
            reports.setdefault(row["segment"], set()).add(row["key"])
            if (self._logs.folder / row["raw"]).is_file() and row["raw"]:
                raw.setdefault(row["raw"], set()).add(row["raw_offset"])
        deleted = delete(self.folder, self._manifest, self.segment, reports, raw)
        remove_left_over(self.folder, self._manifest)
        return deleted
