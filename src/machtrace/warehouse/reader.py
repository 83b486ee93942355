"""Read access to a warehouse, which any number of processes may have at a time.

See ``warehouse.warehouse`` for its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from machtrace.atomic_write import replace_file
from machtrace.errors import ArgumentError, FileAccessError
from machtrace.reports.analysis.explanation import FrameExplanation
from machtrace.reports.analysis.grouping_rules import parse_rules
from machtrace.warehouse.connections import Connections
from machtrace.warehouse.difference import GROUPS, Difference, difference
from machtrace.warehouse.export import BATCH_ROWS, export_format, exported
from machtrace.warehouse.forest import ALL, Forest, functions, read_forest
from machtrace.warehouse.function_tree import MAX_NODES, FunctionTree
from machtrace.warehouse.grouping.issues import Issue, IssueTable, numbered
from machtrace.warehouse.grouping.segment_groups import counts_of, members_of
from machtrace.warehouse.grouping.segment_stacks import SegmentStacks
from machtrace.warehouse.grouping.store import RULES, GroupStore, Trial
from machtrace.warehouse.ingest import Body, unframed
from machtrace.warehouse.log import read_record
from machtrace.warehouse.manifest import Manifest, Quarantined, SegmentRow
from machtrace.warehouse.names import WantedImage, all_wanted
from machtrace.warehouse.record_state import RecordState, record_state
from machtrace.warehouse.segment import FrameTables, Segment, numbers
from machtrace.warehouse.segment_files import read_frames, read_segment, read_table
from machtrace.warehouse.selection import (
    Chunk,
    parts_of,
    selected,
    used_segments,
    weights_of,
)
from machtrace.warehouse.spills import own_resources
from machtrace.warehouse.sql import (
    Parameters,
    RowLimits,
    Rows,
    SegmentFiles,
    checked,
    connect,
    matching_rows,
    query,
    translated_errors,
)
from machtrace.warehouse.triage import Decision, decisions_by_issue, resolve
from machtrace.warehouse.upkeep.compaction import Problem, check
from machtrace.warehouse.upkeep.left_over import segment_folder

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MANIFEST = "manifest.sqlite"


class WarehouseReader:
    """An open warehouse, without what changes it."""

    def __init__(self, folder: str | Path) -> None:
        """Open a warehouse.

        Raises:
            FileAccessError: the folder is no warehouse, or cannot be read.
            FormatError: its manifest is damaged, or a later version's.
        """
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            error = FileAccessError(str(folder), "not a warehouse")
            error.remedy = f"create one: machtrace warehouse init {folder}"
            raise error
        self._manifest = Manifest(self.folder / MANIFEST)
        self.connections = Connections(self.folder)

    def close(self) -> None:
        """Close it; what was received stays in the log."""
        self.connections.close()
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

    def received(self, record: str) -> Body | None:
        """Return the received bytes of a record; None if there is no such record, or none any more.

        Raises:
            FileAccessError, FormatError: the log cannot be read.
        """
        state = self.record_state(record)
        if state is None or state[0] is RecordState.REMOVED:
            return None
        name, _, offset = record.partition("-")
        return unframed(read_record(self.folder / "log" / f"{name}.log", int(offset)))[1]

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

    def frames_of(self, number: int) -> FrameTables:
        """Read the frames of a segment, with their images and names.

        Raises:
            FileAccessError, FormatError: it cannot be read, or is damaged.
        """
        files = self._files(number, self._manifest.names())
        return read_frames(files.folder, files.names)

    def connect(self, *, memory: str = "1GB") -> duckdb.DuckDBPyConnection:
        """Return a DuckDB connection with views over the segments; see ``warehouse.sql``.

        It reads these segments alone, also if others are added meanwhile.

        Raises:
            MissingExtraError: DuckDB is not installed.
        """
        return connect(self._every_file(), own_resources(self.folder, memory))

    def query(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of an SQL query over the views of :meth:`connect`.

        Args:
            text: one SELECT statement; ``FROM reports`` is one.
            parameters: the values of ``?`` in order, or of ``$name`` by name.

        Raises:
            ArgumentError: the query is invalid, or refers to what it must not read.
            MissingExtraError: DuckDB is not installed.
        """
        return self.first_rows(text, parameters=parameters).table

    def export(
        self,
        path: str | Path,
        text: str,
        parameters: Parameters | None = None,
        form: str = "",
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> int:
        """Write the rows of an SQL query to a file, which appears whole, and return their number.

        Args:
            path: the file.
            text: one SELECT statement; ``FROM reports`` is one.
            parameters: the values of ``?`` in order, or of ``$name`` by name.
            form: parquet, arrow, csv or jsonl; by the path's suffix if it is empty.
            on_bytes: is called with the number of bytes that were written.

        Raises:
            ArgumentError: the query is invalid, or the format is unknown.
            FileAccessError: the file cannot be written.
            MissingExtraError: DuckDB is not installed.
        """
        known = export_format(form or Path(path).suffix.lstrip("."))
        rows = 0

        def parts() -> Iterator[bytes]:
            nonlocal rows
            with translated_errors(), self.connect() as connection:
                relation = checked(connection, text, parameters)
                reader = relation.to_arrow_reader(BATCH_ROWS)
                for part, number in exported(reader, known):
                    rows += number
                    on_bytes(len(part))
                    yield part

        replace_file(str(path), parts())
        return rows

    def first_rows(
        self, text: str, limits: RowLimits | None = None, *, parameters: Parameters | None = None
    ) -> Rows:
        """Return the rows of an SQL query up to a limit, and whether these are all.

        Raises:
            ArgumentError: the query is invalid, was interrupted, or refers to what it must not
                read.
            MemoryLimitError: it needs more memory than it may use.
            MissingExtraError: DuckDB is not installed.
        """
        with self.connections.to_segments(self._every_file()) as connection:
            return query(connection, text, limits, parameters)

    def interrupt(self) -> None:
        """End the query that runs in another thread, and refuse all that follow."""
        self.connections.interrupt()

    def flame(self, where: str = "true", most: int = ALL) -> FunctionTree:
        """Return the functions of stored stacks, with the weights of those.

        Args:
            where: an SQL condition over the view ``stacks_of_reports``.
            most: how many nodes stay, the heaviest; what is below others is added to these.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        (chunks,) = self._selected([where])
        forest = self._forest(chunks)
        return functions(forest, weights_of(forest, chunks), most)[0]

    def stacks(self, where: str = "true", part: str = "0") -> tuple[Forest, list[Chunk]]:
        """Return the stacks that a condition selects, and the tree of which they are nodes.

        Args:
            where: an SQL condition over the view ``stacks_of_reports``.
            part: an expression over the columns of ``reports``: the number of each stack's part.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        names = self._manifest.names()
        files = {row.id: self._files(row.id, names) for row in self.segments}
        with self.connections.to_segments(self._every_file()) as connection:
            chunks = selected(connection, files, where, part=part)
        return self._forest(chunks), chunks

    def diff(self, before: str, after: str, most: int = MAX_NODES) -> Difference:
        """Return the difference of two sets of stacks, with intervals over devices.

        Args:
            before: an SQL condition over the view ``stacks_of_reports``.
            after: the second side's.
            most: how many nodes stay, the heaviest; what is below others is added to these.

        Raises:
            ArgumentError: a condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        first, second = self._selected([before, after], GROUPS)
        chunks = first + second
        forest = self._forest(chunks)
        tree, nodes = functions(forest, weights_of(forest, chunks), most, wants_nodes=True)
        return difference(tree, parts_of(forest, nodes, chunks, len(tree.tree), 2 * GROUPS))

    def issues(self, where: str = "true") -> list[Issue]:
        """Return the issues of stored reports, the most frequent first.

        Args:
            where: an SQL condition over the columns of ``reports``.

        Raises:
            ArgumentError: the condition is invalid.
            MissingExtraError: DuckDB is not installed.
        """
        issues = self.groups.table()
        if where.strip() in ("", "true") or issues.counts is None:
            return list(issues.every)
        with self.connections.to_counts(issues.counts) as connection:
            chosen = matching_rows(connection, where, issues.counts.num_rows)
        if chosen is not None:
            return issues.issues([issues.counts.filter(chosen)])
        return issues.issues([*self._counts(issues, where)])

    def try_rules(self, text: str | None) -> Trial:
        """Return how issues would change by other grouping rules; nothing is stored.

        Args:
            text: the rules; None for none.

        Raises:
            RulesError: they are invalid.
            FileAccessError, FormatError: a segment cannot be read, or is damaged.
        """
        return self.groups.trial(None if text is None else parse_rules(text, RULES))

    def explain(self, issue: str) -> tuple[Issue, tuple[FrameExplanation, ...]]:
        """Return an issue, and for each frame of its most frequent stack why it counts or not.

        Args:
            issue: its identifier, or an earlier one.

        Raises:
            ArgumentError: no issue has this identifier.
            FileAccessError, FormatError: a segment cannot be read, or is damaged.
        """
        groups = self.groups
        present = self.present_issue(issue)
        chosen = next((each for each in groups.table().every if each.id == present), None)
        if chosen is None:
            raise ArgumentError(
                f"no issue is called {issue}", remedy="list them: machtrace warehouse groups FOLDER"
            )
        most = chosen.variants[0]
        stacks = SegmentStacks(self.stacks_of(most.segment), groups.rules)
        return chosen, stacks.explained(most.node, chosen.kind, most.cause)

    def decisions(self) -> dict[str, list[Decision]]:
        """Return the decisions about issues, by present identifier, the one that holds first."""
        return decisions_by_issue(self._manifest.decisions(), self._manifest.aliases())

    def present_issue(self, issue: str) -> str:
        """Return the present identifier of an issue, by that or an earlier one."""
        return resolve(issue, self._manifest.aliases())

    def earlier_issues(self, issue: str) -> list[str]:
        """Return the earlier identifiers of an issue."""
        aliases = self._manifest.aliases()
        return sorted(old for old in aliases if resolve(old, aliases) == issue)

    def issues_of_stack(self, stack: bytes) -> list[str]:
        """Return the issues of which a stack is a variant, one for each kind of report."""
        return self.groups.issues_of_stack(stack)

    def wanted(self) -> list[WantedImage]:
        """Return the images whose symbols would name more stored frames, most frames first."""
        return all_wanted(self.frames_of(row.id) for row in self.segments)

    def check(self) -> Iterator[Problem]:
        """Yield what is damaged: segments, and logs that are shorter than what was read."""
        return check(self.folder, self._manifest, self.segment)

    # --- inside ---

    def _every_file(self) -> list[SegmentFiles]:
        names = self._manifest.names()
        return [self._files(row.id, names) for row in self.segments]

    def _selected(self, conditions: Sequence[str], groups: int = 1) -> list[list[Chunk]]:
        names = self._manifest.names()
        files = {row.id: self._files(row.id, names) for row in self.segments}
        with self.connections.to_segments(self._every_file()) as connection:
            return [
                selected(connection, files, where, groups=groups, first=number * groups)
                for number, where in enumerate(conditions)
            ]

    def _forest(self, chunks: Sequence[Chunk]) -> Forest:
        names = self._manifest.names()
        return read_forest([self._files(number, names) for number in used_segments(chunks)])

    @property
    def groups(self) -> GroupStore:
        """The issues of the segments."""
        return GroupStore(self.folder, self._manifest, self.segment)

    def _counts(self, issues: IssueTable, where: str) -> Iterator[pa.Table]:
        """Yield the counts of the reports that a condition selects."""
        rows = self.query(f"SELECT segment, report FROM reports WHERE ({where}\n)")  # noqa: S608 - queries only read
        of_segment, report = numbers(rows, "segment"), numbers(rows, "report")
        for number, groups in issues.groups.items():
            folder = self.segment_folder(number)
            reports = read_table(folder / "reports.parquet", "reports")
            is_chosen = np.zeros(reports.num_rows, np.bool_)
            is_chosen[report[of_segment == number]] = True
            if is_chosen.any():
                occurrences = read_table(folder / "occurrences.parquet", "occurrences")
                members = members_of(reports, occurrences, self.groups.rules).of(is_chosen)
                own = numbers(groups.variants, "issue").astype(np.int64)
                kinds = groups.issues["kind"].to_pylist()
                yield numbered(counts_of(reports, members, own, kinds), issues.number_of(number))

    def _files(self, number: int, names: Mapping[int, str]) -> SegmentFiles:
        folder = self.segment_folder(number)
        later = names.get(number)
        own = folder / "names.parquet"
        return SegmentFiles(number, folder, own if later is None else self.folder / "names" / later)
