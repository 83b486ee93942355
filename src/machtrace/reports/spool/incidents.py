"""Incidents of a spool: what the agent's watchdog saw, in records of one incident each.

Source of the layout: ``struct machtrace_incident_record`` of ``agent/watchdog.h``.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from machtrace.model.incident.facts import (
    IncidentKind,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WatchedThread,
    WatchFacts,
)
from machtrace.model.text import counted

_RECORD = Struct("<I4BII8q4Qq")
_STACK = Struct("<qIIII")
_ENDED = 3
_KINDS = {1: "hang", 2: "cpu", 3: "memory"}
_VERDICTS = {1: "blocked", 2: "busy", 3: "starved", 4: "stopped", 5: "uninterruptible"}


class IncidentStack(NamedTuple):
    """A stack of an incident's thread."""

    time: int
    """Nanoseconds on the clock of events."""
    stack: int
    """A node, as events have it."""
    thread: int
    """The kernel's number."""
    flags: int
    """1: callers were found by a search; 2: the thread did something else meanwhile."""


class SpoolIncident(NamedTuple):
    """An incident; times are nanoseconds on the clock of events."""

    number: int
    kind: str
    """``hang``, ``cpu`` or ``memory``."""
    verdict: str
    """Why a thread hung: ``blocked``, ``busy``, ``starved``, ``stopped``, ``uninterruptible``; or
    empty.
    """
    is_certain: bool
    thread: int
    """The kernel's number; 0 if it is about the process."""
    began: int
    seen: int
    """The time of the first record."""
    last: int
    """The time of the last record."""
    has_ended: bool
    limit: int
    """Nanoseconds, percent of a processor, or bytes."""
    value: int
    """The largest, in the unit of the limit."""
    stacks: tuple[IncidentStack, ...]

    @property
    def text(self) -> str:
        """The incident in one line."""
        about = f" of thread {self.thread}" if self.thread else ""
        value, limit = (_value(self.kind, number) for number in (self.value, self.limit))
        verdict = f", {self.verdict}" if self.verdict else ""
        sure = "" if self.is_certain or not verdict else " (likely)"
        end = "" if self.has_ended else ", not ended"
        stacks = counted(len(self.stacks), "stack")
        return f"{self.kind}{about}: {value}, limit {limit}{verdict}{sure}{end}, {stacks}"

    def facts(self, pid: int) -> WatchFacts:
        """Return the incident as watchers have it; times leave system sleep out.

        Raises:
            ValueError: a number of it is out of range.
        """
        last = TimeRange(self.last, self.last)
        return WatchFacts(
            id=f"{pid}-{self.number}",
            kind=IncidentKind(self.kind),
            verdict=Verdict(self.verdict) if self.verdict else None,
            certainty=VerdictCertainty.CERTAIN if self.is_certain else VerdictCertainty.LIKELY,
            began=TimeRange(self.began, self.began),
            seen_ns=self.seen,
            ended=last if self.has_ended else None,
            pid=pid,
            threshold=_value(self.kind, self.limit),
            thread=WatchedThread(self.thread, is_main=self.thread == pid) if self.thread else None,
            duration_ns=self.last - self.began,
        )


def _value(kind: str, number: int) -> str:
    if kind == "cpu":
        return f"{number} %"
    return f"{number / 1e6:,.1f} MB" if kind == "memory" else f"{number / 1e6:,.1f} ms"


def parse_incidents(payloads: Iterable[bytes]) -> tuple[tuple[SpoolIncident, ...], int]:
    """Return the incidents in their order, and the number of payloads that are of another form.

    An incident has a record when it is seen, some while it lasts, and one when it ends; each has
    the stacks since the one before.
    """
    incidents: dict[int, SpoolIncident] = {}
    stacks: dict[int, list[IncidentStack]] = {}
    others = 0
    for payload in payloads:
        incident = _parsed(payload)
        if incident is None:
            others += 1
            continue
        before = incidents.get(incident.number, incident)
        # The last record of memory or processor time has the value that ended the incident.
        incidents[incident.number] = incident._replace(
            seen=before.seen, value=max(before.value, incident.value)
        )
        stacks.setdefault(incident.number, []).extend(incident.stacks)
    return tuple(
        incident._replace(stacks=tuple(stacks[number])) for number, incident in incidents.items()
    ), others


def _parsed(payload: bytes) -> SpoolIncident | None:
    if len(payload) < _RECORD.size:
        return None
    number, kind, phase, verdict, is_certain, thread, count, began, at, _, limit, value, *_ = (
        _RECORD.unpack_from(payload)
    )
    if kind not in _KINDS or len(payload) != _RECORD.size + _STACK.size * count:
        return None
    stacks = (
        IncidentStack(*_STACK.unpack_from(payload, _RECORD.size + _STACK.size * index)[:4])
        for index in range(count)
    )
    return SpoolIncident(
        number=number,
        kind=_KINDS[kind],
        verdict=_VERDICTS.get(verdict, ""),
        is_certain=bool(is_certain),
        thread=thread,
        began=began,
        seen=at,
        last=at,
        has_ended=phase == _ENDED,
        limit=limit,
        value=value,
        stacks=tuple(stacks),
    )
