"""Policies: what a report states as a fault, as a warning or as a note.

Each is a line ``condition: severity``, such as ``before-consent: fault``, ``every < 30 s: warn``,
``background: warn``, ``undeclared: fault``, ``not in list: fault``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from machtrace.errors import RulesError
from machtrace.frozen import dataclass

_EVERY = re.compile(r"every\s*<\s*(\d{1,6}(?:\.\d{1,6})?)\s*s\Z")


class Severity(Enum):
    """The meaning of a finding for a release."""

    FAULT = "fault"
    """The app would be rejected, or gets data that it does not declare."""
    WARNING = "warning"
    """A check of names may reject it, or a person must decide."""
    NOTE = "note"


class Condition(Enum):
    """The circumstance of a call."""

    BEFORE_CONSENT = "before-consent"
    EVERY = "every"
    """It is repeated after less than a number of seconds."""
    BACKGROUND = "background"
    UNDECLARED = "undeclared"
    """No manifest declares its required-reason category."""
    NOT_LISTED = "not in list"
    """Its library is not among those that are allowed."""
    UNREACHED = "undeclared-unreached"
    """Code calls it and no manifest declares it, and no call was observed."""
    UNTESTED = "declared-unreached"
    """Code calls it as a manifest declares, and no call was observed."""
    IN_VAIN = "declared-in-vain"
    """A manifest declares what neither code calls nor a run."""


_SEVERITIES = {
    "fault": Severity.FAULT,
    "warn": Severity.WARNING,
    "warning": Severity.WARNING,
    "note": Severity.NOTE,
    "ignore": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The severity of one condition."""

    condition: Condition
    severity: Severity | None
    """None if the condition is ignored."""
    seconds: float | None = None
    """The least time between two calls, of :attr:`Condition.EVERY`."""

    def __str__(self) -> str:
        limit = "" if self.seconds is None else f" < {self.seconds:g} s"
        severity = "ignore" if self.severity is None else self.severity.value
        return f"{self.condition.value}{limit}: {severity}"


def parse_policies(lines: Iterable[str], source: str) -> tuple[Policy, ...]:
    """Parse the policies of a file.

    Raises:
        RulesError: a line is not a policy, or two have the same condition.
    """
    policies: dict[Condition, Policy] = {}
    for line in lines:
        policy = _policy(line, source)
        if policy.condition in policies:
            raise RulesError(f"{source}: two policies for {policy.condition.value!r}")
        policies[policy.condition] = policy
    return tuple(policies.values())


def _policy(line: str, source: str) -> Policy:
    text, colon, word = (part.strip() for part in line.partition(":"))
    every = _EVERY.match(text)
    known = {each.value: each for each in Condition if each is not Condition.EVERY}
    condition = Condition.EVERY if every else known.get(text)
    if not colon or condition is None or word not in _SEVERITIES:
        raise RulesError(
            f"{source}: not a policy: {line!r}",
            remedy="write one of before-consent, every < SECONDS s, background, undeclared, "
            "not in list, undeclared-unreached, declared-unreached, declared-in-vain, a colon, and "
            "one of fault, warn, note, ignore",
        )
    return Policy(
        condition=condition,
        severity=_SEVERITIES[word],
        seconds=float(every[1]) if every else None,
    )
