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
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.images.resolver import Search
from machtrace.model.report import Report
from machtrace.reports.batches import collector_paused
from machtrace.symbolizer.report_names import ReportNames
from machtrace.warehouse.builder import Source
from machtrace.warehouse.columns import SourceFacts, StackColumns, segment_of
from machtrace.warehouse.difference import GROUPS, Difference, difference
from machtrace.warehouse.function_tree import FunctionTree, function_tree, parts_of
from machtrace.warehouse.groups import Issue, issues, subjects
from machtrace.warehouse.ingest import Added, Ingest, framed_record, store_segment
from machtrace.warehouse.log import LogWriter, Record, records
from machtrace.warehouse.manifest import Manifest, Quarantined, SegmentRow
from machtrace.warehouse.names import WantedImage, renamed, wanted_images
from machtrace.warehouse.segment import Segment, merge
from machtrace.warehouse.segment_files import (
    read_segment,
    sync_folder,
    write_names,
    write_segment,
)
from machtrace.warehouse.sql import (
    SegmentFiles,
    compared_weights,
    connect,
    query,
    weights_of,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_MANIFEST = "manifest.sqlite"
_LOG_BYTES = 1 << 28
"""The size at which the next log begins."""


_GRACE = 600 * 10**9
"""Nanoseconds for which segments that were replaced stay, since somebody may read them."""


class Problem(NamedTuple):
    """A fault that :meth:`Warehouse.check` sees."""

    where: str
    text: str


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

    def receive(self, bodies: Sequence[tuple[str, bytes]]) -> list[str]:
        """Store bytes of reports; they are on the disk when this returns.

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
        framed = [framed_record(name, now, body) for name, body in bodies]
        return [f"{log.path.stem}-{offset}" for offset in log.append(framed)]

    def flush(self, on_record: Callable[[str], object] = lambda _: None) -> Added:
        """Make segments of all records that are in none yet.

        Args:
            on_record: is called with the name of each before it is read.

        Raises:
            FileAccessError: a segment cannot be written; what was received stays in the log.
        """
        self._acquire()
        self._remove_left_over()
        batch = Ingest(self._manifest, self.segment_folder)
        with collector_paused():
            for log, record in self._unread():
                batch.add(log, record, on_record)
            batch.commit()
        return batch.total

    def add(
        self, reports: Iterable[Report], on_report: Callable[[], object] = lambda: None
    ) -> Added:
        """Add reports that are no files, such as captured ones, as a segment.

        Raises:
            FileAccessError: the segment cannot be written.
        """
        self._acquire()
        batch = Ingest(self._manifest, self.segment_folder)
        for number, report in enumerate(reports):
            batch.add_report(
                report, Source(received=time.time_ns(), body=os.urandom(16), number=number)
            )
            on_report()
        batch.commit()
        return batch.total

    def add_columns(self, columns: StackColumns, facts: SourceFacts) -> Added:
        """Add stacks that are columns, such as a profiler's, as a segment.

        Raises:
            ArgumentError: columns of different lengths, or a row that is not listed.
            FileAccessError: the segment cannot be written.
        """
        self._acquire()
        ingest = Ingest(self._manifest, self.segment_folder)
        ingest.add_segment(segment_of(columns, facts), 1)
        return ingest.total

    # --- reading ---

    @property
    def segments(self) -> list[SegmentRow]:
        """The segments, the oldest first."""
        return self._manifest.segments()

    @property
    def quarantined(self) -> list[Quarantined]:
        """The records that could not be read."""
        return self._manifest.quarantined()

    def segment_folder(self, number: int) -> Path:
        """Return the folder of a segment."""
        return self.folder / "segments" / f"{number:08}"

    def segment(self, number: int) -> Segment:
        """Read a segment.

        Raises:
            FileAccessError, FormatError: it cannot be read, or is damaged.
        """
        files = self._files(number, self._manifest.names())
        return read_segment(files.folder, files.names)

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
        with self.connect() as connection:
            return query(connection, text)

    def flame(self, where: str = "true") -> FunctionTree:
        """Return the functions of stored stacks, with the weights of those.

        Args:
            where: an SQL condition over the view ``stacks_of_reports``.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        return function_tree(parts_of(self.query(weights_of(where)), self.segment))

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
        return difference(function_tree(parts_of(rows, self.segment, 2 * GROUPS)))

    def issues(self, where: str = "true") -> list[Issue]:
        """Return the issues of stored reports, the most frequent first.

        Args:
            where: an SQL condition over the columns of ``reports``.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        return issues(self.query(subjects(where)), self.segment)

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
    ) -> int:
        """Name the stored frames by symbols, and return how many of them have names by these.

        Args:
            search: files and folders with symbols, besides the store.
            only: UUIDs or build ids of the images, in hexadecimal; None: all.
            on_image: is called with the name of each image that is looked up.

        Raises:
            FileAccessError, FormatError: a segment cannot be read, or names cannot be written.
        """
        self._acquire()
        names = ReportNames(search)
        count = 0
        for row in self.segments:
            result = renamed(self.segment(row.id), names, only, on_image)
            if result.frames:
                count += result.frames
                file = f"{row.id:08}-{time.time_ns()}.parquet"
                write_names(result.names, self.folder / "names" / file)
                with self._manifest.transaction() as database:
                    database.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (row.id, file))
        self._remove_left_over()
        return count

    # --- upkeep ---

    def compact(self, most: int = 1 << 24) -> int:
        """Replace segments by larger ones, and return how many were replaced.

        Args:
            most: the number of stacks of a segment that is not joined with others.

        Raises:
            FileAccessError, FormatError: a segment cannot be read or written.
        """
        self._acquire()
        self._remove_left_over()
        small: list[SegmentRow] = []
        replaced = 0
        for row in [*self.segments, None]:
            if row is None or sum(each.occurrences for each in [*small, row]) > most:
                if len(small) > 1:
                    self._replace(small)
                    replaced += len(small)
                small = []
            if row is not None:
                small.append(row)
        self._remove_left_over()
        return replaced

    def check(self) -> Iterator[Problem]:
        """Yield what is damaged: segments, and records of logs that are in no segment."""
        for row in self.segments:
            try:
                segment = self.segment(row.id)
            except MachtraceError as error:
                yield Problem(f"segment {row.id}", str(error))
                continue
            counts = segment.reports.num_rows, segment.occurrences.num_rows, len(segment.tree)
            if counts != row[1:4]:
                yield Problem(f"segment {row.id}", "it has other rows than the manifest states")
            keys = segment.reports["key"].to_pylist()
            missing = len(set(keys) - self._manifest.known(keys))
            if missing:
                yield Problem(f"segment {row.id}", f"{missing} reports are not in the manifest")
        for name, read in self._manifest.logs().items():
            path = self.folder / "log" / name
            if not path.is_file() or path.stat().st_size < read:
                yield Problem(name, "the log is shorter than what was read of it")

    # --- inside ---

    def _files(self, number: int, names: Mapping[int, str]) -> SegmentFiles:
        folder = self.segment_folder(number)
        later = names.get(number)
        own = folder / "names.parquet"
        return SegmentFiles(number, folder, own if later is None else self.folder / "names" / later)

    def _unread(self) -> Iterator[tuple[str, Record]]:
        known = self._manifest.logs()
        for path in sorted((self.folder / "log").glob("*.log")):
            for record in records(path, known.get(path.name, 0)):
                yield path.name, record

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

    def _replace(self, rows: Sequence[SegmentRow]) -> None:
        merged = merge(self.segment(row.id) for row in rows)
        number = self._manifest.next_segment()
        size = write_segment(merged, self.segment_folder(number))
        with self._manifest.transaction() as database:
            store_segment(database, number, merged, size)
            now = time.time_ns()
            for row in rows:
                database.execute("UPDATE segment SET retired = ? WHERE id = ?", (now, row.id))

    def _remove_left_over(self) -> None:
        """Remove segments' folders that a killed writer left, and those that were replaced."""
        before = time.time_ns() - _GRACE
        with self._manifest.transaction() as database:
            database.execute("DELETE FROM segment WHERE retired < ?", (before,))
            database.execute("DELETE FROM names WHERE segment NOT IN (SELECT id FROM segment)")
        live = {self.segment_folder(number).name for number in self._manifest.all_segments()}
        for path in (self.folder / "segments").iterdir():
            if path.name not in live:
                shutil.rmtree(path, ignore_errors=True)
        files = set(self._manifest.names().values())
        for path in (self.folder / "names").iterdir():
            if path.name not in files and path.stat().st_mtime_ns < before:
                path.unlink(missing_ok=True)

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
