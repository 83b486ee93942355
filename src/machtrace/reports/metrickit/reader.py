"""Reader of MetricKit's payloads: a report for each diagnostic.

Its ``diagnosticMetaData`` describes the process, its machine and the incident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from machtrace.frozen import dataclass
from machtrace.model.cause import DARWIN_SIGNALS, EXCEPTION_TYPES
from machtrace.model.report import (
    Details,
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
    ReportKind,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.json_writer import extent
from machtrace.reports.lenient_json import read_json
from machtrace.reports.metrickit.stacks import BINARIES, read_tree
from machtrace.reports.source import ReportSource

_CRASH = "crash"
_MEMORY = "memory-exception"
_KINDS = {
    "crashDiagnostics": _CRASH,
    "hangDiagnostics": "hang",
    "cpuExceptionDiagnostics": "cpu-exception",
    "diskWriteExceptionDiagnostics": "disk-write-exception",
    "appLaunchDiagnostics": "app-launch",
    "memoryExceptionDiagnostics": _MEMORY,
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
"""App Store Connect's names."""
_SINGLE = {key.removesuffix("s"): kind for key, kind in _KINDS.items()}
"""Keys of iOS 27's reports, each with one diagnostic."""
_ENVIRONMENT = "environment"
_TREE = "callStackTree"
_STACKS = "callStacks"
_THREADS = "callStackThreads"
_MARKS = frozenset({*_KINDS, _TREE, _STACKS, _THREADS})
_PRODUCTS, _LOGS = "productData", "diagnosticLogs"
_PAYLOAD = "payload"
"""The detail of values shared by all diagnostics of a payload.

If these are large and diagnostics many, only the first has them: otherwise output would grow with
the square of the input.
"""
_ROOM = 1 << 16
"""Characters that repeated values may take in any case."""


