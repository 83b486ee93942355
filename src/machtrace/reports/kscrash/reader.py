"""Reader of KSCrash's JSON, including a report of a crash inside KSCrash itself.

``crash.error.profile`` has sampled stacks, as indices into a list of frames. Source: KSCrash,
``KSCrashReportFields.h`` and its module *Profiler*, versions 2.5 and 3. Times are whole seconds,
microseconds, or text, depending on the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from machtrace.model.address import Avma
from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    LanguageException,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSystem,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.images import arch_name
from machtrace.reports.kscrash.threads import ThreadReader
from machtrace.reports.source import ReportSource


def read_profile(error: ObjectReader, reader: ThreadReader) -> tuple[SampledTree, ...]:
    """Return a tree of each thread's merged samples; none without a profile.

    The profile also stays in the details, since trees do not record the times of samples.
    """
    profile = error.left.get("profile")
    if not isinstance(profile, dict):
        return ()
    listed = profile.get("frames")
    frames = _Frames(listed if isinstance(listed, list) else [], reader)
    threads = profile.get("threads")
    alone: list[JsonValue] = [{"samples": profile.get("samples")}]
    trees = [_tree(thread, frames) for thread in (threads if isinstance(threads, list) else alone)]
    if frames.missing:
        error.warnings.append(f"{frames.missing} sampled frames are not listed")
    return tuple(tree for tree in trees if tree is not None)


class _Frames:
    """The listed frames, read on first use."""

    def __init__(self, entries: Sequence[JsonValue], reader: ThreadReader) -> None:
        self._entries = entries
        self._reader = reader
        self._read: dict[tuple[int, Adjustment], ReportedFrame] = {}
        self.missing = 0

    def get(self, number: JsonValue, adjustment: Adjustment) -> ReportedFrame | None:
        if type(number) is not int or not 0 <= number < len(self._entries):
            self.missing += 1
            return None
        key = (number, adjustment)
        if key not in self._read:
            entry = ObjectReader.of(self._entries[number], f"frame {number}", [])
            self._read[key] = self._reader.frame(entry, adjustment)
        return self._read[key]


def _tree(thread: JsonValue, frames: _Frames) -> SampledTree | None:
    samples = thread.get("samples") if isinstance(thread, dict) else None
    if not isinstance(thread, dict) or not isinstance(samples, list):
        return None
    counts: list[int] = []
    made: list[tuple[int | None, ReportedFrame]] = []
    places: dict[tuple[int | None, int, Adjustment], int] = {}
    for sample in samples:
        numbers = sample.get("frames") if isinstance(sample, dict) else None
        parent: int | None = None
        if not isinstance(numbers, list):
            continue
        for place in range(len(numbers) - 1, -1, -1):  # the innermost frame comes first
            number = numbers[place]
            adjustment = Adjustment.RETURN if place else Adjustment.EXACT
            frame = frames.get(number, adjustment)
            if frame is None or type(number) is not int:
                continue
            # Samples with the same outer frames share nodes: a node is a frame below a parent.
            key = (parent, number, adjustment)
            if key not in places:
                places[key] = len(made)
                made.append((parent, frame))
                counts.append(0)
            parent = places[key]
            counts[parent] += 1
    name = thread.get("name")
    return SampledTree(
        nodes=tuple(
            SampledNode(parent, count, frame)
            for (parent, frame), count in zip(made, counts, strict=True)
        ),
        name=name if isinstance(name, str) else None,
        count=len(samples),
        is_attributed=thread.get("is_primary") is True or thread.get("primary") is True,
    )


def read_images(body: ObjectReader) -> tuple[ReportedImage, ...]:
    """Read every image of ``binary_images``, in the report's order."""
    return tuple(map(_image, body.each("binary_images")))


def _image(entry: ObjectReader) -> ReportedImage:
    path = entry.text("name") or ""
    base = entry.integer("image_addr")
    kind, subtype = entry.left.get("cpu_type"), entry.left.get("cpu_subtype")
    arch = None
    if isinstance(kind, int) and isinstance(subtype, int):
        arch = arch_name(kind, subtype)
    return ReportedImage(
        uuid=entry.uuid("uuid"),
        name=path.rpartition("/")[2],
        path=path,
        arch=arch,
        load_address=None if base is None else Avma(base),
        size=entry.integer("image_size"),
        details=entry.details(),
    )


_MICROSECONDS = 1 << 40
"""Larger numbers are microseconds: as seconds they would be in the year 36812."""
_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999."""


def read_time(entry: ObjectReader, key: str) -> str | None:
    """Consume a time as text, in UTC: ``2025-12-09T21:29:13.629383Z``.

    A number also stays, since the text does not preserve its unit.
    """
    value = entry.left.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return entry.text(key)
    micro = value if abs(value) > _MICROSECONDS else value * 1_000_000
    if not 0 <= micro // 1_000_000 <= _LAST_SECOND:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micro)
    return moment.isoformat().replace("+00:00", "Z")


_PARTS = frozenset({"crash", "binary_images", "report", "system", "recrash_report"})
_ENOUGH = 2
_RECRASH = "recrash_report"
_OF_KSCRASH = "KSCrash crashed while writing the report that follows"


def recognises(source: ReportSource) -> bool:
    """Return whether it has the parts of such a report, or of one interrupted by another."""
    value = source.value
    if not isinstance(value, dict):
        return False
    inner = value.get(_RECRASH)
    if isinstance(inner, dict) and _PARTS & inner.keys():
        return True
    return len(_PARTS & value.keys()) >= _ENOUGH


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its reports.

    If KSCrash crashed while writing a report, there is one of that crash, and the partial first
    one. Old files nest the former in the latter.
    """
    warnings = list(source.documents[0].warnings)
    body = ObjectReader.of(source.value, "", warnings)
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
    """Return whether it is the minimal report that KSCrash writes of its own crash."""
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
    all_threads = threads.read(crash, incident.kind)
    trees = read_profile(error, threads)
    threads.warn()
    return Report(
        kind=ReportKind.KSCRASH,
        incident=incident,
        process=process,
        system=system,
        exception=exception,
        language_exception=language_exception,
        threads=all_threads,
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
    reported_system = ReportedSystem(
        model=system.text("machine"),
        os_name=" ".join(one for one in (name, version) if one) or None,
        os_build=system.text("os_version"),
        crash_reporter_key=system.text("device_app_hash"),
    )
    return process, reported_system


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
        entry = error.inner(key)
        name, reason = entry.text("name"), entry.text("reason")
        if name is not None or reason is not None:
            return LanguageException(name=name, reason=reason, details={"kind": key})
    return None
