"""Issues: stored reports whose subjects are the same problem, each with its variants.

An issue is identified by the kind of its reports and the fingerprint of what they are about, a
variant by the key of its stack. Counts are added up from those of the segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from machtrace.frozen import dataclass
from machtrace.reports.analysis.fingerprint import Fingerprint
from machtrace.warehouse.grouping.distinct import counts, smallest
from machtrace.warehouse.grouping.segment_groups import (
    Ids,
    SegmentGroups,
    fingerprint_of,
)
from machtrace.warehouse.segment import numbers

if TYPE_CHECKING:
    import numpy.typing as npt


class Variant(NamedTuple):
    """A distinct stack of an issue."""

    stack: bytes
    """Its key."""
    reports: int
    segment: int
    node: int
    """The node of the stack, in one of the segments that have it."""
    cause: str = ""
    """The kind of what a hang waited for, or the exception that rules may match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """Reports of one problem."""

    id: str
    """The fingerprint's hash, and the kind."""
    kind: str
    title: str
    """The function that it is about, as people read it."""
    is_build_sensitive: bool
    """Whether another build of the same source is another issue, since names are missing."""
    exceptions: tuple[str, ...]
    reports: int
    devices: int
    """Devices that state an identifier; estimated beyond 512."""
    builds: tuple[str, ...]
    first: int
    """The earliest report's time, in ns since 1970."""
    last: int
    facts: str = field(repr=False)
    """The fingerprint, as JSON."""
    number: int = field(repr=False)
    table: IssueTable = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint that identifies it."""
        return fingerprint_of(self.facts)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Its distinct stacks, the most frequent first."""
        return self.table.variants(self.number)


