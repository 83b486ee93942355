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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from machtrace.errors import FileAccessError
from machtrace.images.resolver import Search
from machtrace.model.report import Report
from machtrace.symbolizer.report_names import ReportNames
from machtrace.warehouse.builder import SegmentBuilder, Source
from machtrace.warehouse.columns import SourceFacts, StackColumns, segment_of
from machtrace.warehouse.decisions import store_decision, store_groups
from machtrace.warehouse.difference import GROUPS, Difference, difference
from machtrace.warehouse.function_tree import FunctionTree, function_tree, parts_of
from machtrace.warehouse.groups import Issue, issues, subjects
from machtrace.warehouse.ingest import (
    Added,
    BatchOutcome,
    Body,
    Ingest,
    LogRecord,
    framed_record,
    read_batch,
    unread_batches,
)
from machtrace.warehouse.log import LogWriter
from machtrace.warehouse.manifest import Manifest, Quarantined, SegmentRow
from machtrace.warehouse.names import WantedImage, renamed, wanted_images
from machtrace.warehouse.record_state import RecordState, record_state
from machtrace.warehouse.segment import Segment
from machtrace.warehouse.segment_files import (
    read_segment,
    sync_folder,
    write_names,
)
from machtrace.warehouse.sql import (
    RowLimits,
    Rows,
    SegmentFiles,
    compared_weights,
    connect,
    query,
    weights_of,
)
from machtrace.warehouse.triage import Decision, State, decisions_by_issue
from machtrace.warehouse.upkeep import (
    LARGEST,
    Problem,
    check,
    compact,
    remove_left_over,
    segment_folder,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_MANIFEST = "manifest.sqlite"
_LOG_BYTES = 1 << 28
"""The size at which the next log begins."""


class Warehouse:
    """An open warehouse."""

    def __init__(self, folder: str | Path) -> None:
        """Open a warehouse.

        Raises:
            FileAccessError: the folder is no warehouse, or cannot be read.
            FormatError: its manifest is damaged, or a later version's.
        """
        self.folder = Path(folder)
        if not (self.folder / _MANIFEST).is_file():
            error = FileAccessError(str(folder), "not a warehouse")
            error.remedy = f"create one: machtrace warehouse init {folder}"
            raise error
        self._manifest = Manifest(self.folder / _MANIFEST)
        self._log: LogWriter | None = None
        self._lock: int | None = None
        self._running: duckdb.DuckDBPyConnection | None = None

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
        Manifest(path / _MANIFEST, is_new=True).close()
        return cls(path)

    def close(self) -> None:
        """Close it; what was received stays in the log."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._release()
        self._manifest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- receiving ---

    def receive(self, bodies: Sequence[Body | tuple[str, bytes]]) -> list[str]:
        """Store bytes of reports; they are on the disk when this returns.

        One thread may receive while another one does all the rest.

        Args:
            bodies: a name and the bytes of each.

        Returns:
            An identifier of each record.

        Raises:
            FileAccessError: they cannot be stored, as when the disk is full; none of them stays.
        """
        self._acquire()
        now = time.time_ns()
        log = self._log_with_room()
        framed = [framed_record(Body(*body), now) for body in bodies]
        return [f"{log.path.stem}-{offset}" for offset in log.append(framed)]

    def flush(
        self,
        on_records: Callable[[int], object] = lambda _: None,
        run: Callable[[Iterator[list[LogRecord]]], Iterable[BatchOutcome]] | None = None,
    ) -> Added:
        """Make segments of all records that are in none yet.

        Args:
            on_records: is called with the number of records that were read.
            run: applies ``ingest.read_batch`` to batches, in order, such as in several processes;
                None: in this one.

        Raises:
            FileAccessError: a segment cannot be written; what was received stays in the log.
        """
        self._acquire()
        remove_left_over(self.folder, self._manifest)
        ingest = Ingest(self._manifest, self.segment_folder)
        log = self._log
        end = None if log is None else (log.path.name, log.size)
        batches = unread_batches(self.folder / "log", self._manifest.logs(), end)
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
        self._acquire()
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
        self._acquire()
        return self._add(segment_of(columns, facts), 1)

    # --- reading ---

    @property
    def segments(self) -> list[SegmentRow]:
        """The segments, the oldest first."""
        return self._manifest.segments()

    @property
    def quarantined(self) -> list[Quarantined]:
        """The records that could not be read."""
        return self._manifest.quarantined()

    @property
    def unread_bytes(self) -> int:
        """Bytes of the logs that are in no segment yet."""
        known = self._manifest.logs()
        return sum(
            max(path.stat().st_size - known.get(path.name, 0), 0)
            for path in (self.folder / "log").glob("*.log")
        )

    def record_state(self, record: str) -> tuple[RecordState, tuple[str, ...]] | None:
        """Return the state of received bytes, and reasons for which parts are in quarantine.

        Args:
            record: the identifier that :meth:`receive` returned.

        Returns:
            None if there is no such record.

        Raises:
            FileAccessError: the log cannot be read.
        """
        return record_state(self.folder / "log", self._manifest, record)

    def segment_folder(self, number: int) -> Path:
        """Return the folder of a segment."""
        return segment_folder(self.folder, number)

    def segment(self, number: int) -> Segment:
        """Read a segment.

        Raises:
            FileAccessError, FormatError: it cannot be read, or is damaged.
        """
        files = self._files(number, self._manifest.names())
        return read_segment(files.folder, files.names)

    def stacks_of(self, number: int) -> Segment:
        """Read the stacks of a segment, with their names, and none of its occurrences.

        Raises:
            FileAccessError, FormatError: it cannot be read, or is damaged.
        """
        files = self._files(number, self._manifest.names())
        return read_segment(files.folder, files.names, has_occurrences=False)

    def connect(self, *, memory: str = "1GB") -> duckdb.DuckDBPyConnection:
        """Return a DuckDB connection with views over the segments; see ``warehouse.sql``.

        It reads these segments alone, also if others are added meanwhile.

        Raises:
            MissingExtraError: DuckDB is not installed.
        """
        names = self._manifest.names()
        return connect([self._files(row.id, names) for row in self.segments], memory=memory)

    def query(self, text: str) -> pa.Table:
        """Return the rows of an SQL query over the views of :meth:`connect`.

        Raises:
            ArgumentError: the query is invalid, or refers to what it must not read.
            MissingExtraError: DuckDB is not installed.
        """
        return self.first_rows(text).table

    def first_rows(self, text: str, limits: RowLimits | None = None) -> Rows:
        """Return the rows of an SQL query up to a limit, and whether these are all.

        Raises:
            ArgumentError: the query is invalid, was interrupted, or refers to what it must not
                read.
            MissingExtraError: DuckDB is not installed.
        """
        with self.connect() as connection:
            self._running = connection
            try:
                return query(connection, text, limits)
            finally:
                self._running = None

    def interrupt(self) -> None:
        """End the query that runs in another thread, if one does."""
        running = self._running
        if running is not None:
            running.interrupt()

    def flame(self, where: str = "true") -> FunctionTree:
        """Return the functions of stored stacks, with the weights of those.

        Args:
            where: an SQL condition over the view ``stacks_of_reports``.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        return function_tree(parts_of(self.query(weights_of(where)), self.stacks_of))

    def diff(self, before: str, after: str) -> Difference:
        """Return the difference of two sets of stacks, with intervals over devices.

        Args:
            before: an SQL condition over the view ``stacks_of_reports``.
            after: the second side's.

        Raises:
            ArgumentError: a condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        rows = self.query(compared_weights(before, after, GROUPS))
        return difference(function_tree(parts_of(rows, self.stacks_of)), rows)

    def issues(self, where: str = "true") -> list[Issue]:
        """Return the issues of stored reports, the most frequent first.

        Args:
            where: an SQL condition over the columns of ``reports``.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        return issues(self.query(subjects(where)), self.stacks_of)

    def regroup(self) -> dict[str, str]:
        """Group all reports with the names of now, and return the aliases of earlier issues.

        Raises:
            FileAccessError: another process writes, or the groups cannot be stored.
            MissingExtraError: DuckDB is not installed.
        """
        self._acquire()
        return store_groups(self._manifest, self.issues())

    def decide(self, issue: str, state: State, note: str = "") -> str:
        """Store a decision about an issue, and return its present identifier.

        Args:
            issue: its identifier, or an earlier one.
            state: the decision.
            note: any text.

        Raises:
            ArgumentError: no issue has this identifier.
            FileAccessError: it cannot be stored.
        """
        self._acquire()
        return store_decision(self._manifest, issue, state, note)

    def decisions(self) -> dict[str, list[Decision]]:
        """Return the decisions about issues, by present identifier, the one that holds first."""
        return decisions_by_issue(self._manifest.decisions(), self._manifest.aliases())

    def wanted(self) -> list[WantedImage]:
        """Return the images whose symbols would name more stored frames, most frames first."""
        wanted: dict[str, WantedImage] = {}
        for row in self.segments:
            for image in wanted_images(self.segment(row.id)):
                known = wanted.get(image.uuid)
                before = 0 if known is None else known.frames
                wanted[image.uuid] = image._replace(frames=image.frames + before)
        return sorted(wanted.values(), key=lambda each: (-each.frames, each.name, each.uuid))

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
        self._acquire()
        names = ReportNames(search)
        count = 0
        for row in self.segments:
            if segments is not None and row.id not in segments:
                continue
            result = renamed(self.segment(row.id), names, only, on_image)
            if result.frames:
                count += result.frames
                file = f"{row.id:08}-{time.time_ns()}.parquet"
                write_names(result.names, self.folder / "names" / file)
                with self._manifest.transaction() as database:
                    database.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (row.id, file))
        remove_left_over(self.folder, self._manifest)
        return count

    # --- upkeep ---

    def compact(self, most: int = LARGEST) -> int:
        """Replace segments by larger ones, and return how many were replaced.

        Args:
            most: the number of stacks of a segment that is not joined with others.

        Raises:
            FileAccessError, FormatError: a segment cannot be read or written.
        """
        self._acquire()
        return compact(self.folder, self._manifest, self.segment, most)

    def check(self) -> Iterator[Problem]:
        """Yield what is damaged: segments, and logs that are shorter than what was read."""
        return check(self.folder, self._manifest, self.segment)

    # --- inside ---

    def _files(self, number: int, names: Mapping[int, str]) -> SegmentFiles:
        folder = self.segment_folder(number)
        later = names.get(number)
        own = folder / "names.parquet"
        return SegmentFiles(number, folder, own if later is None else self.folder / "names" / later)

    def _add(self, segment: Segment, reports: int) -> Added:
        ingest = Ingest(self._manifest, self.segment_folder)
        ingest.add(BatchOutcome(segment, 0, reports, {}, []))
        ingest.commit()
        return ingest.total

    def _log_with_room(self) -> LogWriter:
        if self._log is None:
            paths = sorted((self.folder / "log").glob("*.log"))
            path = paths[-1] if paths else self.folder / "log" / f"{1:08}.log"
            self._log = LogWriter(path)
            sync_folder(path.parent)
        if self._log.size >= _LOG_BYTES:
            path = self._log.path.with_name(f"{int(self._log.path.stem) + 1:08}.log")
            self._log.close()
            self._log = LogWriter(path)
            sync_folder(path.parent)
        return self._log

    def _acquire(self) -> None:
        """Become the writer.

        Raises:
            FileAccessError: another process writes.
        """
        if self._lock is not None:
            return
        import fcntl

        path = self.folder / "writer.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileAccessError(str(path), error.strerror or str(error)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise FileAccessError(str(self.folder), "another process writes to it") from None
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
