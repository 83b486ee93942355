"""Incidents as lines of JSON: one when an incident is seen, another when it has ended.

Times are nanoseconds of ``CLOCK_BOOTTIME``. A key is always present; an unknown value is null.
"""

from __future__ import annotations

import json

from machtrace.model.incident.facts import (
    STILL_OPEN,
    Culprit,
    LockOwner,
    TimeRange,
    WaitsFor,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.report import JsonValue

SCHEMA = 1
"""Raised when a reader of the old form would misread the new one; keys may be added."""


def incident_line(incident: WatchIncident, report: str | None = None) -> str:
    """Return the line of an incident, with a line end, in ASCII."""
    return json.dumps(incident_object(incident, report), separators=(",", ":")) + "\n"


def incident_object(incident: WatchIncident, report: str | None = None) -> dict[str, JsonValue]:
    """Return the object of an incident.

    Args:
        incident: the incident; its phase is ``ended`` if it has, and ``open`` if it had not when
            watching ended.
        report: the path of its report file, if one is written.
    """
    return {
        "schema": SCHEMA,
        "id": incident.id,
        "phase": _phase(incident),
        "kind": incident.kind.value,
        "verdict": None if incident.verdict is None else incident.verdict.value,
        "certainty": incident.certainty.value,
        "pid": incident.pid,
        "thread": _thread(incident.thread),
        "began_ns": _estimate(incident.began),
        "seen_ns": incident.seen_ns,
        "ended_ns": _estimate(incident.ended),
        "duration_ns": incident.duration_ns,
        "threshold": incident.threshold,
        "culprit": _culprit(incident.culprit),
        "waits_for": _wait(incident.waits_for),
        "cycle": _cycle(incident),
        "evidence": dict(incident.evidence),
        "rules": [rule.name for rule in incident.rules],
        "missing": list(incident.missing),
        "samples": len(incident.stacks),
        "report": report,
    }


def _phase(incident: WatchIncident) -> str:
    if incident.ended is not None:
        return "ended"
    return "open" if STILL_OPEN in incident.missing else "seen"


def _estimate(time: TimeRange | None) -> int | None:
    return None if time is None else time.best_ns


def _thread(thread: WatchedThread | None) -> JsonValue:
    if thread is None:
        return None
    return {"id": thread.id, "name": thread.name, "is_main": thread.is_main}


def _cycle(incident: WatchIncident) -> JsonValue:
    waits = incident.cycle_waits or (None,) * len(incident.cycle)
    return [
        {
            "id": thread.id,
            "name": thread.name,
            "is_main": thread.is_main,
            "pid": incident.pid if thread.pid is None else thread.pid,
            "waits_for": _wait(wait),
        }
        for thread, wait in zip(incident.cycle, waits, strict=False)
    ]


def _culprit(culprit: Culprit | None) -> JsonValue:
    if culprit is None:
        return None
    return {
        "function": culprit.function,
        "image": culprit.image,
        "file": culprit.file,
        "line": culprit.line,
        "share": round(culprit.share, 4),
        "native": culprit.native,
    }


def _wait(wait: WaitsFor | None) -> JsonValue:
    if wait is None:
        return None
    return {"what": wait.what, "address": wait.address, "owner": _owner(wait.owner)}


def _owner(owner: LockOwner | None) -> JsonValue:
    if owner is None:
        return None
    return {"pid": owner.pid, "thread": owner.thread, "recorded": owner.recorded}
