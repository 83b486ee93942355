"""Decisions about issues, which stay when an issue gets another identifier.

An issue's identifier is that of its fingerprint, so that it changes when symbols arrive. Where all
variants of an issue have moved, the old identifier becomes an alias of the one that most of its
reports have now. No decision is ever deleted: one about an alias is one about the issue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

VariantKey: TypeAlias = tuple[str, bytes, str]
"""The kind of a report, the key of the stack that it is about, and what a hang waited for."""
_MAX_ALIASES = 1000
"""Aliases that are followed."""


class State(StrEnum):
    """A decision about an issue."""

    OPEN = "open"
    RESOLVED = "resolved"
    IGNORED = "ignored"


class Decision(NamedTuple):
    """A person's decision."""

    issue: str
    """As it was identified then."""
    state: State
    note: str
    changed: int
    """In ns since 1970."""


def moved_issues(
    before: Mapping[VariantKey, str],
    now: Mapping[VariantKey, str],
    reports: Mapping[VariantKey, int],
    aliases: Mapping[str, str],
    others: Collection[str] = (),
) -> dict[str, str]:
    """Return the aliases after variants were grouped again.

    Args:
        before: by variant: its issue until now.
        now: its issue from now on.
        reports: how many reports a variant has.
        aliases: those until now, by old identifier.
        others: the issues of variants that were not grouped again.

    Returns:
        By old identifier the new one. An identifier that an issue has now is no alias.
    """
    live = {*now.values(), *others}
    votes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, old in before.items():
        if key in now:
            votes[old][now[key]] += reports.get(key, 1)
    made = {old: new for old, new in aliases.items() if old not in live}
    for old, candidates in votes.items():
        if old not in live:
            made[old] = min(candidates, key=lambda new: (-candidates[new], new))
    return made


def resolve(issue: str, aliases: Mapping[str, str]) -> str:
    """Return the present identifier of an issue."""
    for _ in range(_MAX_ALIASES):
        if issue not in aliases:
            break
        issue = aliases[issue]
    return issue


def decisions_by_issue(
    decisions: Iterable[Decision], aliases: Mapping[str, str]
) -> dict[str, list[Decision]]:
    """Return the decisions about each present issue; the one that holds is the first.

    That is the latest about the issue itself; without any the latest about an alias of it.
    """
    by_issue: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_issue[resolve(decision.issue, aliases)].append(decision)
    for issue, rows in by_issue.items():
        rows.sort(key=lambda row: (row.issue != issue, -row.changed, row.issue))
    return dict(by_issue)
