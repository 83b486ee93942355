"""Observed calls as a JSON document, which ``docs/audit.schema.json`` describes, and as rows."""

from __future__ import annotations

import csv
from typing import Any, TextIO

from machtrace.audit.baseline import Comparison
from machtrace.audit.observed.builds import Builds, builds_of
from machtrace.audit.observed.code import RecordedCode
from machtrace.audit.observed.os_report import Access
from machtrace.audit.observed.recall import Recall
from machtrace.audit.observed.report import ObservedFinding, ObservedReport, ObservedStack
from machtrace.audit.observed.summary import library_calls
from machtrace.audit.output.document import occurrence_document
from machtrace.audit.trail.calls import Image
from machtrace.audit.trail.stacks import NO_IMAGE, CodeAddress

COLUMNS = ("library", "owner", "category", "watch", "without_consent", "with_consent", "unstated")


def observed_document(
    report: ObservedReport, code: RecordedCode, comparison: Comparison | None = None
) -> dict[str, Any]:
    """Return the document of a report, and of its comparison with an earlier one."""
    recording, rules = report.recording, report.rules
    builds = builds_of(report)
    return {
        "kind": "audit-run",
        "rules": {
            "name": rules.name,
            "count": len(rules),
            "sha256": rules.digest,
            "policies": [str(policy) for policy in rules.policies],
            "allowed": list(rules.allowed),
        },
        "processes": [
            {
                "source": source,
                "pid": process.pid,
                "app": process.app or None,
                "run": process.run,
                "device": process.device or None,
                "build": process.build or None,
                "started_at_ns": process.started + process.wall_offset,
                "from_start": process.from_start,
            }
            for source, process in zip(recording.sources, recording.trail.processes, strict=True)
        ],
        "builds": [
            {
                "id": build.id or None,
                "app": build.app or None,
                "started_at_ns": build.started,
                "processes": build.processes,
                "devices": build.devices,
            }
            for build in builds.builds
        ],
        "images": [
            {"path": image.path or None, "id": image.uuid or None, "role": image.role.value}
            for image in recording.trail.images
        ],
        "calls": [
            dict(
                zip(
                    COLUMNS,
                    (row.library, row.owner, row.rule.category, row.rule.watch, *row[3:]),
                    strict=True,
                )
            )
            for row in library_calls(report)
        ],
        "findings": [
            _finding(finding, report, builds, code, comparison) for finding in report.findings
        ],
        "gone": [
            {"id": each.identity, "severity": each.severity, "message": each.message}
            for each in (comparison.gone if comparison is not None else ())
        ],
        "coverage": _coverage(report),
        "dead": [
            {"watch": each.watch, "process": each.process, "reason": each.reason}
            for each in recording.dead
        ],
        "unwatched": recording.unwatched,
        "unruled": list(recording.unruled),
        "os_report": None if report.recall is None else _os_report(report.recall),
        "problems": list(report.unjudged),
    }


def write_csv(report: ObservedReport, sink: TextIO, language: str = "en") -> None:
    """Write a row for each library, owner and function."""
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in library_calls(report):
        texts = (row.library, row.owner, row.rule.category_in(language), row.rule.watch)
        # No spreadsheet must take a method's name for a formula.
        safe = [f"'{text}" if text[:1] in "=+-@" else text for text in texts]
        writer.writerow([*safe, *row[3:]])


def _os_report(compared: Recall) -> dict[str, Any]:
    return {
        "app": compared.app,
        "seen": [_access(each) for each in compared.seen],
        "missed": [_access(each) for each in compared.missed],
        "outside": compared.outside,
        "calls": compared.calls,
        "unanswered": compared.unanswered,
        "hosts": [
            {
                "domain": host.domain,
                "hits": host.hits,
                "is_tracker": host.is_tracker,
                "owner": host.owner or None,
                "is_of_app": host.is_of_app,
            }
            for host in compared.hosts
        ],
        "skipped": list(compared.skipped),
    }


def _access(access: Access) -> dict[str, Any]:
    return {"category": access.category, "begin_ns": access.begin, "end_ns": access.end}


def _coverage(report: ObservedReport) -> dict[str, Any] | None:
    coverage = report.coverage
    if coverage is None:
        return None
    return {
        "reached": coverage.reached,
        "sites": [
            {
                "image": site.site.image.path or None,
                "id": site.site.image.uuid or None,
                "library": site.site.library or None,
                "watch": site.site.site.rule.watch,
                "function": site.site.site.function or None,
                "function_offset": site.site.site.function_offset,
                "offset": site.site.site.offset,
                "return_offset": site.site.site.return_offset,
                "certainty": site.site.site.certainty.value,
                "calls": site.calls,
            }
            for site in coverage.sites
        ],
        "unlisted": [
            {
                "image": each.place.image,
                "library": each.library,
                "watch": each.watch,
                "return_offset": each.place.offset,
                "calls": each.calls,
            }
            for each in coverage.unlisted
        ],
    }


def _finding(
    finding: ObservedFinding,
    report: ObservedReport,
    builds: Builds,
    code: RecordedCode,
    comparison: Comparison | None,
) -> dict[str, Any]:
    change = None if comparison is None else comparison.changes[finding.identity].value
    images = report.recording.trail.images
    seen = builds.seen[finding.identity]
    return {
        "id": finding.identity,
        "change": change,
        "kind": finding.condition.value,
        "severity": finding.severity.value,
        "library": finding.library,
        "subject": finding.rule.watch,
        "message": finding.message,
        "rules": [finding.rule.watch],
        "calls": finding.calls,
        "first_time_ns": finding.first_time,
        "builds": list(seen.builds),
        "devices": list(seen.devices),
        "between_builds": None if seen.change is None else seen.change.value,
        "stacks": [_stack(stack, images, code) for stack in finding.stacks],
        "occurrences": [occurrence_document(occurrence) for occurrence in finding.occurrences],
    }


def _stack(stack: ObservedStack, images: tuple[Image, ...], code: RecordedCode) -> dict[str, Any]:
    asker = stack.asker
    return {
        "calls": stack.calls,
        "library": asker.library,
        "owner": asker.owner,
        "library_evidence": asker.evidence,
        "circumstances": list(asker.circumstances),
        "asker_frame": asker.frame,
        "frames": [_frame(address, images, code) for address in stack.frames],
    }


def _frame(address: CodeAddress, images: tuple[Image, ...], code: RecordedCode) -> dict[str, Any]:
    image = None if address.image == NO_IMAGE else images[address.image]
    return {
        "image": None if image is None else image.path or None,
        "id": None if image is None else image.uuid or None,
        "offset": address.offset,
        "function": code.name(address) or None,
    }
