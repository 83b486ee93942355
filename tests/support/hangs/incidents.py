"""Incidents as ``machtrace watch --format jsonl`` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

IS_HANG = ("blocked", "busy", "uninterruptible")
"""The verdicts that report a hang; an uninterruptible wait is one for a device."""


@dataclass(frozen=True, slots=True)
class Line:
    """A printed line, and when it arrived."""

    arrived_ns: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident as its last line states it."""

    id: str
    kind: str
    verdict: str | None
    certainty: str
    began: int
    seen: int
    ended: int | None
    arrived: int
    """``CLOCK_BOOTTIME`` when the line of phase ``seen`` could be read."""
    duration: int | None = None
    culprit: str | None = None
    native: str | None = None
    share: float | None = None
    waits_for: str | None = None
    owner: Mapping[str, Any] | None = None
    rules: tuple[str, ...] = ()
    thread: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    """The last line."""

    @property
    def reports_hang(self) -> bool:
        """Whether it blames the program."""
        return self.kind == "hang" and self.verdict in IS_HANG

    @property
    def group(self) -> tuple[str | None, str | None]:
        """The key by which incidents are counted as the same: function and kind of wait."""
        wait = self.waits_for.split(" ")[0] if self.waits_for else None
        return self.culprit, wait

    @property
    def is_named_as_loop(self) -> bool:
        """Whether it states that the thread was in a loop, and no single task was long."""
        return any(rule in ("nested-loop", "short-tasks", "saturated-loop") for rule in self.rules)


def parse_line(arrived_ns: int, text: str) -> Line:
    """Parse a line. Raises ValueError: it is no object."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise TypeError(f"not an object: {text[:80]}")
    return Line(arrived_ns, values)


def _names(rules: object) -> tuple[str, ...]:
    if not isinstance(rules, list):
        return ()
    return tuple(str(rule.get("name")) if isinstance(rule, dict) else str(rule) for rule in rules)


def incidents_of(lines: Iterable[Line]) -> list[Incident]:
    """Join the lines of each incident."""
    rows: dict[str, list[Line]] = {}
    for line in lines:
        if "id" in line.values:
            rows.setdefault(str(line.values["id"]), []).append(line)
    incidents = []
    for number, row in rows.items():
        last = row[-1].values
        culprit, waits_for = last.get("culprit") or {}, last.get("waits_for") or {}
        incidents.append(
            Incident(
                number,
                str(last.get("kind")),
                last.get("verdict"),
                str(last.get("certainty")),
                int(last["began_ns"]),
                int(row[0].values["seen_ns"]),
                None if last.get("ended_ns") is None else int(last["ended_ns"]),
                row[0].arrived_ns,
                last.get("duration_ns"),
                culprit.get("function"),
                culprit.get("native"),
                culprit.get("share"),
                waits_for.get("what"),
                waits_for.get("owner"),
                _names(last.get("rules")),
                last.get("thread") or {},
                last.get("evidence") or {},
                int(last.get("samples") or 0),
                last,
            )
        )
    return sorted(incidents, key=lambda incident: incident.began)
