"""A report as Apple's text, report version 104: what devices write, and Xcode makes of .ips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_thread import ReportedThread
from machtrace.report.crash.frames import frame_lines
from machtrace.report.crash.registers import flavor_name, register_lines
from machtrace.report.printable import printable


def write(reports: Sequence[Report]) -> str:
    """The texts of several, one after another."""
    return "\n".join(crash_text(report) for report in reports)


def crash_text(report: Report) -> str:
    """The file's text."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield ""
    yield from _labels(_process(report))
    yield ""
    yield from _labels(_system(report))
    yield ""
    yield from _exception(report)
    yield ""
    crashed = report.crashed_thread
    if crashed is not None:
        yield f"Triggered by Thread:  {crashed.index}"
        yield ""
    yield from _sections(report)
    if report.language_exception is not None and report.language_exception.frames:
        yield "Last Exception Backtrace:"
        yield from frame_lines(report.language_exception.frames, report.images)
        yield ""
    yield ""
    for thread in report.threads:
        yield from _thread(thread, report)
        yield ""
    yield ""
    if crashed is not None and crashed.registers is not None:
        yield f"Thread {crashed.index} crashed with {flavor_name(crashed.registers.flavor)}:"
        yield from register_lines(crashed.registers)
        yield ""
    yield "Binary Images:"
    yield from (image_line(image) for image in report.images if image.size)
    yield ""
    yield "EOF"
    yield ""


def _labels(pairs: list[tuple[str, str | None]]) -> Iterator[str]:
    for label, value in pairs:
        if value is not None:
            yield f"{label + ':':<20s} {printable(value)}"


def _process(report: Report) -> list[tuple[str, str | None]]:
    process, system = report.process, report.system
    return [
        ("Incident Identifier", report.incident.id),
        ("CrashReporter Key", system.crash_reporter_key),
        ("Hardware Model", system.model),
        ("Process", with_number(process.name, process.pid)),
        ("Path", process.path),
        ("Identifier", process.identifier),
        ("Version", version(process.version, process.build)),
        ("Code Type", _code_type(report)),
        ("Role", process.role),
        ("Parent Process", with_number(process.parent, process.parent_pid)),
        ("Coalition", with_number(process.coalition, process.coalition_id)),
    ]


def _system(report: Report) -> list[tuple[str, str | None]]:
    system = report.system
    return [
        ("Date/Time", report.incident.time),
        ("Launch Time", report.process.launch_time),
        ("OS Version", version(system.os_name, system.os_build)),
        ("Release Type", system.release_type),
        ("Baseband Version", system.baseband_version),
        ("Report Version", "104"),
    ]


def with_number(name: str | None, number: int | None) -> str | None:
    """``launchd [1]``."""
    return name if number is None else f"{name or '???'} [{number}]"


def version(name: str | None, build: str | None) -> str | None:
    """``1.0 (1)``."""
    return name if build is None else f"{name or '???'} ({build})"


def _code_type(report: Report) -> str | None:
    code_type = report.process.code_type
    if code_type is None:
        return None
    return f"{code_type} ({'Translated' if report.process.is_translated else 'Native'})"


def _exception(report: Report) -> Iterator[str]:
    exception, termination = report.exception, report.termination
    if exception is not None:
        signal = "" if exception.signal is None else f" ({exception.signal})"
        yield f"Exception Type:  {exception.type or '???'}{signal}"
        if exception.subtype is not None:
            yield f"Exception Subtype: {printable(exception.subtype)}"
        if exception.message is not None:
            yield f"Exception Message: {printable(exception.message)}"
        if exception.codes is not None:
            yield f"Exception Codes: {exception.codes}"
    region = report.details.get("vmRegionInfo", report.details.get("vmregioninfo"))
    if isinstance(region, str):
        yield from f"VM Region Info: {region}".rstrip("\n").split("\n")
    if report.details.get("isCorpse"):
        yield "Exception Note:  EXC_CORPSE_NOTIFY"
    if termination is not None:
        words = (termination.namespace, termination.code, termination.indicator)
        yield "Termination Reason: " + " ".join(str(one) for one in words if one is not None)
        yield from (
            line for text in (*termination.reasons, *_details(report)) for line in text.split("\n")
        )
        if termination.by_process is not None:
            who = with_number(termination.by_process, termination.by_pid)
            yield f"Terminating Process: {who}"


def _details(report: Report) -> tuple[str, ...]:
    """``termination``'s details, which no field of the model has."""
    inner = report.details.get("termination")
    lines = inner.get("details") if isinstance(inner, dict) else None
    return tuple(one for one in lines if isinstance(one, str)) if isinstance(lines, list) else ()


def _sections(report: Report) -> Iterator[str]:
    if report.application_information:
        yield "Application Specific Information:"
        for _, said in report.application_information:
            yield from (line for text in said for line in text.rstrip("\n").split("\n"))
        yield ""
    triage: JsonValue = report.details.get("ktriageinfo")
    if isinstance(triage, str) and triage:
        yield "Kernel Triage:"
        yield from triage.rstrip("\n").split("\n")
        yield ""


def _thread(thread: ReportedThread, report: Report) -> Iterator[str]:
    name = _name(thread)
    if name:
        yield f"Thread {thread.index} name: {name}"
    yield f"Thread {thread.index}{' Crashed' if thread.crashed else ''}:"
    yield from frame_lines(thread.frames, report.images)


def _name(thread: ReportedThread) -> str:
    words = " " + printable(thread.name) if thread.name else " "
    if thread.queue:
        words += f" Dispatch queue: {printable(thread.queue)}"
    return words if words != " " else ""


def image_line(image: ReportedImage) -> str:
    """``base - last name arch  <uuid> path``."""
    base = image.load_address or 0
    uuid = "???" if image.uuid is None else image.uuid.hex
    ends = f"{base:>#18x} - {base + max(1, image.size or 1) - 1:>#18x}"
    name = printable(image.name) or "???"
    return f"{ends} {name} {image.arch or '???'}  <{uuid}> {printable(image.path)}"
