"""Threads as reports have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from machtrace.model.json_value import NO_DETAILS, Details
from machtrace.model.reported_frame import ReportedFrame


class ReportedRegister(NamedTuple):
    """A register's value in a report."""

    name: str
    """As the report calls it: ``x0``, ``rip``."""
    value: int
    """Unsigned, with the signature bits that it may have had."""
    description: str | None = None
    """What the report says that it means: ``(Breakpoint) brk 1``."""
    details: Details = NO_DETAILS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRegisters:
    """The state of a thread's processor."""

    registers: tuple[ReportedRegister, ...]
    """In the report's order."""
    flavor: str | None = None
    """``ARM_THREAD_STATE64``, or what the report calls it."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedThread:
    """A thread, with the frames that were walked when the report was made."""

    index: int
    """The number that the report gives it, from 0."""
    id: int | None = None
    """System-wide; None where the report has none."""
    name: str | None = None
    queue: str | None = None
    """Label of the dispatch queue that the thread was serving."""
    crashed: bool = False
    """Whether it is the one that the report is about."""
    frames: tuple[ReportedFrame, ...] = ()
    """Innermost first, whatever the file's direction was."""
    registers: ReportedRegisters | None = None
    details: Details = field(default_factory=dict)
