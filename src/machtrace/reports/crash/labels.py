"""Values of a text's labels, and its lines, in its layout's or its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from machtrace.model.report import (
    JsonValue,
    Report,
    ReportedException,
    ReportedTermination,
    ReportKind,
)
from machtrace.reports.crash.label_details import DETAILS, at, backtraces
from machtrace.reports.crash.layouts import AFTER, BACKTRACE, GAP, PLACES, ROWS, Layout, Row
from machtrace.reports.crash.lines import shown
from machtrace.reports.json_writer import as_text

Values = dict[str, list[str]]
"""A label's values, one for each occurrence. Continuation lines are separate; a section's value
begins with a line end.
"""
_KEYS = {
    Layout.IOS: "CrashReporter Key",
    Layout.SIMULATOR: "CrashReporter Key",
    Layout.MACOS: "Anonymous UUID",
    Layout.MACOS_26: "Crash Reporter Key",
}
_OF_APPLE = (ReportKind.APPLE_IPS, ReportKind.APPLE_CRASH)
_CRASHES = frozenset({"crash", "mach", "signal", "nsexception", "cpp_exception", "user_reported"})
"""KSCrash's and MetricKit's names for crashes; they have an exception or its name."""
_OF_IOS = (Layout.IOS, Layout.SIMULATOR)
_VERSIONS = {Layout.IOS: "104", Layout.SIMULATOR: "104", Layout.MACOS: "12"}


def label_values(report: Report, layout: Layout) -> Values:
    """Return the values by label, without unknown ones."""
    values: Values = {}
    for label, value in (*_process(report), *_system(report, layout), *_details(report)):
        if value is not None:
            values[label] = [value]
    values |= _exception(report, layout)
    values |= _crashed(report, layout)
    if "Beta" in values:
        values.pop(_KEYS[Layout.MACOS_26], None)
    else:
        values.pop("Beta Identifier", None)
    return values


def with_number(name: str | None, number: int | None) -> str | None:
    """``launchd [1]``."""
    return name if number is None else f"{name or '???'} [{number}]"


def version(name: str | None, build: str | None) -> str | None:
    """``1.0 (1)``."""
    return name if build is None else f"{name or '???'} ({build})"


def _shown(text: str | None) -> str | None:
    return None if text is None else shown(text)


def _process(report: Report) -> Iterator[tuple[str, str | None]]:
    process = report.process
    yield "Incident Identifier", _shown(report.incident.id)
    yield "Process", _shown(with_number(process.name, process.pid))
    yield "Path", _shown(process.path)
    yield "Identifier", _shown(process.identifier or _without(report, process.name))
    known = version(process.version, process.build)
    yield "Version", _shown(known or _without(report, "???"))
    yield "Code Type", _code_type(report)
    yield "Role", _shown(process.role)
    yield "Parent Process", _shown(with_number(process.parent, process.parent_pid))
    yield "Coalition", _shown(with_number(process.coalition, process.coalition_id))
    yield "User ID", None if process.user_id is None else str(process.user_id)
    yield "Launch Time", _shown(process.launch_time)


def _without(report: Report, text: str | None) -> str | None:
    """Return Apple's placeholder if the program has no bundle."""
    is_of_program = report.kind is ReportKind.APPLE_IPS and report.process.name is not None
    return text if is_of_program else None


def _system(report: Report, layout: Layout) -> Iterator[tuple[str, str | None]]:
    system = report.system
    yield _KEYS[layout], _shown(system.crash_reporter_key)
    yield "Hardware Model", _shown(system.model)
    yield "Date/Time", _shown(report.incident.time)
    yield "OS Version", _shown(version(system.os_name, system.os_build))
    yield "Release Type", _shown(system.release_type)
    yield "Baseband Version", _shown(system.baseband_version)
    yield "Incident Kind", _shown(_incident_kind(report))
    is_text = report.kind is ReportKind.APPLE_CRASH
    yield "Report Version", report.incident.report_version if is_text else _VERSIONS.get(layout)


def _code_type(report: Report) -> str | None:
    code_type = report.process.code_type
    if code_type is None:
        return None
    return shown(f"{code_type} ({'Translated' if report.process.is_translated else 'Native'})")


