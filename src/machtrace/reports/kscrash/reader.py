"""The report of a KSCrash JSON file, and the one that it was written in the middle of."""

from __future__ import annotations

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import (
    Incident,
    LanguageException,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
)
from machtrace.reports.kscrash.images import read_images
from machtrace.reports.kscrash.profile import read_profile
from machtrace.reports.kscrash.threads import ThreadReader
from machtrace.reports.kscrash.times import read_time
from machtrace.reports.source import ReportSource
from machtrace.reports.consume import ObjectReader

_PARTS = frozenset({"crash", "binary_images", "report", "system", "recrash_report"})
_ENOUGH = 2
_RECRASH = "recrash_report"
_OF_KSCRASH = "it was written when KSCrash crashed in writing the report that follows it"


def recognises(source: ReportSource) -> bool:
    """Whether it has the parts of such a report, or of one that was made while one was made."""
    documents = source.documents
    value = documents[0].value if documents else None
    if not isinstance(value, dict):
        return False
    inner = value.get(_RECRASH)
    if isinstance(inner, dict) and _PARTS & inner.keys():
        return True
    return len(_PARTS & value.keys()) >= _ENOUGH


def read(source: ReportSource) -> tuple[Report, ...]:
    """The report in it.

    Where KSCrash crashed while it wrote a report, there is one of that, and then the first one as
    far as it was written. In old files the one that was being written is around the other.
    """
    warnings = list(source.documents[0].warnings)
    body = ObjectReader.of(source.documents[0].value, "", warnings)
    inner = body.left.get(_RECRASH)
    if not isinstance(inner, dict):
        return (_report(body, ()),)
    del body.left[_RECRASH]
    parts: dict[str, JsonValue] = inner if _PARTS & inner.keys() else {"crash": inner}
    if _is_minimal(parts) and not _is_minimal(body.left):
        own: list[str] = [_OF_KSCRASH]
        first = _report(body, ())
        return _report(ObjectReader.of(parts, _RECRASH, own), first.images), first
    warnings.append(_OF_KSCRASH)
    outer = _report(body, ())
    return outer, _report(ObjectReader.of(parts, _RECRASH, []), outer.images)


def _is_minimal(body: dict[str, JsonValue]) -> bool:
    """Whether it is no more than what KSCrash writes of its own crash."""
    report = body.get("report")
    return isinstance(report, dict) and report.get("type") == "minimal"


def _report(body: ObjectReader, listed: tuple[ReportedImage, ...]) -> Report:
    warnings = body.warnings
    crash = body.inner("crash")
    images = read_images(body) or read_images(crash) or listed
    threads = ThreadReader(images, warnings)
    error = crash.inner("error")
    incident = _incident(body, error)
    process, system = _process_and_system(body)
    exception = _exception(error)
    language_exception = _language_exception(error)
    found = threads.read(crash, incident.kind)
    trees = read_profile(error, threads)
    threads.warn()
    return Report(
        kind=ReportKind.KSCRASH,
        incident=incident,
        process=process,
        system=system,
        exception=exception,
        language_exception=language_exception,
        threads=found,
        trees=trees,
        images=tuple(threads.images),
        details=body.details(),
        warnings=tuple(warnings),
    )


def _incident(body: ObjectReader, error: ObjectReader) -> Incident:
    report = body.inner("report")
    version = report.left.get("version")
    if isinstance(version, str):
        del report.left["version"]
    return Incident(
        id=report.text("id"),
        time=read_time(report, "timestamp"),
        kind=error.text("type"),
        report_version=version if isinstance(version, str) else None,
    )


def _process_and_system(body: ObjectReader) -> tuple[ReportedProcess, ReportedSystem]:
    system = body.inner("system")
    name, version = system.text("system_name"), system.text("system_version")
    process = ReportedProcess(
        name=system.text("process_name"),
        pid=system.integer("process_id"),
        path=system.text("CFBundleExecutablePath"),
        identifier=system.text("CFBundleIdentifier"),
        version=system.text("CFBundleShortVersionString"),
        build=system.text("CFBundleVersion"),
        code_type=system.text("binary_arch") or system.text("cpu_arch"),
        is_translated=system.boolean("proc_translated"),
        parent=system.text("parent_process_name"),
        parent_pid=system.integer("parent_process_id"),
        launch_time=read_time(system, "app_start_time"),
    )
    report = body.inner("report")
    if process.name is not None and report.left.get("process_name") == process.name:
        del report.left["process_name"]
    found = ReportedSystem(
        model=system.text("machine"),
        os_name=" ".join(one for one in (name, version) if one) or None,
        os_build=system.text("os_version"),
        crash_reporter_key=system.text("device_app_hash"),
    )
    return process, found


def _exception(error: ObjectReader) -> ReportedException | None:
    mach, signal = error.inner("mach"), error.inner("signal")
    address = error.integer("address")
    kind, name = mach.text("exception_name"), signal.text("name")
    codes = tuple(one for one in (mach.integer("code"), mach.integer("subcode")) if one is not None)
    subtype = mach.text("code_name")
    reason = error.text("reason")
    if kind is None and name is None and not codes and address is None and reason is None:
        return None
    return ReportedException(
        type=kind,
        signal=name,
        raw_codes=codes,
        subtype=subtype,
        address=address,
        message=reason,
    )


def _language_exception(error: ObjectReader) -> LanguageException | None:
    for key in ("nsexception", "cpp_exception", "user_reported"):
        if not isinstance(error.left.get(key), dict):
            continue
        given = error.inner(key)
        name, reason = given.text("name"), given.text("reason")
        if name is not None or reason is not None:
            return LanguageException(name=name, reason=reason, details={"kind": key})
    return None
