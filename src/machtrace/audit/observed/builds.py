"""Builds and devices that findings were seen in, and their changes from the oldest build on."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from machtrace.audit.observed.report import ObservedFinding, ObservedReport
from machtrace.frozen import dataclass
from machtrace.model.text import counted


class BuildChange(Enum):
    """A finding's change from an app's oldest build to its newest."""

    NEW = "new"
    REPEATED = "repeated"
    GONE = "gone"


class Build(NamedTuple):
    """One build of a program: it has an image of its own."""

    id: str
    """The identifier of the program's image; empty if it has none."""
    app: str
    started: int
    """The start of its first process, in ns since 1970."""
    processes: int
    devices: int


class Seen(NamedTuple):
    """Where a finding was seen."""

    builds: tuple[str, ...]
    """Identifiers, the oldest build first."""
    devices: tuple[str, ...]
    change: BuildChange | None
    """None if it is in neither the oldest nor the newest build, or there is only one."""


@dataclass(frozen=True, slots=True, eq=False)
class Builds:
    """The builds and devices of a report."""

    builds: tuple[Build, ...]
    """The oldest first."""
    devices: tuple[str, ...]
    seen: dict[str, Seen]
    """By a finding's identity."""

    def text(self, finding: ObservedFinding) -> str:
        """Return where a finding was seen, as a part of a sentence; empty if it is no fleet."""
        if len(self.builds) < _FLEET and len(self.devices) < _FLEET:
            return ""
        seen = self.seen[finding.identity]
        parts = [f"in {len(seen.builds):,} of {counted(len(self.builds), 'build')}"]
        if self.devices:
            parts.append(f"on {len(seen.devices):,} of {counted(len(self.devices), 'device')}")
        change = _TEXTS.get(seen.change)
        return "; ".join((", ".join(parts), *([change] if change else ())))


_FLEET = 2
"""Builds or devices, from which on findings may differ between them."""
_TEXTS: dict[BuildChange | None, str] = {
    BuildChange.NEW: "new since the oldest build",
    BuildChange.GONE: "not in the newest build",
}


def builds_of(report: ObservedReport) -> Builds:
    """Return the builds and devices of a report's processes."""
    processes = report.recording.trail.processes
    keys = [(process.app, process.build) for process in processes]
    members: dict[tuple[str, str], list[int]] = {}
    for number, key in enumerate(keys):
        members.setdefault(key, []).append(number)
    builds = [
        Build(
            id=build,
            app=app,
            started=min(processes[at].started + processes[at].wall_offset for at in rows),
            processes=len(rows),
            devices=len({processes[at].device for at in rows} - {""}),
        )
        for (app, build), rows in members.items()
    ]
    builds.sort(key=lambda each: (each.started, each.app, each.id))
    of_app: dict[str, list[tuple[str, str]]] = {}
    for each in builds:
        of_app.setdefault(each.app, []).append((each.app, each.id))
    oldest = {rows[0] for rows in of_app.values() if len(rows) > 1}
    newest = {rows[-1] for rows in of_app.values() if len(rows) > 1}
    seen: dict[str, Seen] = {}
    for finding in report.findings:
        own = {keys[number] for number in finding.processes}
        devices = {processes[number].device for number in finding.processes} - {""}
        ids = tuple(each.id for each in builds if (each.app, each.id) in own)
        change = _change(is_old=bool(own & oldest), is_new=bool(own & newest))
        seen[finding.identity] = Seen(ids, tuple(sorted(devices)), change)
    all_devices = {process.device for process in processes} - {""}
    return Builds(tuple(builds), tuple(sorted(all_devices)), seen)


def _change(*, is_old: bool, is_new: bool) -> BuildChange | None:
    if is_new:
        return BuildChange.REPEATED if is_old else BuildChange.NEW
    return BuildChange.GONE if is_old else None
