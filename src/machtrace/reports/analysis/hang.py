"""How long a report's thread hung, and what it waited for.

Sources: a watcher's facts; MetricKit's ``hangDuration``, a measurement in the device's language
(``1.5 sec``, ``1,5 s``); a spindump's ``Duration``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from machtrace.model.incident.facts import IncidentKind
from machtrace.model.report import Report, ReportKind
from machtrace.model.text import printable
from machtrace.reports.analysis.waits.graph import wait_graph

_MEASURED = re.compile(r"\s*([0-9]{1,9}(?:[.,][0-9]{1,9})?)\s*(ms|mins?|h|hr)?")
_UNITS = {"ms": 1e-3, "min": 60.0, "mins": 60.0, "h": 3600.0, "hr": 3600.0}
_HANG = "hang"


class Hang(NamedTuple):
    """A time in which a thread did not return to its events."""

    duration: int | None
    """In ns; None if the report does not state it."""
    waits_for: str
    """The object or thread that it waited for, with its owner if that is known; may be empty."""


def hang_of(report: Report) -> Hang | None:
    """Return the hang that a report is about; None if it is about something else."""
    watch = report.watch
    if watch is not None:
        if watch.kind not in (IncidentKind.HANG, IncidentKind.DEADLOCK):
            return None
        stated = "" if watch.waits_for is None else watch.waits_for.text(watch.pid)
        return Hang(watch.duration_ns or None, stated or _owner(report))
    if (report.incident.kind or "").lower() != _HANG:
        return None
    return Hang(_duration(report), _owner(report))


def _duration(report: Report) -> int | None:
    text: object = report.details.get("Duration")
    if report.kind is ReportKind.METRICKIT:
        metadata = report.details.get("diagnosticMetaData")
        text = metadata.get("hangDuration") if isinstance(metadata, dict) else None
        text = report.details.get("hangDuration") if text is None else text
    match = _MEASURED.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    return round(float(match[1].replace(",", ".")) * _UNITS.get(match[2], 1.0) * 1e9)


def _owner(report: Report) -> str:
    """Return the owner of what the first thread waits for, as the report names it."""
    graph = wait_graph(report)
    edge = next((each for each in graph.edges if each.waiter == 0), None)
    return "" if edge is None else printable(edge.owner_label)
