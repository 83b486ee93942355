"""The manifest of a warehouse: which segments it has, which reports, and how far logs are read.

A SQLite database. What is not in it does not exist: a segment's folder without a row is left over
from a writer that was killed, and is removed. All changes that belong together are one transaction,
on the disk before it is reported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FileAccessError, FormatError
from machtrace.warehouse.triage import Decision, State, VariantKey

VERSION = 3
_REMOVAL = """
CREATE TABLE removal (
    log TEXT NOT NULL, offset INTEGER NOT NULL, PRIMARY KEY (log, offset)
) STRICT, WITHOUT ROWID;
"""
_GROUPS = """
CREATE TABLE grouped (
    segment INTEGER PRIMARY KEY, file TEXT NOT NULL, names TEXT NOT NULL, rules TEXT NOT NULL
) STRICT;
CREATE TABLE issue (
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
"""
WHOLE_LOG = -1
"""The ``offset`` of a removal of all records of a log."""
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE segment (
    id INTEGER PRIMARY KEY AUTOINCREMENT, reports INTEGER NOT NULL, occurrences INTEGER NOT NULL,
    nodes INTEGER NOT NULL, bytes INTEGER NOT NULL, retired INTEGER
) STRICT;
CREATE TABLE report (
    key BLOB PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE log (
    name TEXT PRIMARY KEY, read INTEGER NOT NULL
) STRICT;
CREATE TABLE quarantine (
    log TEXT NOT NULL, offset INTEGER NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (log, offset)
) STRICT;
CREATE TABLE names (
    segment INTEGER PRIMARY KEY, file TEXT NOT NULL
) STRICT;
CREATE TABLE variant (
    kind TEXT NOT NULL, stack BLOB NOT NULL, issue TEXT NOT NULL, PRIMARY KEY (kind, stack)
) STRICT, WITHOUT ROWID;
CREATE TABLE alias (
    old TEXT PRIMARY KEY, new TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE decision (
    issue TEXT NOT NULL, state TEXT NOT NULL, note TEXT NOT NULL, changed INTEGER NOT NULL,
    PRIMARY KEY (issue, changed)
) STRICT, WITHOUT ROWID;
{_REMOVAL}
{_GROUPS}
"""
"""``log.read`` is the offset up to which a log's records are in segments or in quarantine.
``variant`` has what a warehouse of version 2 knew of issues, until they are grouped again."""
_LATER = {1: _REMOVAL, 2: _GROUPS}
"""Tables that a version lacks of the next one."""


class SegmentRow(NamedTuple):
    """A segment, and its size."""

    id: int
    reports: int
    occurrences: int
    nodes: int
    bytes: int


class Quarantined(NamedTuple):
    """A record that could not be read."""

    log: str
    offset: int
    name: str
    reason: str


class GroupRow(NamedTuple):
    """The stored issues of a segment."""

    file: str
    names: str
    """The file of its names, by which they were grouped; empty for the segment's own."""
    rules: str


class Manifest:
    """An open manifest."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open or create a manifest.

        Raises:
            FileAccessError: the file cannot be opened.
            FormatError: it is no manifest, or a later version's.
        """
        self._path = path
        try:
            mode = "rwc" if is_new else "rw"
            self._database = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if is_new and version == 0:
                self._database.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
                version = VERSION
            while version in _LATER:
                self._extend(version)
                version = self._database.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise FileAccessError(str(path), str(error)) from None
        except sqlite3.DatabaseError as error:
            raise FormatError(f"not a manifest: {error}", source=str(path), offset=0) from None
        if version != VERSION:
            raise FormatError(
                f"a manifest of version {version}, not {VERSION}", source=str(path), offset=0
            )

    def _extend(self, version: int) -> None:
        """Make a manifest one of the next version, unless another process has."""
        self._database.execute("BEGIN IMMEDIATE")
        if self._database.execute("PRAGMA user_version").fetchone()[0] == version:
            for statement in filter(str.strip, _LATER[version].split(";")):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {version + 1}")
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make changes at once or not at all.

        Raises:
            FileAccessError: they cannot be stored.
        """
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise FileAccessError(str(self._path), str(error)) from None

    def segments(self) -> list[SegmentRow]:
        """Return the segments, the oldest first."""
        rows = self._database.execute(
            "SELECT id, reports, occurrences, nodes, bytes FROM segment "
            "WHERE retired IS NULL ORDER BY id"
        )
        return [SegmentRow(*row) for row in rows]

    def all_segments(self) -> set[int]:
        """Return the numbers of segments, also of those that were replaced and may be in use."""
        return {row[0] for row in self._database.execute("SELECT id FROM segment")}

    def next_segment(self) -> int:
        """Reserve the number of a new segment."""
        with self.transaction() as database:
            database.execute(
                "INSERT INTO segment (reports, occurrences, nodes, bytes, retired) "
                "VALUES (0, 0, 0, 0, 0)"
            )
            return int(database.execute("SELECT last_insert_rowid()").fetchone()[0])

    def known(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return those of some keys whose reports are in segments."""
        wanted = list(keys)
        known: set[bytes] = set()
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            rows = self._database.execute(f"SELECT key FROM report WHERE key IN ({marks})", part)  # noqa: S608 - question marks
            known.update(row[0] for row in rows)
        return known

    def logs(self) -> dict[str, int]:
        """Return by log the offset up to which it was read."""
        return dict(self._database.execute("SELECT name, read FROM log"))

    def removals(self) -> dict[str, set[int]]:
        """Return by log the records whose bytes must not be there; -1: the log's as a whole."""
        removals: dict[str, set[int]] = {}
        for log, offset in self._database.execute("SELECT log, offset FROM removal"):
            removals.setdefault(log, set()).add(offset)
        return removals

    def names(self) -> dict[int, str]:
        """Return by segment the file of its names, if there are later ones than its own."""
        return dict(self._database.execute("SELECT segment, file FROM names"))

    def variants(self) -> dict[VariantKey, str]:
        """Return the issue of each variant that a warehouse of version 2 knew."""
        rows = self._database.execute("SELECT kind, stack, issue FROM variant")
        return {(kind, stack, ""): issue for kind, stack, issue in rows}

    def groups(self) -> dict[int, GroupRow]:
        """Return the stored issues, by segment."""
        rows = self._database.execute("SELECT segment, file, names, rules FROM grouped")
        return {segment: GroupRow(*row) for segment, *row in rows}

    def has_issue(self, issue: str) -> bool:
        """Return whether there is an issue of this identifier."""
        rows = self._database.execute(
            "SELECT 1 FROM issue WHERE id = ? UNION SELECT 1 FROM variant WHERE issue = ?",
            (issue, issue),
        )
        return rows.fetchone() is not None

    def aliases(self) -> dict[str, str]:
        """Return the present identifiers of issues, by earlier ones."""
        return dict(self._database.execute("SELECT old, new FROM alias"))

    def decisions(self) -> list[Decision]:
        """Return all decisions about issues."""
        rows = self._database.execute("SELECT issue, state, note, changed FROM decision")
        return [
            Decision(issue, State(state), note, changed) for issue, state, note, changed in rows
        ]

    def reasons(self, log: str, offset: int) -> tuple[str, ...]:
        """Return why parts of a record are in quarantine."""
        rows = self._database.execute(
            "SELECT reason FROM quarantine WHERE log = ? AND offset = ?", (log, offset)
        )
        return tuple(row[0] for row in rows)

    def quarantined(self) -> list[Quarantined]:
        """Return the records that could not be read."""
        rows = self._database.execute(
            "SELECT log, offset, name, reason FROM quarantine ORDER BY log, offset"
        )
        return [Quarantined(*row) for row in rows]
