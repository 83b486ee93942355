"""Differences between two sets of reports or profiles: functions, and groups of reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from machtrace.model.report import Report
from machtrace.reports.analysis.function_costs import FunctionCosts, FunctionKey
from machtrace.reports.analysis.groups import ReportGroup, report_groups


class FunctionDifference(NamedTuple):
    """A function in two sets; shares are of each set's own stacks, from 0 to 1."""

    function: FunctionKey
    own_before: int
    own_after: int
    total_before: int
    total_after: int
    own_share_before: float
    own_share_after: float
    total_share_before: float
    total_share_after: float

    @property
    def own_change(self) -> float:
        """The change of its own share; negative if it shrank."""
        return self.own_share_after - self.own_share_before

    @property
    def total_change(self) -> float:
        """The change of its total share."""
        return self.total_share_after - self.total_share_before


class Change(Enum):
    """How a group changed."""

    NEW = "new"
    GONE = "gone"
    MORE = "more"
    """Its share of the reports grew."""
    LESS = "less"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """A group of reports in two sets."""

    group: ReportGroup
    """The group in the set after; of a group that is gone, the group before."""
    change: Change
    before: int
    """The number of its reports."""
    after: int


def function_differences(
    before: FunctionCosts, after: FunctionCosts
) -> tuple[FunctionDifference, ...]:
    """Return each function of either set, largest change of own or total share first."""
    olds = {
        difference.function: (difference.own, difference.total) for difference in before.functions
    }
    news = {
        difference.function: (difference.own, difference.total) for difference in after.functions
    }
    differences: list[FunctionDifference] = []
    for function in {**olds, **news}:
        own_before, total_before = olds.get(function, (0, 0))
        own_after, total_after = news.get(function, (0, 0))
        differences.append(
            FunctionDifference(
                function,
                own_before,
                own_after,
                total_before,
                total_after,
                before.share(own_before),
                after.share(own_after),
                before.share(total_before),
                after.share(total_after),
            )
        )
    differences.sort(
        key=lambda difference: (
            -abs(difference.own_change),
            -abs(difference.total_change),
            difference.function,
        )
    )
    return tuple(differences)


def group_differences(
    before: Sequence[Report], after: Sequence[Report]
) -> tuple[GroupDifference, ...]:
    """Return each group of either set: new ones, then gone ones, then changed ones."""
    olds = {group.fingerprint.hash: group for group in report_groups(before)}
    news = {group.fingerprint.hash: group for group in report_groups(after)}
    differences: list[GroupDifference] = []
    for key, group in {**olds, **news}.items():
        was = olds[key].count if key in olds else 0
        now = news[key].count if key in news else 0
        change = _change(was * len(after), now * len(before), was=was, now=now)
        differences.append(GroupDifference(group=group, change=change, before=was, after=now))
    order = list(Change)
    differences.sort(
        key=lambda difference: (
            order.index(difference.change),
            -difference.after,
            -difference.before,
        )
    )
    return tuple(differences)


def _change(old_share: int, new_share: int, *, was: int, now: int) -> Change:
    if not was:
        return Change.NEW
    if not now:
        return Change.GONE
    if new_share == old_share:
        return Change.SAME
    return Change.MORE if new_share > old_share else Change.LESS