class IssueTable:
    """The issues of several segments."""

    def __init__(self, groups: Mapping[int, SegmentGroups]) -> None:
        """Add up segments.

        Args:
            groups: by the number of the segment.
        """
        self.groups = groups
        self._numbers: dict[str, int] = {}
        self._facts: list[tuple[str, str, str, bool, str]] = []
        parts, self._numbers_of = [], dict[int, Ids]()
        for segment, each in groups.items():
            rows = each.issues.to_pylist()
            of_segment = np.zeros(len(rows), np.int64)
            for at, row in enumerate(rows):
                of_segment[at] = self._numbers.setdefault(row["id"], len(self._numbers))
                if of_segment[at] == len(self._facts):
                    self._facts.append(tuple(row.values()))
            self._numbers_of[segment] = of_segment
            parts.append(numbered(each.counts, of_segment))
        self.counts = pa.concat_tables(parts).unify_dictionaries() if parts else None
        """Counts of all segments, by issue: see ``segment_groups.COUNTS``."""

    @property
    def ids(self) -> list[str]:
        """The identifiers of all issues."""
        return list(self._numbers)

    @property
    def size(self) -> int:
        """The bytes of its tables."""
        tables = [table for group in self.groups.values() for table in group]
        own = 0 if self.counts is None else int(self.counts.nbytes)
        return own + sum(int(table.nbytes) for table in tables)

    @cached_property
    def every(self) -> list[Issue]:
        """The issues of all reports, the most frequent first."""
        return [] if self.counts is None else self.issues([self.counts])

    def issues(self, counts_of: Sequence[pa.Table]) -> list[Issue]:
        """Return the issues, the most frequent first.

        Args:
            counts_of: the counts of some reports, by issue.
        """
        if not sum(table.num_rows for table in counts_of):
            return []
        every = pa.concat_tables(counts_of).unify_dictionaries().combine_chunks()
        present, issue = np.unique(numbers(every, "issue"), return_inverse=True)
        size = len(present)
        reports = np.zeros(size, np.int64)
        np.add.at(reports, issue, numbers(every, "reports"))
        first = np.full(size, np.iinfo(np.int64).max)
        last = np.full(size, np.iinfo(np.int64).min)
        np.minimum.at(first, issue, numbers(every, "first"))
        np.maximum.at(last, issue, numbers(every, "last"))
        builds = _texts_by(every, "build", issue, size)
        exceptions = _texts_by(every, "exception", issue, size)
        devices = _devices(every["devices"].combine_chunks(), issue, size)
        made = []
        for at, number in enumerate(present.tolist()):
            identity, kind, title, is_build_sensitive, facts = self._facts[number]
            made.append(
                Issue(
                    id=identity,
                    kind=kind,
                    title=title,
                    is_build_sensitive=is_build_sensitive,
                    exceptions=exceptions[at],
                    reports=int(reports[at]),
                    devices=int(devices[at]),
                    builds=builds[at],
                    first=int(first[at]),
                    last=int(last[at]),
                    facts=facts,
                    number=number,
                    table=self,
                )
            )
        return sorted(made, key=lambda each: (-each.reports, each.id))

    def number_of(self, segment: int) -> Ids:
        """Return by issue of a segment its number here."""
        return self._numbers_of[segment]

    def variants(self, issue: int) -> tuple[Variant, ...]:
        """Return the variants of an issue, the most frequent first."""
        variants: dict[bytes, Variant] = {}
        order, bounds = self._by_issue
        for row in order[bounds[issue] : bounds[issue + 1]].tolist():
            segment = int(self._of_segment[row])
            own = self.groups[segment].variants
            at = row - self._begins[segment]
            stack = own["stack"][at].as_py()
            known = variants.get(stack)
            reports = own["reports"][at].as_py() + (0 if known is None else known.reports)
            node, cause = own["node"][at].as_py(), own["cause"][at].as_py()
            variants[stack] = Variant(stack, reports, segment, node, cause)
        return tuple(sorted(variants.values(), key=lambda each: (-each.reports, each.stack)))

    @cached_property
    def _begins(self) -> dict[int, int]:
        sizes = [group.variants.num_rows for group in self.groups.values()]
        begins = np.cumsum([0, *sizes]).tolist()
        return dict(zip(self.groups, begins, strict=False))

    @cached_property
    def _of_segment(self) -> Ids:
        sizes = [group.variants.num_rows for group in self.groups.values()]
        return np.repeat(np.array(list(self.groups), np.int64), sizes)

    @cached_property
    def _by_issue(self) -> tuple[Ids, npt.NDArray[np.int64]]:
        issue = np.concatenate(
            [
                self._numbers_of[segment][numbers(each.variants, "issue")]
                for segment, each in self.groups.items()
            ]
            or [np.zeros(0, np.int64)]
        )
        order = np.argsort(issue, kind="stable")
        return order, np.searchsorted(issue[order], np.arange(len(self._numbers) + 1))


def numbered(counts_of: pa.Table, number: Ids) -> pa.Table:
    """Return counts with other numbers of issues."""
    issue = number[numbers(counts_of, "issue")] if counts_of.num_rows else np.zeros(0, np.int64)
    column = pa.array(issue, pa.int32())
    return counts_of.set_column(0, counts_of.schema.field(0), column)


def _texts_by(table: pa.Table, name: str, issue: Ids, size: int) -> list[tuple[str, ...]]:
    """Return by issue the distinct texts of a column, without empty ones."""
    column = table[name].combine_chunks()
    values = column.dictionary.to_pylist()
    codes = column.indices.to_numpy(zero_copy_only=False)
    made: list[list[str]] = [[] for _ in range(size)]
    for pair in np.unique(issue * max(len(values), 1) + codes).tolist():
        at, code = divmod(pair, max(len(values), 1))
        if values[code]:
            made[at].append(values[code])
    return [tuple(sorted(each)) for each in made]


def _devices(column: pa.ListArray, issue: Ids, size: int) -> Ids:
    lengths = np.diff(column.offsets.to_numpy())
    owner = np.repeat(issue, lengths)
    return counts(*smallest(owner, column.flatten().to_numpy()), size)
