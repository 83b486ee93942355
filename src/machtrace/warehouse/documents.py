"""Answers of a warehouse as documents: rows and issues as JSON, weighted stacks as profiles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from machtrace.model.report import Report, ReportedProcess, ReportKind
from machtrace.reports.writers import with_chosen_samples, write_reports
from machtrace.warehouse.function_tree import FunctionTree, sampled_tree
from machtrace.warehouse.grouping.issues import Issue
from machtrace.warehouse.triage import Decision


def flame_document(tree: FunctionTree, name: str, form: str) -> bytes:
    """Return weighted stacks in a format of flame graphs or profile viewers.

    Args:
        tree: the stacks.
        name: a title.
        form: folded, speedscope, firefox, pprof, svg or html.
    """
    sampled, images = sampled_tree(tree)
    report = Report(
        kind=ReportKind.MACHTRACE,
        process=ReportedProcess(name=name),
        trees=(sampled,) if sampled.nodes else (),
        images=images,
    )
    merged = with_chosen_samples(report, idle=True, by_name=False)
    return write_reports([merged], form)


def cell(value: Any) -> Any:  # noqa: ANN401 - any value of a database
    """Return a value of a row as JSON has it."""
    match value:
        case bytes():
            return value.hex()
        case list():
            return [cell(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def issue_document(issue: Issue, decisions: list[Decision]) -> dict[str, Any]:
    """Return an issue as JSON has it.

    Args:
        issue: the issue.
        decisions: those about it, the one that holds first.
    """
    return {
        "id": issue.id,
        "state": decisions[0].state.value if decisions else "open",
        "decisions": [
            {"issue": decision.issue, "state": decision.state.value, "note": decision.note}
            for decision in decisions
        ],
        "kind": issue.kind,
        "title": issue.title,
        "reports": issue.reports,
        "devices": issue.devices,
        "exceptions": list(issue.exceptions),
        "builds": list(issue.builds),
        "first": _time(issue.first),
        "last": _time(issue.last),
        "basis": issue.fingerprint.basis.value,
        "is_build_sensitive": issue.fingerprint.is_build_sensitive,
        "frames": [
            {"name": frame.name, "image": frame.image, "reason": frame.reason.value}
            for frame in issue.fingerprint.frames
        ],
        "variants": [
            {"stack": variant.stack.hex(), "reports": variant.reports} for variant in issue.variants
        ],
    }


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat()
