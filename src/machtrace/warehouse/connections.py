"""The connections of an open warehouse: one at a time, whose query another thread can end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from machtrace.errors import ArgumentError
from machtrace.warehouse.spills import own_resources
from machtrace.warehouse.sql import Resources, SegmentFiles, connect, connect_counts

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


class Connections:
    """Opens connections to the segments of a warehouse."""

    def __init__(self, folder: Path) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._running: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = False
        self._resources: Resources | None = None
        self._kept: tuple[Sequence[SegmentFiles], duckdb.DuckDBPyConnection] | None = None

    def keep(self, resources: Resources) -> None:
        """Use one connection for all queries, as long as the segments are the same.

        Args:
            resources: what it may use.
        """
        self._resources = resources

    def close(self) -> None:
        """Close the connection of all queries, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()

    def interrupt(self) -> None:
        """End the query that runs in another thread, and refuse all that follow."""
        self._is_interrupted = True
        running = self._running
        if running is not None:
            running.interrupt()

    @contextmanager
    def to_segments(self, files: Sequence[SegmentFiles]) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return a connection with the views of segments, whose query :meth:`interrupt` ends.

        Raises:
            ArgumentError: it was interrupted already.
            MissingExtraError: DuckDB is not installed.
        """
        if self._resources is None:
            with connect(files, own_resources(self._folder)) as opened, self._used(opened):
                yield opened
            return
        if self._kept is None or self._kept[0] != files:
            self.close()
            self._kept = files, connect(files, self._resources)
        with self._used(self._kept[1]):
            yield self._kept[1]

    @contextmanager
    def to_counts(self, table: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return a connection whose ``reports`` are rows of counts; see ``sql.matching_rows``.

        Raises:
            ArgumentError: it was interrupted already.
            MissingExtraError: DuckDB is not installed.
        """
        resources = self._resources or own_resources(self._folder)
        with connect_counts(table, resources) as opened, self._used(opened):
            yield opened

    @contextmanager
    def _used(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        self._running = connection
        try:
            if self._is_interrupted:
                raise ArgumentError("the query failed: it was interrupted")
            yield
        finally:
            self._running = None
