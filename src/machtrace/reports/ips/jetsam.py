"""The body of a jetsam event, bug type 298: which processes had how much memory.

It lists hundreds of processes and no stacks. The report is about the largest one, or about the one
that was ended; everything stays under its own keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from machtrace.model.json_value import Details, JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_process import (
    Incident,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)

_PID_LIMIT = 1 << 31


def is_jetsam(body: Details) -> bool:
    """Whether it is such a body."""
    return isinstance(body.get("processes"), list) and (
        "largestProcess" in body or "memoryStatus" in body
    )


def read_jetsam(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    """The report."""
    ended = _process(body, lambda one: isinstance(one.get("reason"), str))
    largest = _text(body.get("largestProcess"))
    shown = _process(body, lambda one: _text(one.get("name")) == largest) or {}
    about = ended if ended is not None else shown
    name, build = parted(body.get("build"))
    date = body.get("date")
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=replace(incident, time=date) if isinstance(date, str) else incident,
        process=ReportedProcess(
            name=_text(about.get("name")) or largest, pid=_pid(about.get("pid"))
        ),
        system=ReportedSystem(
            model=_text(body.get("product")),
            os_name=name,
            os_build=build,
            crash_reporter_key=_text(body.get("crashReporterKey")),
        ),
        termination=None
        if ended is None
        else ReportedTermination(namespace="JETSAM", indicator=_text(ended.get("reason"))),
        details=body,
        warnings=tuple(warnings),
    )


def _process(
    body: Details, is_it: Callable[[dict[str, JsonValue]], bool]
) -> dict[str, JsonValue] | None:
    processes = body.get("processes")
    for one in processes if isinstance(processes, list) else ():
        if isinstance(one, dict) and is_it(one):
            return one
    return None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _pid(value: JsonValue) -> int | None:
    return value if type(value) is int and 0 <= value < _PID_LIMIT else None


def parted(value: JsonValue) -> tuple[str | None, str | None]:
    """Name and build of ``iPhone OS 15.5 (19F77)``."""
    if not isinstance(value, str):
        return None, None
    name, bracket, build = value.partition(" (")
    return (name, build[:-1]) if bracket and build.endswith(")") else (value, None)
