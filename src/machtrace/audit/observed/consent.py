"""The decision of the user when a call was made: as it was recorded, or by a marker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.process_calls import Moments
from machtrace.audit.observed.recording import Recording
from machtrace.audit.trail.calls import NO_TIME, SECOND, Consent
from machtrace.errors import RulesError

_AT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s?\Z")
_NUMBER = re.compile(r"\.\d+\Z")
"""The end of an older spool's name."""
_REMEDY = "pass call:FUNCTION, mark:TEXT, at:12.5s, log:TEXT, key or never"


class MarkerKind(Enum):
    """The kind of event that is the user's consent."""

    CALL = "call"
    """The first call of a watched function; that call itself is before."""
    MARK = "mark"
    """A text that the program, or who ran the audit, stored."""
    AT = "at"
    """Seconds after the start."""
    LOG = "log"
    """A line of the program's output that has a text."""
    KEY = "key"
    """The return key, pressed by who runs the audit."""
    NEVER = "never"


_BY_THE_PROGRAM = frozenset({MarkerKind.CALL, MarkerKind.MARK, MarkerKind.LOG})


class ConsentMarker(NamedTuple):
    """The moment of consent."""

    kind: MarkerKind
    text: str = ""
    """The function, the mark, or the text of a line."""
    seconds: float = 0.0

    @property
    def mark(self) -> str | None:
        """The text of the mark that stands for it, if it is one."""
        if self.kind is MarkerKind.KEY:
            return "consent"
        return self.text if self.kind in (MarkerKind.MARK, MarkerKind.LOG) else None


def parse_consent(text: str) -> ConsentMarker:
    """Parse ``call:FUNCTION``, ``mark:TEXT``, ``at:12.5s``, ``log:TEXT``, ``key`` or ``never``.

    Raises:
        RulesError: it is none of these.
    """
    word, colon, value = text.partition(":")
    kind = next((each for each in MarkerKind if each.value == word), None)
    is_plain = kind in (MarkerKind.KEY, MarkerKind.NEVER)
    if kind is None or is_plain is bool(colon) or (colon and not value):
        raise RulesError(f"not a moment of consent: {text!r}", remedy=_REMEDY)
    if kind is not MarkerKind.AT:
        return ConsentMarker(kind, value)
    match = _AT.match(value)
    if match is None:
        raise RulesError(f"not a time after the start: {text!r}", remedy=_REMEDY)
    return ConsentMarker(kind, seconds=float(match[1]))


def consent_states(recording: Recording, marker: ConsentMarker | None) -> npt.NDArray[np.uint8]:
    """Return the :class:`Consent` of each call: the recorded one unless a marker is passed.

    Calls without a time are unknown, unless the process did not reach the marker. So are all calls
    of a process that was attached to late, if what the program does on consent was not seen.
    """
    calls = recording.trail.calls
    if marker is None:
        return calls.consent
    processes = recording.trail.processes
    moments = [NO_TIME] * len(processes)
    for chain in _chains(recording):
        reached = [_moment(recording.moments[process], marker) for process in chain]
        moment = min((each for each in reached if each is not None), default=NO_TIME)
        for process in chain:
            moments[process] = moment
    is_unseen = [marker.kind in _BY_THE_PROGRAM and each.attached_late for each in processes]
    at = np.array(moments or [NO_TIME], np.int64)[calls.process]
    is_reached = at != NO_TIME
    states = np.full(len(calls), Consent.BEFORE, np.uint8)
    states[is_reached & (calls.time > at)] = Consent.GRANTED
    states[is_reached & (calls.time == NO_TIME)] = Consent.UNKNOWN
    states[~is_reached & np.array(is_unseen or [False])[calls.process]] = Consent.UNKNOWN
    return states


def _chains(recording: Recording) -> Iterator[list[int]]:
    """Yield the spools of each process, the oldest first: it may have begun another one."""
    processes, moments = recording.trail.processes, recording.moments
    keys = [
        (_NUMBER.sub("", source), process.pid, process.started)
        for source, process in zip(recording.sources, processes, strict=True)
    ]
    chain: list[int] = []
    for number in sorted(range(len(keys)), key=keys.__getitem__):
        if chain and not (
            moments[chain[-1]].is_continued and keys[chain[-1]][:2] == keys[number][:2]
        ):
            yield chain
            chain = []
        chain.append(number)
    if chain:
        yield chain


def _moment(moments: Moments, marker: ConsentMarker) -> int | None:
    """Return the time of consent in a process; None if it did not reach it."""
    if marker.kind is MarkerKind.AT:
        return moments.started + round(marker.seconds * SECOND)
    if marker.kind is MarkerKind.CALL:
        return moments.first_calls.get(marker.text)
    if marker.mark is None:
        return None
    return min((time for time, text in moments.marks if text == marker.mark), default=None)
