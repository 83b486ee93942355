"""Findings of observed calls as SARIF 2.1.0; see :mod:`machtrace.audit.output.sarif`.

The location of a result is the asker's code; the frames of its stacks are code flows' equivalent,
``stacks``.
"""

from __future__ import annotations

from typing import Any

from machtrace.audit.baseline import Comparison
from machtrace.audit.observed.builds import Builds, builds_of
from machtrace.audit.observed.code import RecordedCode
from machtrace.audit.observed.report import ObservedFinding, ObservedReport, ObservedStack
from machtrace.audit.output.observed.text import asker_text, frame_text
from machtrace.audit.output.sarif import LEVELS, file_location, sarif_run, state_of
from machtrace.audit.policies import Condition
from machtrace.audit.trail.stacks import NO_IMAGE, CodeAddress

_MAX_STACKS = 5
_SENTENCES = {
    Condition.BEFORE_CONSENT: "Private data was requested without consent.",
    Condition.BACKGROUND: "Private data was requested in the background.",
    Condition.EVERY: "Private data was requested again too soon.",
    Condition.NOT_LISTED: "A library that is not allowed requested private data.",
    Condition.UNDECLARED: "A required-reason API was called and not declared.",
    Condition.UNREACHED: "Code that was not reached calls a required-reason API, undeclared.",
    Condition.UNTESTED: "Code that was not reached calls a declared required-reason API.",
    Condition.IN_VAIN: "A required-reason API is declared, and neither called nor observed.",
}


def sarif_document(
    report: ObservedReport, code: RecordedCode, comparison: Comparison | None = None
) -> dict[str, Any]:
    """Return the findings of a report as one run, with their states since an earlier one."""
    kinds, builds = list(_SENTENCES), builds_of(report)
    return sarif_run(
        {kind.value: sentence for kind, sentence in _SENTENCES.items()},
        [
            _result(finding, kinds.index(finding.condition), report, builds, code)
            | state_of(finding, comparison)
            for finding in report.findings
        ],
    )


def _result(
    finding: ObservedFinding, index: int, report: ObservedReport, builds: Builds, code: RecordedCode
) -> dict[str, Any]:
    stacks = finding.stacks[:_MAX_STACKS]
    return {
        "ruleId": finding.condition.value,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": ", ".join(filter(None, (finding.message, builds.text(finding))))},
        **({"occurrenceCount": finding.calls} if finding.calls else {}),
        "locations": [_asker_location(report, stack, code) for stack in stacks[:1]]
        or [file_location(occurrence.image) for occurrence in finding.occurrences[:1]]
        or [file_location("")],
        "stacks": [
            {
                "message": {"text": asker_text(stack)},
                "frames": [
                    {"location": _location(report, address, code)} for address in stack.frames
                ],
            }
            for stack in stacks
        ],
        "partialFingerprints": {"machtraceFinding/v1": finding.identity},
    }


def _asker_location(
    report: ObservedReport, stack: ObservedStack, code: RecordedCode
) -> dict[str, Any]:
    frame = stack.asker.frame
    if frame is None or frame >= len(stack.frames):
        return file_location("")
    return _location(report, stack.frames[frame], code)


def _location(report: ObservedReport, address: CodeAddress, code: RecordedCode) -> dict[str, Any]:
    has_image = address.image != NO_IMAGE
    path = report.recording.trail.images[address.image].path if has_image else ""
    location = file_location(path)
    if has_image:
        location["physicalLocation"]["address"] = {
            "relativeAddress": address.offset,
            "kind": "returnAddress",
        }
    name = code.name(address)
    if name:
        location["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "function"}]
    location["message"] = {"text": frame_text(report, address, code)}
    return location
