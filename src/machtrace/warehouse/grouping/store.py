"""The issues of all segments: computed once for a segment and its names, stored beside it.

Files of issues are derived from segments: one that is lost or damaged is computed again. When a
segment gets names, or is replaced, only its own issues are computed; where all variants of an issue
have moved, its identifier becomes an alias.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from machtrace.atomic_write import replace_file
from machtrace.errors import FileAccessError
from machtrace.reports.analysis.grouping_rules import GroupingRules, parse_rules
from machtrace.warehouse.grouping.issues import IssueTable
from machtrace.warehouse.grouping.segment_groups import (
    COUNTS,
    ISSUES,
    VARIANTS,
    IssueFacts,
    SegmentGroups,
    groups_of,
)
from machtrace.warehouse.manifest import GroupRow, Manifest
from machtrace.warehouse.segment import Segment
from machtrace.warehouse.triage import VariantKey, moved_issues

_SCHEMAS = {"issues": ISSUES, "variants": VARIANTS, "counts": COUNTS}
VERSION = 1
"""That of fingerprints; another one groups all reports again."""
RULES = "grouping.rules"
"""The file with the rules of a warehouse, if it has any."""

_CACHED = 256 << 20
"""Bytes of the issues that stay in memory."""
_last: dict[tuple[object, ...], IssueTable] = {}
"""The issues that were read last, by what they were read of."""

ReadSegment = Callable[[int], Segment]


class Trial(NamedTuple):
    """How issues would change by other rules."""

    before: int
    """Number of issues now."""
    after: int
    merged: dict[str, list[str]]
    """By new issue: the present ones that it joins."""
    split: dict[str, list[str]]
    """By present issue: the new ones that it becomes."""
    titles: dict[str, str]
    """By issue."""


class _Current(NamedTuple):
    """The groups of all segments."""

    groups: dict[int, SegmentGroups]
    computed: set[int]
    """Segments whose stored groups are not of now."""


class GroupStore:
    """The groups of a warehouse.

    Args:
        folder: the warehouse's.
        manifest: its manifest.
        read: returns a segment, by its number.
    """

    def __init__(self, folder: Path, manifest: Manifest, read: ReadSegment) -> None:
        self._folder = folder / "groups"
        self._file = folder / RULES
        self._manifest = manifest
        self._read = read

    @cached_property
    def rules(self) -> GroupingRules | None:
        """The rules of the warehouse; None if it has none.

        Raises:
            FileAccessError, RulesError: they cannot be read, or are invalid.
        """
        try:
            return parse_rules(self._file.read_text("utf-8"), self._file.name)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise FileAccessError(str(self._file), str(error)) from None

    def set_rules(self, text: str | None) -> None:
        """Replace the rules; :meth:`update` groups by them.

        Args:
            text: None for no rules.

        Raises:
            FileAccessError: they cannot be stored.
        """
        if text is None:
            self._file.unlink(missing_ok=True)
        else:
            replace_file(str(self._file), [text.encode()])
        self.__dict__.pop("rules", None)

    def trial(self, rules: GroupingRules | None) -> Trial:
        """Return how issues would change by other rules; nothing is stored.

        Raises:
            FileAccessError, FormatError: a segment cannot be read, or is damaged.
        """
        before = self._current().groups
        other = GroupStore(self._folder.parent, self._manifest, self._read)
        other.__dict__["rules"] = rules
        after = other.regrouped()
        return _compared(IssueTable(before), IssueTable(after))

    def regrouped(self) -> dict[int, SegmentGroups]:
        """Return the groups of all segments, computed from their stacks."""
        every = [row.id for row in self._manifest.segments()]
        groups = {number: groups_of(self._read(number), {}, self.rules) for number in every}
        for number, better in _better(groups, set(every)).items():
            groups[number] = groups_of(self._read(number), better, self.rules)
        return groups

    def table(self) -> IssueTable:
        """Return the issues of all segments; those that are not stored are computed.

        Raises:
            FileAccessError, FormatError: a segment cannot be read, or is damaged.
        """
        rows = self._manifest.groups()
        names = self._manifest.names()
        key = (
            str(self._folder),
            self._identity,
            *(
                (row.id, names.get(row.id, ""), rows.get(row.id))
                for row in self._manifest.segments()
            ),
        )
        cached = _last.get(key)
        if cached is None:
            cached = IssueTable(self._current().groups)
            _last.clear()
            if cached.size <= _CACHED:
                _last[key] = cached
        return cached

    def update(self) -> dict[str, str]:
        """Store the issues of now, and return the aliases of earlier ones.

        Raises:
            FileAccessError: they cannot be stored, or a segment cannot be read.
        """
        stored = self._manifest.groups()
        current = self._current()
        gone = [number for number in stored if number not in current.groups]
        if not current.computed and not gone:
            return self._manifest.aliases()
        replaced = [*gone, *(each for each in current.computed if each in stored)]
        before = self._manifest.variants()
        for number in replaced:
            earlier = self._load(stored[number])
            if earlier is not None:
                before |= _issues_of_variants(earlier)
        now: dict[VariantKey, str] = {}
        reports: dict[VariantKey, int] = {}
        changed = self._folders(current.computed, current.groups)
        for number in current.computed:
            groups = current.groups[number]
            of_variants = _issues_of_variants(groups)
            now |= of_variants
            counts = groups.variants["reports"].to_pylist()
            for key, count in zip(of_variants, counts, strict=True):
                reports[key] = reports.get(key, 0) + count
        live = set(IssueTable(current.groups).ids)
        moves = _moves(before, now)
        keys = [("", at.to_bytes(8, "big"), "") for at in range(len(moves))]
        aliases = moved_issues(
            {key: move.before for key, move in zip(keys, moves, strict=True)},
            {key: now[move.variant] for key, move in zip(keys, moves, strict=True)},
            {key: reports[move.variant] for key, move in zip(keys, moves, strict=True)},
            self._manifest.aliases(),
            live,
        )
        with self._manifest.transaction() as database:
            database.execute("DELETE FROM variant")
            database.executemany(
                "DELETE FROM grouped WHERE segment = ?", ((each,) for each in gone)
            )
            database.executemany("INSERT OR REPLACE INTO grouped VALUES (?, ?, ?, ?)", changed)
            database.execute("DELETE FROM issue")
            database.executemany("INSERT INTO issue VALUES (?)", ((each,) for each in live))
            database.execute("DELETE FROM alias")
            database.executemany("INSERT INTO alias VALUES (?, ?)", aliases.items())
        return aliases

    def issues_of_stack(self, stack: bytes) -> list[str]:
        """Return the issues of which a stack is a variant."""
        import pyarrow.compute as pc

        ids: set[str] = set()
        for groups in self._current().groups.values():
            rows = groups.variants.filter(pc.equal(groups.variants["stack"], stack))
            ids.update(groups.issues["id"][each].as_py() for each in rows["issue"].to_pylist())
        return sorted(ids)

    # --- inside ---

    @property
    def _identity(self) -> str:
        """The version of fingerprints, and the rules."""
        return str(VERSION) if self.rules is None else f"{VERSION}-{self.rules.digest}"

    def _current(self) -> _Current:
        names, stored = self._manifest.names(), self._manifest.groups()
        groups: dict[int, SegmentGroups] = {}
        computed: set[int] = set()
        for row in self._manifest.segments():
            known = stored.get(row.id)
            own = None
            if known is not None and (known.names, known.rules) == (
                names.get(row.id, ""),
                self._identity,
            ):
                own = self._load(known)
            if own is None:
                own = groups_of(self._read(row.id), {}, self.rules)
                computed.add(row.id)
            groups[row.id] = own
        for number, better in _better(groups, computed).items():
            groups[number] = groups_of(self._read(number), better, self.rules)
            computed.add(number)
        return _Current(groups, computed)

    def _load(self, row: GroupRow) -> SegmentGroups | None:
        folder = self._folder / row.file
        try:
            tables = [
                pq.read_table(folder / f"{name}.parquet", partitioning=None).cast(schema)
                for name, schema in _SCHEMAS.items()
            ]
        except (OSError, pa.ArrowException, ValueError):
            return None
        return SegmentGroups(*(table.unify_dictionaries().combine_chunks() for table in tables))

    def _folders(
        self, numbers: Iterable[int], groups: Mapping[int, SegmentGroups]
    ) -> list[tuple[int, str, str, str]]:
        """Write groups, and return their rows of the manifest."""
        names, rows = self._manifest.names(), []
        for number in numbers:
            name = f"{number:08}-{time.time_ns()}"
            folder = self._folder / name
            try:
                folder.mkdir(parents=True)
                for table, each in zip(groups[number], _SCHEMAS, strict=True):
                    pq.write_table(table, folder / f"{each}.parquet", compression="zstd")
            except (OSError, pa.ArrowException) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise FileAccessError(str(folder), str(error)) from None
            rows.append((number, name, names.get(number, ""), self._identity))
        return rows


class _Move(NamedTuple):
    """A variant of now, and an issue that it was of."""

    before: str
    variant: VariantKey


def _moves(before: Mapping[VariantKey, str], now: Mapping[VariantKey, str]) -> list[_Move]:
    """Return for each variant of before those of now; by its stack if its cause is another one."""
    by_stack: dict[tuple[str, bytes], list[VariantKey]] = {}
    for kind, stack, cause in now:
        by_stack.setdefault((kind, stack), []).append((kind, stack, cause))
    moves = []
    for key, issue in before.items():
        same = [key] if key in now else by_stack.get(key[:2], [])
        moves += [_Move(issue, variant) for variant in same]
    return moves


def _compared(before: IssueTable, after: IssueTable) -> Trial:
    titles = {issue.id: issue.title for table in (before, after) for issue in table.every}
    old, new = _by_stack(before), _by_stack(after)
    joined: dict[str, set[str]] = {}
    split: dict[str, set[str]] = {}
    for key in old.keys() & new.keys():
        for was, now in product(old[key], new[key]):
            joined.setdefault(now, set()).add(was)
            split.setdefault(was, set()).add(now)
    return Trial(
        before=len(before.ids),
        after=len(after.ids),
        merged={now: sorted(each) for now, each in sorted(joined.items()) if len(each) > 1},
        split={was: sorted(each) for was, each in sorted(split.items()) if len(each) > 1},
        titles=titles,
    )


def _by_stack(table: IssueTable) -> dict[tuple[str, bytes], set[str]]:
    """Return the issues of each stack and kind of report."""
    made: dict[tuple[str, bytes], set[str]] = {}
    for groups in table.groups.values():
        for (kind, stack, _), issue in _issues_of_variants(groups).items():
            made.setdefault((kind, stack), set()).add(issue)
    return made


def _issues_of_variants(groups: SegmentGroups) -> dict[VariantKey, str]:
    ids = groups.issues["id"].to_pylist()
    issues = groups.variants["issue"].to_pylist()
    return {key: ids[issue] for key, issue in zip(_keys(groups.variants), issues, strict=True)}


def _better(
    groups: Mapping[int, SegmentGroups], computed: set[int]
) -> dict[int, dict[VariantKey, IssueFacts]]:
    """Return by segment the issues of variants whose frames have names in other segments only."""
    if not computed or len(groups) < 2:  # noqa: PLR2004 - a segment alone knows no better
        return {}
    lacking: dict[VariantKey, list[int]] = {}
    exact: dict[VariantKey, IssueFacts] = {}
    for number, each in groups.items():
        is_sensitive = each.variants["is_build_sensitive"]
        for key in _keys(each.variants.filter(is_sensitive)):
            lacking.setdefault(key, []).append(number)
    if not lacking:
        return {}
    import pyarrow.compute as pc

    for each in groups.values():
        rows = each.variants.filter(pc.invert(each.variants["is_build_sensitive"]))
        facts = each.issues.to_pylist()
        for key, issue in zip(_keys(rows), rows["issue"].to_pylist(), strict=True):
            if key in lacking:
                made = IssueFacts(**facts[issue])
                exact[key] = min(exact.get(key, made), made)
    better: dict[int, dict[VariantKey, IssueFacts]] = {}
    for key, facts_of in exact.items():
        for number in lacking[key]:
            better.setdefault(number, {})[key] = facts_of
    return {number: each for number, each in better.items() if _differs(groups[number], each)}


def _differs(groups: SegmentGroups, better: Mapping[VariantKey, IssueFacts]) -> bool:
    known = _issues_of_variants(groups)
    return any(known[key] != facts.id for key, facts in better.items())


def _keys(variants: pa.Table) -> list[VariantKey]:
    columns = (variants[name].to_pylist() for name in ("kind", "stack", "cause"))
    return list(zip(*columns, strict=True))
