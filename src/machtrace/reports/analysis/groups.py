"""Reports of the same problem, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machtrace.model.report import Report
from machtrace.reports.analysis.fingerprint import Fingerprint, fingerprint
from machtrace.reports.analysis.subject_stack import SubjectKind, subject_stack

Counts = tuple[tuple[str, int], ...]
"""What was said, and how often; the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Reports whose stacks have one fingerprint."""

    fingerprint: Fingerprint
    """That of the first; all have the same hash."""
    subject: SubjectKind | None
    """Which of the first report's stacks it is of; None where that has none."""
    reports: tuple[int, ...]
    """Which: indices of what was grouped, in its order."""
    exceptions: Counts
    """Their types, or what else ended the processes."""
    versions: Counts
    """Of the programs, with their builds."""
    systems: Counts
    models: Counts

    @property
    def count(self) -> int:
        """How many reports."""
        return len(self.reports)


def report_groups(reports: Sequence[Report]) -> tuple[ReportGroup, ...]:
    """The groups of ``reports``: the largest first, of equals that which was seen first."""
    members: dict[str, list[int]] = {}
    first: dict[str, tuple[Fingerprint, SubjectKind | None]] = {}
    for index, report in enumerate(reports):
        subject = subject_stack(report)
        found = fingerprint(() if subject is None else subject.frames, report)
        members.setdefault(found.hash, []).append(index)
        first.setdefault(found.hash, (found, None if subject is None else subject.kind))
    groups = (
        _group(*first[key], indices, [reports[index] for index in indices])
        for key, indices in members.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.count))


def _group(
    found: Fingerprint, subject: SubjectKind | None, indices: list[int], reports: list[Report]
) -> ReportGroup:
    return ReportGroup(
        fingerprint=found,
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
    """What befell the process, in short; empty where the report does not say."""
    exception, thrown = report.exception, report.language_exception
    said = [] if exception is None else [exception.type or exception.signal or ""]
    if thrown is not None and thrown.name:
        said.append(thrown.name)
    label = " / ".join(dict.fromkeys(one for one in said if one))
    if not label and report.termination is not None:
        code = "" if report.termination.code is None else f" {report.termination.code}"
        label = (report.termination.namespace or "") + code
    return label or report.incident.kind or ""


def version_label(report: Report) -> str:
    """The program's version and build."""
    version, build = report.process.version or "", report.process.build or ""
    return f"{version} ({build})" if version and build and build != version else version or build
