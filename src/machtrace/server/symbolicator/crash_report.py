"""Crash reports for Symbolicator's interface: their stacks as a request, and their facts.

Symbolicator reads Apple's text; here any report is read. The facts are named as in its
``CompletedSymbolicationResponse``.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from machtrace.model.report import Report, ReportedThread
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, RefusedError
from machtrace.server.stored_modules import DebugId
from machtrace.server.symbolicator.request import Frame, Module, Request, Stack
from machtrace.warehouse.builder import parse_time

_HEADING = re.compile(rb"^(Thread [0-9]{1,9}(?: Crashed)?):[ \t]+(?=\S)", re.MULTILINE)
"""A thread's name after one colon, as Unreal Engine writes it; Apple's reports have two."""
_MACOS = re.compile(r"Mac OS X (\d+\.\d+\.\d+)")
_ARCHES = {"x86-64": "x86_64", "arm-64": "arm64", "x86": "x86", "arm": "arm"}
_NS = 1_000_000_000


def read_crash_report(data: bytes, most: int) -> tuple[Request, dict[str, Any]]:
    """Return the stacks of a crash report, and what the answer states besides.

    Args:
        data: the report.
        most: the number of frames.

    Raises:
        FormatError: no reader knows the format, or it is damaged.
        RefusedError: it is too large, or has no report.
    """
    data = _HEADING.sub(rb"\1:: ", data)
    reports = read_source(ReportSource("apple_crash_report", data)).reports
    if not reports:
        raise RefusedError(BAD_REQUEST, "it has no report")
    report = reports[0]
    if sum(len(thread.frames) for thread in report.threads) > most:
        raise RefusedError(TOO_LARGE, f"more than {most} frames")
    request = Request(
        stacks=tuple(_stack(report, thread) for thread in report.threads),
        modules=tuple(_modules(report)),
    )
    return request, _facts(report)


def _stack(report: Report, thread: ReportedThread) -> Stack:
    frames: list[Frame] = []
    for frame in thread.frames:
        if frame.address is None or frame.is_inline:
            continue
        fields = {"instruction_addr": hex(frame.address)}
        package = "" if frame.image is None else report.images[frame.image].name
        package = package or str(frame.details.get("image") or "")
        if package and package != "???":
            fields["package"] = package
        frames.append(Frame(address=frame.address, module=None, adjust=None, fields=fields))
    registers = () if thread.registers is None else thread.registers.registers
    facts: dict[str, Any] = {"thread_id": thread.index, "is_requesting": thread.crashed}
    if thread.name:
        facts["thread_name"] = thread.name
    return Stack(
        frames=tuple(frames),
        registers={register.name: register.value for register in registers},
        fields=facts,
    )


def _modules(report: Report) -> list[Module]:
    made: list[Module] = []
    for image in report.images:
        if image.load_address is None or image.uuid is None:
            continue
        # It subtracts the image's first address from its last one.
        size = max(0, (image.size or 0) - 1)
        code_id, path = image.uuid.hex, image.path or image.name
        debug_id = DebugId(image.uuid, 0) if isinstance(image.uuid, UUID) else None
        fields: dict[str, Any] = {
            "type": "macho" if debug_id is not None else "elf",
            "code_id": code_id,
            "code_file": path,
            **({} if debug_id is None else {"debug_id": str(debug_id)}),
            "debug_file": path,
            "image_addr": hex(image.load_address),
            **({"image_size": size} if size else {}),
        }
        made.append(
            Module(
                start=image.load_address,
                size=size,
                debug_id=debug_id,
                code_id=code_id,
                code_file=path,
                fields=fields,
            )
        )
    return made


def _facts(report: Report) -> dict[str, Any]:
    system, raised = report.system, report.exception
    name, version, build = system.os_name or "", "", system.os_build or ""
    if match := _MACOS.fullmatch(name):
        name, version = "macOS", match[1]
    elif build:
        name, build = f"{name} ({build})", ""
    code = (report.process.code_type or "").partition(" ")[0].lower()
    facts: dict[str, Any] = {
        "system_info": {
            "os_name": name,
            "os_version": version,
            "os_build": build,
            "cpu_arch": _ARCHES.get(code, "unknown"),
            "device_model": system.model or "",
        },
        "crashed": True,
    }
    time = parse_time(report.incident.time)
    if time is not None:
        facts["timestamp"] = time // _NS
    reason = "" if raised is None else raised.type or raised.signal or ""
    if raised is not None and raised.type and raised.signal:
        reason = f"{raised.type} ({raised.signal})"
    lines = [line for _, texts in report.application_information for line in texts]
    details = "\n".join(lines) or (
        "" if raised is None else raised.message or raised.subtype or raised.codes or ""
    )
    facts |= {"crash_reason": reason} if reason else {}
    return facts | ({"crash_details": details} if details else {})
