"""Changes since an earlier report: new findings, repeated ones, and those that are gone.

Findings have identities without addresses and versions. So have calls: the library, the rule and
the function. A function without a name is counted instead, so that a further call is noticed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from machtrace.audit.evidence import is_evidence, report_of_evidence
from machtrace.audit.findings import Occurrence
from machtrace.errors import FileAccessError, FormatError
from machtrace.frozen import dataclass
from machtrace.mapped_file import mapped_file

_MAX_BYTES = 1 << 30
"""Bytes of an earlier report."""
_MAGIC_SIZE = 4


class Identified(Protocol):
    """A finding of any report."""

    @property
    def identity(self) -> str:
        """The same for the same finding in another build."""
        ...

    @property
    def occurrences(self) -> tuple[Occurrence, ...]:
        """The calls in code; none in a report of observed calls."""
        ...


class Change(Enum):
    """A finding's state since the earlier report."""

    NEW = "new"
    MORE = "more"
    """It was there, with fewer calls."""
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A finding that only the earlier report has."""

    identity: str
    severity: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A report beside an earlier one."""

    path: str
    """The earlier report's file."""
    changes: Mapping[str, Change]
    """By a finding's identity."""
    added: Mapping[str, tuple[Occurrence, ...]]
    """By a finding's identity: its calls that the earlier report does not have."""
    gone: tuple[Gone, ...]

    def is_news(self, finding: Identified) -> bool:
        """Return whether a finding is new, or has new calls."""
        return self.changes[finding.identity] is not Change.REPEATED


def compare(findings: Iterable[Identified], path: Path) -> Comparison:
    """Compare the findings of a report with those of an earlier one, in JSON or in evidence.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it is not a report of an audit.
    """
    earlier = _read(path)
    changes: dict[str, Change] = {}
    added: dict[str, tuple[Occurrence, ...]] = {}
    for finding in findings:
        before = earlier.get(finding.identity)
        occurrences = before.get("occurrences", ()) if before is not None else ()
        new = _added(finding.occurrences, occurrences)
        if before is None:
            changes[finding.identity] = Change.NEW
        else:
            changes[finding.identity] = Change.MORE if new else Change.REPEATED
        added[finding.identity] = new
    gone = tuple(
        Gone(identity=identity, severity=str(row["severity"]), message=str(row["message"]))
        for identity, row in earlier.items()
        if identity not in changes
    )
    return Comparison(path=str(path), changes=changes, added=added, gone=gone)


def call_identity(library: str, watch: str, function: str) -> str:
    """Return what a call has in common with the same call in another build."""
    return f"{library}:{watch}:{function}"


def _added(
    occurrences: Iterable[Occurrence], before: Sequence[Mapping[str, Any]]
) -> tuple[Occurrence, ...]:
    known = Counter(
        call_identity(
            str(row.get("library")), str(row.get("watch")), str(row.get("function") or "")
        )
        for row in before
    )
    added: list[Occurrence] = []
    for occurrence in occurrences:
        site = occurrence.site
        key = call_identity(occurrence.library, site.rule.watch, site.function)
        if known[key]:
            known[key] -= 1
        else:
            added.append(occurrence)
    return tuple(added)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            start = file.read(_MAGIC_SIZE)
            archive = mapped_file(file.fileno()) if is_evidence(start) else None
            data = b"" if archive is not None else start + file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = f"cannot read the earlier report: {getattr(error, 'strerror', None) or error}"
        raise FileAccessError(str(path), reason) from None
    if archive is not None:
        data = report_of_evidence(archive, str(path), _MAX_BYTES)
    try:
        document = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    rows = document.get("findings") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(map(_is_finding, rows)):
        raise FormatError(
            "not a report of an audit",
            source=str(path),
            offset=0,
            remedy="pass a file that machtrace audit scan or run wrote with --format json or -o",
        )
    return {str(row["id"]): row for row in rows}


def _is_finding(row: object) -> bool:
    if not isinstance(row, dict) or not {"id", "severity", "message"} <= set(row):
        return False
    occurrences = row.get("occurrences", [])
    return isinstance(occurrences, list) and all(
        isinstance(occurrence, dict) for occurrence in occurrences
    )
