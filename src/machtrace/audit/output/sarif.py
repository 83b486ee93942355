"""Findings as SARIF 2.1.0, which code scanning of GitHub and others reads.

Source: OASIS, *Static Analysis Results Interchange Format (SARIF) Version 2.1.0*; for what GitHub
requires of it, *SARIF support for code scanning*. A result needs a file and a line: the file is the
image's path in the app, and code in an image has an address instead of a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from machtrace.audit.baseline import Change, Comparison, Identified
from machtrace.audit.findings import AuditReport, Finding, FindingKind, Occurrence
from machtrace.audit.policies import Severity

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Severity.FAULT: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_STATES = {Change.NEW: "new", Change.MORE: "updated", Change.REPEATED: "unchanged"}
_MAX_PLACES = 10
"""Related places of a result."""
_SENTENCES = {
    FindingKind.UNDECLARED: "A required-reason API is called and not declared.",
    FindingKind.INVALID_MANIFEST: "A privacy manifest is invalid.",
    FindingKind.NAME_ONLY: "The name of a required-reason API occurs and no call is known.",
    FindingKind.DECLARED_IN_VAIN: "A declared required-reason API is not used.",
    FindingKind.USAGE_MISSING: "A purpose is missing in Info.plist.",
    FindingKind.SDK_MANIFEST: "A listed SDK has no privacy manifest.",
    FindingKind.SDK_SIGNATURE: "A listed SDK is not signed.",
    FindingKind.OUTSIDE_SANDBOX: "A file outside of the app's container is named.",
    FindingKind.NOT_LISTED: "A library that is not allowed calls a watched API.",
}


def sarif_document(report: AuditReport, comparison: Comparison | None = None) -> dict[str, Any]:
    """Return the findings of a report as one run, with their states since an earlier one."""
    kinds = list(FindingKind)
    return sarif_run(
        {kind.value: _SENTENCES[kind] for kind in kinds},
        [
            _result(finding, kinds, report.app.path) | state_of(finding, comparison)
            for finding in report.findings
        ],
    )


def sarif_run(rules: Mapping[str, str], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a document of one run.

    Args:
        rules: the sentence of each kind of finding.
        results: as SARIF has them.
    """
    driver = {
        "name": "machtrace",
        "version": version("machtrace"),
        "rules": [
            {"id": name, "shortDescription": {"text": sentence}} for name, sentence in rules.items()
        ],
    }
    run = {"tool": {"driver": driver}, "results": list(results)}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, kinds: list[FindingKind], app: str) -> dict[str, Any]:
    places = [_location(occurrence) for occurrence in finding.occurrences[:_MAX_PLACES]]
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": kinds.index(finding.kind),
        "level": LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": places[:1] or [file_location(app)],
        "relatedLocations": [{"id": number, **each} for number, each in enumerate(places[1:], 1)],
        "partialFingerprints": {"machtraceFinding/v1": finding.identity},
    }


def state_of(finding: Identified, comparison: Comparison | None) -> dict[str, Any]:
    """Return the state of a result since an earlier report."""
    if comparison is None:
        return {}
    return {"baselineState": _STATES[comparison.changes[finding.identity]]}


def file_location(path: str) -> dict[str, Any]:
    """Return the location of a result in a file."""
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(path.lstrip("/"), errors="surrogateescape") or "."},
            "region": {"startLine": 1},
        }
    }


def _location(occurrence: Occurrence) -> dict[str, Any]:
    site = occurrence.site
    location = file_location(occurrence.image)
    location["physicalLocation"]["address"] = {
        "relativeAddress": site.offset,
        "kind": "instruction",
    }
    if site.function:
        location["logicalLocations"] = [
            {"fullyQualifiedName": site.function, "kind": "function"},
        ]
    location["message"] = {"text": f"{site.rule.watch} ({site.certainty.value})"}
    return location
