"""A scanned app as a JSON document, which ``docs/audit.schema.json`` describes."""

from __future__ import annotations

from typing import Any

from machtrace.audit.baseline import Comparison
from machtrace.audit.findings import AuditReport, Finding, Occurrence
from machtrace.audit.resolution import Answers
from machtrace.audit.rules import Rule
from machtrace.audit.scan.app import ScannedImage
from machtrace.audit.scan.attribution import Attribution
from machtrace.audit.scan.image import Site
from machtrace.audit.scan.manifest import PREFIX


def audit_document(report: AuditReport, comparison: Comparison | None = None) -> dict[str, Any]:
    """Return the document of a report, and of its comparison with an earlier one."""
    rules = report.rules
    return {
        "kind": "audit-scan",
        "app": report.app.path,
        "rules": {
            "name": rules.name,
            "count": len(rules),
            "sha256": rules.digest,
            "policies": [str(policy) for policy in rules.policies],
            "allowed": list(rules.allowed),
        },
        "findings": [_finding(finding, comparison) for finding in report.findings],
        "gone": [
            {"id": each.identity, "severity": each.severity, "message": each.message}
            for each in (comparison.gone if comparison is not None else ())
        ],
        "images": [_image(image) for image in report.app.images],
        "bundles": [
            {
                "path": bundle.path,
                "identifier": bundle.identifier or None,
                "manifests": [
                    {
                        "path": manifest.path,
                        "reasons": {
                            f"{PREFIX}{category}": list(codes)
                            for category, codes in manifest.reasons.items()
                        },
                        "tracking": manifest.tracking,
                        "faults": list(manifest.faults),
                    }
                    for manifest in bundle.manifests
                ],
            }
            for bundle in report.app.bundles.values()
        ],
        "problems": [str(problem) for problem in report.app.problems],
    }


def rule_document(rule: Rule) -> dict[str, Any]:
    """Return the document of a rule."""
    return {
        "watch": rule.watch,
        "kind": rule.kind.value,
        "category": rule.category,
        "category_zh": rule.zh or None,
        "framework": rule.framework or None,
        "required": [f"{PREFIX}{each}" for each in rule.required],
        "usage": rule.usage or None,
        "privacy_report": rule.report or None,
        "rate": rule.rate.value,
        "since": rule.since or None,
        "verified": not rule.unverified,
        "note": rule.note or None,
    }


def answers_document(target: str, answers: Answers) -> dict[str, Any]:
    """Return the document of the answers to all rules for a target."""
    return {
        "kind": "audit-rules",
        "target": target,
        "images": answers.images,
        "rules": [
            {
                "watch": answer.rule.watch,
                "answer": answer.resolution.value,
                "reason": answer.reason,
                "others": list(answer.others),
            }
            for answer in answers.answers
        ],
        "problems": [str(problem) for problem in answers.problems],
    }


def _finding(finding: Finding, comparison: Comparison | None) -> dict[str, Any]:
    change = None if comparison is None else comparison.changes[finding.identity].value
    return {
        "id": finding.identity,
        "change": change,
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "library": finding.library,
        "subject": finding.subject,
        "message": finding.message,
        "rules": [rule.watch for rule in finding.rules],
        "occurrences": [occurrence_document(occurrence) for occurrence in finding.occurrences],
    }


def occurrence_document(occurrence: Occurrence) -> dict[str, Any]:
    """Return the document of a site of a finding."""
    where = {"image": occurrence.image, "uuid": occurrence.uuid or None}
    return {**where, **_site(occurrence.site, occurrence.attribution)}


def _site(site: Site, attribution: Attribution) -> dict[str, Any]:
    return {
        "library": attribution.library,
        "library_evidence": attribution.evidence.value,
        "library_detail": attribution.detail or None,
        "watch": site.rule.watch,
        "offset": site.offset,
        "return_offset": site.return_offset,
        "function": site.function or None,
        "function_offset": site.function_offset,
        "is_call": site.is_call,
        "certainty": site.certainty.value,
        "evidence": site.evidence,
    }


def _image(image: ScannedImage) -> dict[str, Any]:
    return {
        "path": image.path,
        "library": image.library,
        "uuid": image.uuid or None,
        "arch": image.scan.arch,
        "is_signed": image.is_signed,
        "names": {watch: list(ways) for watch, ways in image.scan.names.items()},
        "sites": [_site(site, image.attribution(site)) for site in image.scan.sites],
    }
