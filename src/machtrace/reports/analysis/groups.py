"""Groups of reports of the same problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machtrace.model.report import Report
from machtrace.reports.analysis.fingerprint import Fingerprint, fingerprint
from machtrace.reports.analysis.subject_stack import SubjectKind, subject_stack

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
    exceptions: Counts
    """Exception types, or what else ended the processes."""
    versions: Counts
    """The programs' versions, with builds."""
    systems: Counts
    models: Counts

    @property
    def count(self) -> int:
        """The number of reports."""
        return len(self.reports)


def report_groups(reports: Sequence[Report]) -> tuple[ReportGroup, ...]:
    """Return the groups of ``reports``: largest first, equal ones in order of appearance."""
    members: dict[str, list[int]] = {}
    first: dict[str, tuple[Fingerprint, SubjectKind | None]] = {}
    for index, report in enumerate(reports):
        subject = subject_stack(report)
        identity = fingerprint(() if subject is None else subject.frames, report)
        members.setdefault(identity.hash, []).append(index)
        first.setdefault(identity.hash, (identity, None if subject is None else subject.kind))
    groups = (
        _group(*first[key], indices, [reports[index] for index in indices])
        for key, indices in members.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.count))


def _group(
    identity: Fingerprint, subject: SubjectKind | None, indices: list[int], reports: list[Report]
) -> ReportGroup:
    return ReportGroup(
        fingerprint=identity,
        subject=subject,
        reports=tuple(indices),
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
    label = " / ".join(dict.fromkeys(one for one in parts if one))
    if not label and report.termination is not None:
        code = "" if report.termination.code is None else f" {report.termination.code}"
        label = (report.termination.namespace or "") + code
    return label or report.incident.kind or ""


def version_label(report: Report) -> str:
    """Return the program's version and build."""
    version, build = report.process.version or "", report.process.build or ""
    return f"{version} ({build})" if version and build and build != version else version or build
