"""The body of a panic, bug type 210: what the kernel said when it stopped.

It is one text, ``panicString``, with registers and a backtrace of the kernel's; those of devices
have the stacks of all processes below it, as a stackshot has. Everything stays under its own keys.
"""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.json_value import Details, JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_process import Incident, ReportedSystem
from machtrace.reports.ips.jetsam import parted

_SAID = "panicString"
_REASON = "reason"


def is_panic(body: Details) -> bool:
    """Whether it is such a body."""
    return isinstance(body.get(_SAID), str)


def last_words(body: Details) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the kernel said, as what an application says of itself; of a stackshot why it is."""
    said = body.get(_SAID, body.get(_REASON))
    return (("", (said,)),) if isinstance(said, str) and said else ()


def read_panic(incident: Incident, body: dict[str, JsonValue], warnings: list[str]) -> Report:
    """The report."""
    name, build = parted(body.get("build") or body.get("macOSVersion"))
    date = body.get("date")
    return Report(
        kind=ReportKind.APPLE_IPS,
        incident=replace(incident, time=date) if isinstance(date, str) else incident,
        system=ReportedSystem(
            model=_text_or_none(body.get("product")),
            os_name=name,
            os_build=build,
            crash_reporter_key=_text_or_none(body.get("crashReporterKey")),
        ),
        application_information=last_words(body),
        details=body,
        warnings=tuple(warnings),
    )


def _text_or_none(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None
