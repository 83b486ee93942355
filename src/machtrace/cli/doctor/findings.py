"""What a check of ``machtrace doctor`` finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How well something works here."""

    OK = "ok"
    LIMITED = "limited"
    """It works for some things, or slower than it could."""
    MISSING = "missing"
    """It does not work, or is not there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    state: State
    found: str
    """What is there, in words."""
    remedy: str = ""
    """What the user can do, in the imperative; empty where nothing needs doing."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and how it is answered."""

    topic: str
    """What it belongs to, in the output's headings."""
    name: str
    """What it is about; no two of one run have the same."""
    ask: Callable[[], Finding]
    is_needed: bool = False
    """Whether the capture that was asked for takes it: it decides the exit status."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A check with what it found."""

    check: Check
    finding: Finding

    @property
    def fails(self) -> bool:
        """Whether what was asked for does not work."""
        return self.check.is_needed and self.finding.state is State.MISSING