def _details(report: Report) -> Iterator[tuple[str, str | None]]:
    details = report.details
    for detail in DETAILS:
        value = at(details, detail.path)
        yield detail.label, None if value is None else detail.format(value)
    region = details.get("vmregioninfo")
    if isinstance(region, str):
        yield "VM Region Info", region.rstrip("\n")
    name, pid = details.get("responsibleProc"), details.get("responsiblePid")
    responsible = None
    if isinstance(name, str) and type(pid) is int:
        responsible = shown(with_number(name, pid) or "")
    yield "Responsible", responsible
    yield "Responsible Process", responsible
    plugin = details.get("plugin")
    if isinstance(plugin, dict) and isinstance(plugin.get("ShortVersionString"), str):
        build = as_text(plugin.get("Version", "???"))
        yield "PlugIn Version", f"{plugin['ShortVersionString']} ({build})"
    dyld = details.get("fatalDyldError")
    yield "Dyld Error Message", f"\n  {dyld}" if isinstance(dyld, str) else None
    yield "Exception Note", _note(report)
    lines = information_lines(report)
    yield "Application Specific Information", "\n".join(["", *lines]) if lines else None
    # Several backtraces share one row of the layout.
    yield from ((label, value) for label, value in backtraces(details))


def is_backtrace(label: str) -> bool:
    """Return whether it is a numbered backtrace label."""
    return label.startswith(BACKTRACE) and label[len(BACKTRACE) :].strip().isdecimal()


def _note(report: Report) -> str | None:
    details = report.details
    if details.get("isSimulated"):
        caller = details.get("simulatedCaller")
        note = "SIMULATED (this is NOT a crash)"
        return f"{note} requested by {caller}" if isinstance(caller, str) else note
    if details.get("isCorpse"):
        return "EXC_CORPSE_NOTIFY"
    return "NON-FATAL CONDITION (this is NOT a crash)" if details.get("isNonFatal") else None


def information_lines(report: Report) -> list[str]:
    """Return the lines of *Application Specific Information*."""
    information = [text for _, texts in report.application_information for text in texts]
    lines = [line for text in information for line in text.rstrip("\n").split("\n")]
    thrown = report.language_exception
    if thrown is not None and report.kind not in _OF_APPLE:
        reason = thrown.reason or ""
        if thrown.name is not None and not any(thrown.name in line for line in lines):
            lines.append(
                f"*** Terminating app due to uncaught exception '{shown(thrown.name)}',"
                f" reason: '{shown(reason)}'"
            )
    return lines


def _exception(report: Report, layout: Layout) -> Values:
    values: Values = {}
    exception = report.exception
    if exception is not None:
        if report.kind not in _OF_APPLE:
            exception = in_apple_terms(exception)
        values |= _exception_values(exception, layout)
        if exception.type is None and exception.signal and report.kind not in _OF_APPLE:
            values["Exception Type"] = [shown(exception.signal)]
        if (
            exception.type is None
            and exception.signal is None
            and _incident_kind(report) is not None
        ):
            del values["Exception Type"]
    if report.termination is not None:
        values |= _termination_values(report.termination, _more_reasons(report), layout)
    return values


def in_apple_terms(exception: ReportedException) -> ReportedException:
    """Return the exception of another kind of report, with codes and address in Apple's terms."""
    codes, subtype = exception.codes, exception.subtype
    if codes is None and any(exception.raw_codes):
        codes = ", ".join(f"{code % (1 << 64):#018x}" for code in exception.raw_codes)
    if subtype is not None and exception.address is not None and " at 0x" not in subtype:
        subtype = f"{subtype} at {exception.address:#018x}"
    return replace(exception, codes=codes, subtype=subtype)


def _incident_kind(report: Report) -> str | None:
    """Return the kind of incident, unless a crash: a hang, too much CPU time, a deadlock."""
    kind = report.incident.kind
    is_other = report.kind in (ReportKind.KSCRASH, ReportKind.METRICKIT)
    return kind if is_other and kind not in _CRASHES else None


def _exception_values(exception: ReportedException, layout: Layout) -> Values:
    signal = "" if exception.signal is None else f" ({exception.signal})"
    values: Values = {"Exception Type": [shown(f"{exception.type or '???'}{signal}")]}
    if exception.message is not None:
        values["Exception Message"] = [shown(exception.message)]
    codes = [] if exception.codes is None else [exception.codes]
    if exception.subtype is not None:
        if layout is Layout.MACOS:
            codes.insert(0, shown(exception.subtype))
        else:
            values["Exception Subtype"] = [shown(exception.subtype)]
    if codes:
        values["Exception Codes"] = codes
    return values


