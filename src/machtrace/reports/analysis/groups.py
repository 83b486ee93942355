"""Groups of reports of the same problem, and the differences between two sets.

Sets of profiles are compared by function, sets of reports by group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportKind
from machtrace.reports.analysis.fingerprint import Fingerprint, incident_fingerprint
from machtrace.reports.analysis.function_costs import FunctionCosts, FunctionKey
from machtrace.reports.analysis.subject_stack import SubjectKind, subject_stack
from machtrace.reports.images import uuid_of

Counts = tuple[tuple[str, int], ...]
"""Labels with their counts, most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Reports whose stacks share a fingerprint."""

    fingerprint: Fingerprint
    """The first report's; all have the same hash."""
    subject: SubjectKind | None
    """Which stack of the first report it covers; None if it has none."""
    reports: tuple[int, ...]
    """Indices into the grouped sequence, ascending."""
    count: int
    """The number of incidents: the .ips and the text of one count once."""
    exceptions: Counts
    """Exception types, or what else ended the processes."""
    versions: Counts
    """The programs' versions, with builds."""
    systems: Counts
    models: Counts


def report_groups(reports: Sequence[Report]) -> tuple[ReportGroup, ...]:
    """Return the groups of ``reports``: largest first, equal ones in order of appearance."""
    members: dict[str, list[int]] = {}
    first: dict[str, tuple[Fingerprint, SubjectKind | None]] = {}
    incidents: dict[str, str] = {}
    repeated: set[int] = set()
    for index, report in enumerate(reports):
        incident = _incident(report)
        if incident is not None and incident in incidents:
            repeated.add(index)
            members[incidents[incident]].append(index)
            continue
        subject = subject_stack(report)
        identity = incident_fingerprint(report, () if subject is None else subject.frames)
        members.setdefault(identity.hash, []).append(index)
        first.setdefault(identity.hash, (identity, None if subject is None else subject.kind))
        if incident is not None:
            incidents[incident] = identity.hash
    groups = (
        _group(*first[key], indices, [reports[one] for one in indices if one not in repeated])
        for key, indices in members.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.count))


_OF_APPLE = frozenset({ReportKind.APPLE_IPS, ReportKind.APPLE_CRASH})


def _incident(report: Report) -> str | None:
    """Return the identifier that all of Apple's files of one incident have; None without any."""
    identifier = uuid_of(report.incident.id) if report.kind in _OF_APPLE else None
    return None if identifier is None else str(identifier)


def _group(
    identity: Fingerprint, subject: SubjectKind | None, indices: list[int], reports: list[Report]
) -> ReportGroup:
    return ReportGroup(
        fingerprint=identity,
        subject=subject,
        reports=tuple(indices),
        count=len(reports),
        exceptions=_counts(exception_label(report) for report in reports),
        versions=_counts(version_label(report) for report in reports),
        systems=_counts(report.system.os_name or "" for report in reports),
        models=_counts(report.system.model or "" for report in reports),
    )


def _counts(labels: Iterable[str]) -> Counts:
    return tuple(Counter(label for label in labels if label).most_common())


def exception_label(report: Report) -> str:
    """Return in short what happened to the process; empty if the report does not state it."""
    exception, thrown = report.exception, report.language_exception
    parts = [] if exception is None else [exception.type or exception.signal or ""]
    if thrown is not None and thrown.name:
        parts.append(thrown.name)
    label = " / ".join(dict.fromkeys(part for part in parts if part))
    if not label and report.termination is not None:
        code = "" if report.termination.code is None else f" {report.termination.code}"
        label = (report.termination.namespace or "") + code
    return label or report.incident.kind or ""


def version_label(report: Report) -> str:
    """Return the program's version and build."""
    version, build = report.process.version or "", report.process.build or ""
    return f"{version} ({build})" if version and build and build != version else version or build


class FunctionDifference(NamedTuple):
    """A function in two sets; shares are of each set's own stacks, from 0 to 1."""

    function: FunctionKey
    own_before: int
    own_after: int
    total_before: int
    total_after: int
    own_share_before: float
    own_share_after: float
    total_share_before: float
    total_share_after: float

    @property
    def own_change(self) -> float:
        """The change of its own share; negative if it shrank."""
        return self.own_share_after - self.own_share_before

    @property
    def total_change(self) -> float:
        """The change of its total share."""
        return self.total_share_after - self.total_share_before


class Change(Enum):
    """How a group changed."""

    NEW = "new"
    GONE = "gone"
    MORE = "more"
    """Its share of the reports grew."""
    LESS = "less"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """A group of reports in two sets."""

    group: ReportGroup
    """The group in the set after; of a group that is gone, the group before."""
    change: Change
    before: int
    """The number of its reports."""
    after: int


def function_differences(
    before: FunctionCosts, after: FunctionCosts
) -> tuple[FunctionDifference, ...]:
    """Return each function of either set, largest change of own or total share first."""
    olds = {cost.function: (cost.own, cost.total) for cost in before.functions}
    news = {cost.function: (cost.own, cost.total) for cost in after.functions}
    differences: list[FunctionDifference] = []
    for function in {**olds, **news}:
        own_before, total_before = olds.get(function, (0, 0))
        own_after, total_after = news.get(function, (0, 0))
        differences.append(
            FunctionDifference(
                function,
                own_before,
                own_after,
                total_before,
                total_after,
                before.share(own_before),
                after.share(own_after),
                before.share(total_before),
                after.share(total_after),
            )
        )
    differences.sort(key=lambda row: (-abs(row.own_change), -abs(row.total_change), row.function))
    return tuple(differences)


def group_differences(
    before: Sequence[Report], after: Sequence[Report]
) -> tuple[GroupDifference, ...]:
    """Return each group of either set: new ones, then gone ones, then changed ones."""
    olds = {group.fingerprint.hash: group for group in report_groups(before)}
    news = {group.fingerprint.hash: group for group in report_groups(after)}
    total_before, total_after = (
        sum(group.count for group in groups.values()) for groups in (olds, news)
    )
    differences: list[GroupDifference] = []
    for key, group in {**olds, **news}.items():
        was = olds[key].count if key in olds else 0
        now = news[key].count if key in news else 0
        change = _change(was * total_after, now * total_before, was=was, now=now)
        differences.append(GroupDifference(group=group, change=change, before=was, after=now))
    order = list(Change)
    differences.sort(key=lambda group: (order.index(group.change), -group.after, -group.before))
    return tuple(differences)


def _change(old_share: int, new_share: int, *, was: int, now: int) -> Change:
    if not was:
        return Change.NEW
    if not now:
        return Change.GONE
    if new_share == old_share:
        return Change.SAME
    return Change.MORE if new_share > old_share else Change.LESS
