"""The head of a report: what happened to which process, where, and warnings."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.incident.text import facts_of, headline
from machtrace.model.report import JsonValue, Report
from machtrace.model.text import counted
from machtrace.reports.analysis.fingerprint import Fingerprint
from machtrace.reports.analysis.waits.graph import process_label
from machtrace.reports.html.markup import element, folded, lines, text
from machtrace.reports.json_writer import indented

_MAX_LENGTH = 200_000
"""Characters of further details that are shown; beyond that, the complete formats are named."""


def title_of(report: Report) -> str:
    """Return a report's title in one line, as text."""
    parts = [process_label(report)]
    exception = report.exception
    if exception is not None and (exception.type or exception.signal):
        parts.append(exception.type or exception.signal or "")
    elif report.watch is not None:
        parts.append(headline(report.watch))
    elif report.incident.kind:
        parts.append(report.incident.kind)
    if report.incident.time:
        parts.append(report.incident.time)
    return " · ".join(parts)


def facts(report: Report) -> str:
    """Return the table of facts about the incident, the process and the machine."""
    rows = "".join(
        f"<dt>{text(label)}</dt><dd>{text(value)}</dd>" for label, value in _facts(report) if value
    )
    return element("dl", rows, class_="facts")


def _facts(report: Report) -> Iterator[tuple[str, str | None]]:
    incident, process, system = report.incident, report.process, report.system
    exception, termination = report.exception, report.termination
    if report.watch is not None:
        yield "What", headline(report.watch)
        for name, value in facts_of(report.watch):
            yield name.capitalize(), value
    if exception is not None:
        signal = f" ({exception.signal})" if exception.signal and exception.type else ""
        yield "Exception", (exception.type or exception.signal or "") + signal
        yield "Codes", exception.codes
        yield "Subtype", exception.subtype
        yield "Message", exception.message
        if exception.address is not None:
            yield "Failed access", f"{exception.address:#x}"
    if report.language_exception is not None:
        yield "Thrown", report.language_exception.name
        yield "Reason", report.language_exception.reason
    if termination is not None:
        code = "" if termination.code is None else f" {termination.code}"
        namespace = (termination.namespace or "") + code
        yield "Termination", " · ".join(one for one in (namespace, termination.indicator) if one)
        yield "Reasons", " · ".join(termination.reasons)
        by = termination.by_process
        pid = "" if termination.by_pid is None else f" [{termination.by_pid}]"
        yield "Ended by", None if by is None else by + pid
    yield "Process", process_label(report)
    yield "Identifier", process.identifier
    build = f" ({process.build})" if process.build else ""
    yield "Version", (process.version or "") + build
    yield "Path", process.path
    yield "Code type", process.code_type
    pid = "" if process.parent_pid is None else f" [{process.parent_pid}]"
    yield "Parent", None if process.parent is None else process.parent + pid
    yield "Role", process.role
    build = f" ({system.os_build})" if system.os_build else ""
    yield "System", (system.os_name or "") + build
    yield "Model", system.model
    yield "Time", incident.time
    yield "Launched", process.launch_time
    yield "Incident", incident.id
    kind = f" ({incident.kind})" if incident.kind else ""
    yield "Kind of report", report.kind.value + kind


def warnings(report: Report) -> str:
    """Return the warnings."""
    if not report.warnings:
        return ""
    items = "".join(element("li", text(warning)) for warning in report.warnings)
    head = counted(len(report.warnings), "warning")
    return folded(head, element("ul", items), class_="warnings")


def application_information(report: Report) -> str:
    """Return the images' last words."""
    parts: list[str] = []
    for name, texts in report.application_information:
        head = element("h4", text(name)) if name else ""
        parts.append(head + element("pre", "\n".join(lines(one) for one in texts)))
    head = element("h3", "Application information")
    return element("section", head + "".join(parts)) if parts else ""


def grouping(group: Fingerprint) -> str:
    """Return the fingerprint, and the frames behind it."""
    rows = "".join(
        element(
            "tr",
            element("td", str(frame.place), class_="number")
            + element("td", text(frame.image))
            + element("td", element("code", text(frame.name)))
            + element("td", text(frame.reason.value)),
        )
        for frame in group.frames
    )
    head = "<tr><th>Frame</th><th>Image</th><th>Name</th><th>Reason</th></tr>"
    note = f"Covers {text(group.basis.value)}."
    if group.is_build_sensitive:
        note += " Some have no name, so other builds differ."
    summary = f"Fingerprint <code>{text(group.hash)}</code> · {text(group.title)}"
    content = element("p", note) + element("table", head + rows)
    return folded(summary, content, class_="grouping")


def further_details(report: Report) -> str:
    """Return the report's other details, under the source's own names."""
    parts: dict[str, JsonValue] = {
        "report": dict(report.details),
        "incident": dict(report.incident.details),
        "process": dict(report.process.details),
        "system": dict(report.system.details),
    }
    if report.exception is not None:
        parts["exception"] = dict(report.exception.details)
    if report.termination is not None:
        parts["termination"] = dict(report.termination.details)
    nonempty: dict[str, JsonValue] = {name: part for name, part in parts.items() if part}
    if not nonempty:
        return ""
    written = indented(nonempty, 1)
    note = ""
    if len(written) > _MAX_LENGTH:
        note = element("p", f"The first {_MAX_LENGTH:,} characters; the format json has the rest.")
        written = written[:_MAX_LENGTH]
    return folded("Other details", note + element("pre", lines(written)))