def recognises(source: ReportSource) -> bool:
    """Return whether it is a payload, one diagnostic, a bare tree, or App Store Connect's logs."""
    value = source.value
    if not isinstance(value, dict):
        return False
    products = value.get(_PRODUCTS)
    if any(_is_single(value.get(key)) for key in _SINGLE):
        return True
    return bool(_MARKS & value.keys()) or (
        isinstance(products, list)
        and any(isinstance(product, dict) and _LOGS in product for product in products)
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report for each diagnostic, in order; one without stacks if there are none."""
    warnings = list(source.documents[0].warnings)
    room = max(_ROOM, len(source.text))
    payload = ObjectReader.of(source.value, "", warnings)
    is_product = _PRODUCTS in payload.left
    reports = [
        _report(kind, one, is_product=is_product) for kind, one in _diagnostics(payload, room)
    ]
    shared = payload.details()
    if not reports:
        empty = Report(kind=ReportKind.METRICKIT, details=shared)
        return (replace(empty, warnings=(*warnings, "it has no diagnostics")),)
    sharing = _sharing(shared, len(reports), room)
    warnings = list(dict.fromkeys(warnings))
    shared_details: dict[str, JsonValue] = {_PAYLOAD: dict(shared)} if shared else {}
    return tuple(
        replace(
            report,
            details={**report.details, **shared_details} if number < sharing else report.details,
            warnings=tuple(dict.fromkeys((*warnings, *report.warnings))),
        )
        for number, report in enumerate(reports)
    )


def _sharing(shared: Details, count: int, room: int) -> int:
    """Return how many of ``count`` reports store the shared values: all, or the first."""
    return count if count * extent(dict(shared)) <= room else 1


def _diagnostics(payload: ObjectReader, room: int) -> Iterator[tuple[str | None, ObjectReader]]:
    """Yield each diagnostic's kind, if stated, and its object."""
    for key, kind in _SINGLE.items():
        entry = payload.left.get(key)
        if isinstance(entry, dict) and _is_single(entry):
            del payload.left[key]
            shared: dict[str, JsonValue] = {}
            if _ENVIRONMENT in payload.left and _ENVIRONMENT not in entry:
                shared = {_ENVIRONMENT: payload.left.pop(_ENVIRONMENT)}
            yield kind, ObjectReader(shared | entry, key, [])
    if payload.left.keys() & {_TREE, _STACKS, _THREADS}:
        alone = ObjectReader(dict(payload.left), "", payload.warnings)
        payload.left.clear()
        yield None, alone
        return
    for key, kind in _KINDS.items():
        for number, entry in enumerate(payload.objects(key)):
            yield kind, ObjectReader.of(entry, f"{key}[{number}]", [])
    for product in payload.objects(_PRODUCTS):
        inner = ObjectReader.of(product, _PRODUCTS, payload.warnings)
        logs = inner.objects(_LOGS)
        shared = dict(inner.left)
        sharing = _sharing(shared, len(logs), room)
        for number, log in enumerate(logs):
            joined = _joined(log, shared) if number < sharing else log
            yield None, ObjectReader.of(joined, f"{_LOGS}[{number}]", [])


def _is_single(value: JsonValue) -> bool:
    """Return whether it is a diagnostic of iOS 27, under a key of its own."""
    return isinstance(value, dict) and _TREE in value


def _joined(log: JsonValue, product: dict[str, JsonValue]) -> JsonValue:
    return {**log, "product": product} if isinstance(log, dict) and product else log


def _report(kind: str | None, diagnostic: ObjectReader, *, is_product: bool) -> Report:
    if kind is None:
        kind = _kind_of(diagnostic)
    metadata = read_metadata(diagnostic)
    tree = _tree(diagnostic)
    # App Store Connect's logs of hangs, launches and writes have outermost frames as roots.
    is_crash = (False if is_product else None) if kind is None else kind == _CRASH
    if kind == _MEMORY:
        is_crash = None  # allocation stacks were seen with innermost frames first, and last
    task, was_swapped = read_tree(tree, metadata.process, is_crash=is_crash)
    details = dict(diagnostic.details())
    if tree.details():
        details[_TREE] = dict(tree.details())
    warnings = list(diagnostic.warnings)
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


def _kind_of(diagnostic: ObjectReader) -> str | None:
    """Return the kind of a diagnostic outside of a payload, by its characteristic keys."""
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
    event_kind = _EVENTS.get(event.lower()) if isinstance(event, str) else None
    return event_kind or next((kind for key, kind in marks.items() if key in metadata), None)


def _tree(diagnostic: ObjectReader) -> ObjectReader:
    """Return the object with the stacks: the diagnostic's own entry, its only item, or itself."""
    tree = diagnostic.left.get(_TREE)
    if isinstance(tree, list) and len(tree) == 1:
        tree = tree[0]
    if isinstance(tree, str) and tree.lstrip().startswith("{"):  # the API's JSON
        document = read_json(tree, len(tree) - len(tree.lstrip()), diagnostic.where)
        tree = document.value
        diagnostic.warnings += document.warnings
    if isinstance(tree, dict):
        del diagnostic.left[_TREE]
        return ObjectReader(dict(tree), diagnostic.where, diagnostic.warnings)
    if isinstance(tree, list):
        del diagnostic.left[_TREE]
        stacks: list[JsonValue] = []
        for item in tree:
            inner = item.get(_STACKS) if isinstance(item, dict) else None
            stacks += inner if isinstance(inner, list) else []
        return ObjectReader({_STACKS: stacks}, diagnostic.where, diagnostic.warnings)
    own = {
        key: diagnostic.left.pop(key)
        for key in (_STACKS, _THREADS, BINARIES)
        if key in diagnostic.left
    }
    return ObjectReader(own, diagnostic.where, diagnostic.warnings)


_BUILT = re.compile(r"(?P<name>[^()]*) \((?P<build>[^()]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A diagnostic without its stacks."""

    process: ReportedProcess
    system: ReportedSystem
    exception: ReportedException | None
    termination: ReportedTermination | None
    language_exception: LanguageException | None


def read_metadata(diagnostic: ObjectReader) -> Metadata:
    """Consume the fields; invalid values stay in the diagnostic."""
    if isinstance(diagnostic.left.get("environment"), dict):
        return _of_environment(diagnostic)
    metadata = diagnostic.inner("diagnosticMetaData")
    process = _process(metadata, "appVersion", "appBuildVersion")
    return Metadata(
        process=process,
        system=_system(metadata),
        exception=_exception(metadata),
        termination=_termination(metadata),
        language_exception=_language_exception(metadata, "objectiveCexceptionReason"),
    )


def _of_environment(diagnostic: ObjectReader) -> Metadata:
    """Consume the same from iOS 27's reports, in which the diagnostic itself has the fields."""
    environment = diagnostic.inner("environment")
    process = _process(environment, "applicationVersion", "applicationBuildVersion")
    if isinstance(environment.left.get("osVersion"), dict):
        version = environment.inner("osVersion")
        names = [version.text("platform"), version.text("number")]
        system = ReportedSystem(
            model=environment.text("deviceType"),
            os_name=" ".join(name for name in names if name) or None,
            os_build=version.text("buildNumber"),
        )
    else:
        system = _system(environment)
    return Metadata(
        process=process,
        system=system,
        exception=_exception(diagnostic),
        termination=_termination(diagnostic),
        language_exception=_language_exception(diagnostic, "exceptionReason")
        or _language_exception(diagnostic, "objectiveCExceptionReason"),
    )


def _process(metadata: ObjectReader, version: str, build: str) -> ReportedProcess:
    return ReportedProcess(
        pid=metadata.integer("pid"),
        identifier=metadata.text("bundleIdentifier"),
        version=metadata.text(version),
        build=metadata.text(build),
        code_type=metadata.text("platformArchitecture"),
    )


def _system(metadata: ObjectReader) -> ReportedSystem:
    text = metadata.text("osVersion")
    match = None if text is None else _BUILT.fullmatch(text)
    return ReportedSystem(
        model=metadata.text("deviceType"),
        os_name=text if match is None else match["name"],
        os_build=None if match is None else match["build"],
    )


def _exception(metadata: ObjectReader) -> ReportedException | None:
    number, signal = metadata.left.get("exceptionType"), metadata.left.get("signal")
    name = EXCEPTION_TYPES.get(number) if type(number) is int else None
    signal_name = DARWIN_SIGNALS.get(signal) if type(signal) is int else None
    if name is not None:
        del metadata.left["exceptionType"]
    if signal_name is not None:
        del metadata.left["signal"]
    code = metadata.left.get("exceptionCode")
    codes: tuple[int, ...] = ()
    if isinstance(code, int) and not isinstance(code, bool):
        codes = (code,)
        del metadata.left["exceptionCode"]
    if name is None and signal_name is None and not codes:
        return None
    return ReportedException(type=name, signal=signal_name, raw_codes=codes)


def _termination(metadata: ObjectReader) -> ReportedTermination | None:
    reason = metadata.text("terminationReason")
    return None if reason is None else ReportedTermination(indicator=reason)


def _language_exception(metadata: ObjectReader, key: str) -> LanguageException | None:
    if not isinstance(metadata.left.get(key), dict):
        return None
    inner = ObjectReader.of(metadata.left.pop(key), key, metadata.warnings)
    return LanguageException(
        name=inner.text("exceptionName"),
        reason=inner.text("composedMessage"),
        details=inner.details(),
    )
