"""The diagnostics of a payload, a report each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_process import Incident
from machtrace.report.metrickit.metadata import read_metadata
from machtrace.report.metrickit.stacks import read_tree
from machtrace.report.source import ReportSource
from machtrace.report.taking import Taking

_CRASH = "crash"
_KINDS = {
    "crashDiagnostics": _CRASH,
    "hangDiagnostics": "hang",
    "cpuExceptionDiagnostics": "cpu-exception",
    "diskWriteExceptionDiagnostics": "disk-write-exception",
    "appLaunchDiagnostics": "app-launch",
    "memoryExceptionDiagnostics": "memory-exception",
}
_EVENTS = {
    "crash": _CRASH,
    "hang": "hang",
    "hangs": "hang",
    "cpu usage": "cpu-exception",
    "disk writes": "disk-write-exception",
    "launch": "app-launch",
    "launches": "app-launch",
}
"""What App Store Connect calls them."""
_TREE = "callStackTree"
_STACKS = "callStacks"
_MARKS = frozenset({*_KINDS, _TREE, _STACKS})
_PRODUCTS, _LOGS = "productData", "diagnosticLogs"
_PAYLOAD = "payload"
"""Where a report has what is said of all diagnostics of its payload."""


def recognises(source: ReportSource) -> bool:
    """Whether it is a payload, one diagnostic, a bare tree, or App Store Connect's logs."""
    documents = source.documents
    value = documents[0].value if documents else None
    if not isinstance(value, dict):
        return False
    products = value.get(_PRODUCTS)
    return bool(_MARKS & value.keys()) or (
        isinstance(products, list)
        and any(isinstance(one, dict) and _LOGS in one for one in products)
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """A report for each diagnostic, in the file's order; one without stacks where there is none."""
    warnings = list(source.documents[0].warnings)
    payload = Taking.of(source.documents[0].value, "", warnings)
    is_product = _PRODUCTS in payload.left
    reports = [_report(kind, one, is_product=is_product) for kind, one in _diagnostics(payload)]
    around = payload.details()
    if not reports:
        empty = Report(kind=ReportKind.METRICKIT, details=around)
        return (replace(empty, warnings=(*warnings, "there are no diagnostics in it")),)
    return tuple(
        replace(
            report,
            details={**report.details, _PAYLOAD: dict(around)} if around else report.details,
            warnings=tuple(dict.fromkeys((*warnings, *report.warnings))),
        )
        for report in reports
    )


def _diagnostics(payload: Taking) -> Iterator[tuple[str | None, Taking]]:
    """What each is, where that is said, and its object."""
    if _TREE in payload.left or _STACKS in payload.left:
        alone = Taking(dict(payload.left), "", payload.warnings)
        payload.left.clear()
        yield None, alone
        return
    for key, kind in _KINDS.items():
        for number, one in enumerate(payload.objects(key)):
            yield kind, Taking.of(one, f"{key}[{number}]", [])
    for product in payload.objects(_PRODUCTS):
        inner = Taking.of(product, _PRODUCTS, payload.warnings)
        logs = inner.objects(_LOGS)
        for number, log in enumerate(logs):
            yield None, Taking.of(_joined(log, inner.left), f"{_LOGS}[{number}]", [])


def _joined(log: JsonValue, product: dict[str, JsonValue]) -> JsonValue:
    return (
        {**log, **({"product": dict(product)} if product else {})} if isinstance(log, dict) else log
    )


def _report(kind: str | None, diagnostic: Taking, *, is_product: bool) -> Report:
    if kind is None:
        kind = _kind_of(diagnostic)
    metadata = read_metadata(diagnostic)
    tree = _tree(diagnostic)
    # App Store Connect has logs of hangs, launches and writes, whose roots are outermost frames.
    is_crash = (False if is_product else None) if kind is None else kind == _CRASH
    task, was_swapped = read_tree(tree, metadata.process, is_crash=is_crash)
    details = dict(diagnostic.details())
    if tree.details():
        details[_TREE] = dict(tree.details())
    warnings = list(diagnostic.warnings)
    warnings += [text for text in tree.warnings if text not in warnings]
    if was_swapped:
        warnings.append("offsetIntoBinaryTextSegment had load addresses, as iOS 14 and 15 wrote it")
    return Report(
        kind=ReportKind.METRICKIT,
        incident=Incident(kind=kind),
        process=task.process,
        threads=task.threads,
        trees=task.trees,
        images=task.images,
        system=metadata.system,
        exception=metadata.exception,
        termination=metadata.termination,
        language_exception=metadata.language_exception,
        details=details,
        warnings=tuple(warnings),
    )


def _kind_of(diagnostic: Taking) -> str | None:
    """What a diagnostic without its payload is, by what only such have."""
    metadata = diagnostic.left.get("diagnosticMetaData")
    if not isinstance(metadata, dict):
        return None
    if {"exceptionType", "signal", "terminationReason"} & metadata.keys():
        return _CRASH
    marks = {
        "hangDuration": "hang",
        "totalCPUTime": "cpu-exception",
        "writesCaused": "disk-write-exception",
        "launchDuration": "app-launch",
    }
    event = metadata.get("event")
    said = _EVENTS.get(event.lower()) if isinstance(event, str) else None
    return said or next((kind for key, kind in marks.items() if key in metadata), None)


def _tree(diagnostic: Taking) -> Taking:
    """The object with the stacks: the diagnostic's own entry, its only item, or itself."""
    given = diagnostic.left.get(_TREE)
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if isinstance(given, dict):
        del diagnostic.left[_TREE]
        return Taking(dict(given), diagnostic.where, diagnostic.warnings)
    if isinstance(given, list):
        del diagnostic.left[_TREE]
        stacks: list[JsonValue] = []
        for one in given:
            inner = one.get(_STACKS) if isinstance(one, dict) else None
            stacks += inner if isinstance(inner, list) else []
        return Taking({_STACKS: stacks}, diagnostic.where, diagnostic.warnings)
    own = {_STACKS: diagnostic.left.pop(_STACKS)} if _STACKS in diagnostic.left else {}
    return Taking(own, diagnostic.where, diagnostic.warnings)