def _more_reasons(report: Report) -> list[str]:
    """Return details of ``termination`` without a field."""
    inner: JsonValue = report.details.get("termination")
    lines = inner.get("details") if isinstance(inner, dict) else None
    return [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []


def _termination_values(
    termination: ReportedTermination, more: list[str], layout: Layout
) -> Values:
    namespace, code, indicator = termination.namespace, termination.code, termination.indicator
    if layout in _OF_IOS or namespace is None:
        first = " ".join(str(one) for one in (namespace, code, indicator) if one is not None)
    else:
        first = f"Namespace {namespace}"
        if code is not None:
            first += f", Code {code}"
        if indicator:
            first += f"{',' if layout is Layout.MACOS_26 else ''} {indicator}"
    values: Values = {}
    lines = [first, *(line for text in (*termination.reasons, *more) for line in text.split("\n"))]
    if any(lines):
        values["Termination Reason"] = ["\n".join(lines)]
    who = with_number(termination.by_process, termination.by_pid)
    if who is not None:
        values["Terminating Process"] = [shown(who)]
    return values


def _crashed(report: Report, layout: Layout) -> Values:
    thread = report.crashed_thread
    if thread is None:
        return {}
    text = str(thread.index)
    if layout in _OF_IOS:
        return {"Triggered by Thread": [text]}
    name = "" if thread.name is None else f"  {shown(thread.name)}"
    queue = "" if thread.queue is None else shown(thread.queue)
    if layout is Layout.MACOS:
        text += name + (f"  Dispatch queue: {queue}" if queue else "")
        return {"Crashed Thread": [text]}
    return {"Triggered by Thread": [text + name + (f", Dispatch Queue: {queue}" if queue else "")]}


Parts = Mapping[str, Callable[[], Iterable[str]]]
"""Parts of a text that are not labels, with the functions that write their lines."""


def text_lines(
    layout: Layout, order: list[str] | None, values: Values, parts: Parts
) -> Iterator[str]:
    """Yield all lines.

    Args:
        layout: where labels are, and how wide.
        order: the labels of a text with another order, empty texts for empty lines.
        values: of the labels.
        parts: written where the layout's other rows are.
    """
    rows = ROWS[layout] if order is None else _ordered(layout, order, parts)
    was_blank = True
    for row in rows:
        if not row.label:
            if row.is_always or not was_blank:
                yield ""
            was_blank = True
            continue
        lines = [*_row(row, values, parts), *[""] * row.after]
        if len(lines) > row.after:
            yield from lines
            was_blank = not lines[-1]


def _row(row: Row, values: Values, parts: Parts) -> Iterator[str]:
    if row.label in parts:
        yield from parts[row.label]()
    elif row.label == BACKTRACE:
        for label in sorted(filter(is_backtrace, values), key=_number):
            yield from _labelled(row._replace(label=label), values[label])
            yield ""
    else:
        yield from _labelled(row, values.get(row.label, ()))


def _number(label: str) -> int:
    return int(label[len(BACKTRACE) :])


def _labelled(row: Row, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        first, *rest = value.split("\n")
        if row.label.startswith(AFTER):
            yield first
        else:
            label = f"{row.label}:"
            yield f"{label:<{max(0, row.width - 1)}s} {first}" if first else label
        yield from rest


def _ordered(layout: Layout, order: list[str], parts: Parts) -> Iterator[Row]:
    rows = {row.label: row for row in ROWS[layout] if row.label}
    usual = max(row.width for row in ROWS[layout][:4])
    seen: set[str] = set()
    for label in order:
        if not label:
            yield GAP
        elif label not in seen:
            seen.add(label)
            row = rows.get(label)
            yield Row(label, usual) if row is None else row._replace(after=0)
    for row in ROWS[layout]:  # labels of fields that the text lacks are not added
        if row.label in parts and row.label not in seen:
            yield GAP
            yield row


def is_usual(layout: Layout, labels: Iterable[str]) -> bool:
    """Return whether the layout knows these labels, in this order."""
    places = PLACES[layout]
    last = -1
    for label in labels:
        place = places.get(BACKTRACE if is_backtrace(label) else label, -1)
        if place < last or place < 0:
            return False
        last = place
    return True
