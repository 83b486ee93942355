"""Report files of incidents: one file for each, replaced when the incident ends."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path

from machtrace.atomic_write import replace_file
from machtrace.errors import FileAccessError
from machtrace.model.incident.facts import WatchIncident
from machtrace.model.incident.text import wall_time
from machtrace.reports.stacks.incidents import report_of_incident as report_of
from machtrace.reports.writers import write_reports

__all__ = ["report_name", "report_of", "write_incident"]

_UNSAFE = re.compile(r"[^0-9A-Za-z_-]+")
_MAX_LENGTH = 64
"""Characters of an identifier in a file's name."""


def report_name(incident: WatchIncident) -> str:
    """Return the name of an incident's file: ``hang-20261123T041012.340Z-4711-1.json``."""
    parts = [incident.kind.value]
    if incident.seen_wall_ns is not None:
        date, time, _ = wall_time(incident.seen_wall_ns).split(" ")
        parts.append(f"{date.replace('-', '')}T{time.replace(':', '')}Z")
    if incident.pid is not None:
        parts.append(str(incident.pid))
    parts.append(_UNSAFE.sub("_", incident.id)[:_MAX_LENGTH] or "0")
    return "-".join(parts) + ".json"


def write_incident(incident: WatchIncident, folder: str | PathLike[str]) -> str:
    """Write an incident's report to ``folder``, which is created, and return its path.

    The file appears whole; that of the same incident is replaced.

    Raises:
        FileAccessError: it cannot be written.
    """
    path = Path(fspath(folder), report_name(incident))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        refused = FileAccessError(str(path.parent), reason)
        refused.remedy = "pass a folder that is writable and has room"
        raise refused from error
    replace_file(str(path), [write_reports([report_of(incident)], "json")])
    return str(path)
