"""Why each frame of a stack counts in the fingerprint, or does not."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from machtrace.model.report import ReportedFrame, ReportedTask
from machtrace.reports.analysis.fingerprint import (
    MAX_FRAMES,
    choose_frames,
    counted_frame,
    owners_of,
)
from machtrace.reports.analysis.frame_owner import NOWHERE, OwnerReason, Ownership
from machtrace.reports.analysis.grouping_rules import GroupingRules, Raised, RuleLine

_NO_RULES = GroupingRules("", "", (), ())


class FrameUse(Enum):
    """Whether a frame counts, or the reason why not."""

    HASHED = "it counts"
    OFFSET = "it counts by its offset, since it has no name: the next build differs"
    NOT_APP = "it is not the app's"
    REMOVED = "a grouping rule removes it"
    RECURSION = "recursion: it repeats frames that count"
    BEYOND = "enough frames count before it"

    @property
    def contributes(self) -> bool:
        """Whether the frame counts."""
        return self in {FrameUse.HASHED, FrameUse.OFFSET}


class FrameExplanation(NamedTuple):
    """Why a frame counts or not."""

    place: int
    """Its index in the stack, from 0, innermost first."""
    image: str
    name: str
    """As hashed."""
    use: FrameUse
    owner: OwnerReason
    """Why it is the app's or not."""
    is_app: bool
    category: str = ""
    rule: RuleLine | None = None
    """The rule that decided; None if it is as without rules."""

    @property
    def contributes(self) -> bool:
        """Whether the frame counts."""
        return self.use.contributes

    def __str__(self) -> str:
        reason = self.use.value
        if self.use in {FrameUse.HASHED, FrameUse.NOT_APP}:
            reason = f"{reason}: {self.owner.value}"
        return reason if self.rule is None else f"{reason} ({self.rule})"


def explained(
    frames: Sequence[ReportedFrame],
    task: ReportedTask,
    owners: Sequence[Ownership] | None = None,
    rules: GroupingRules | None = None,
    *,
    raised: Raised | None = None,
    most: int = MAX_FRAMES,
) -> tuple[FrameExplanation, ...]:
    """Return for each frame of a stack whether it counts in the fingerprint, and why.

    Arguments are those of :func:`~machtrace.reports.analysis.fingerprint.fingerprint`.
    """
    owners = owners_of(task) if owners is None else owners
    whose = [NOWHERE if frame.image is None else owners[frame.image] for frame in frames]
    choice = choose_frames(frames, task, whose, rules or _NO_RULES, raised)
    applied = choice.applied
    places = [frame.place for frame in choice.frames]
    unfolded = set(places)
    hashed = set(places[: choice.most(most)])
    limit = applied.limit
    result: list[FrameExplanation] = []
    for at, verdict in enumerate(applied.verdicts):
        counted = counted_frame(at, frames[at], whose[at], task)
        owner = whose[at].reason if verdict.app_rule is None else OwnerReason.RULE
        rule = None
        if at in hashed:
            use = FrameUse.HASHED if counted.is_named else FrameUse.OFFSET
            rule = None if applied.without_frames else verdict.group_rule or verdict.app_rule
        elif not verdict.contributes:
            removed = verdict.group_rule
            use = FrameUse.NOT_APP if removed is None else FrameUse.REMOVED
            rule = verdict.app_rule if removed is None else removed
        elif at in unfolded:
            use = FrameUse.BEYOND
            rule = None if limit is None or limit.frames >= most else limit.rule
        else:
            use = FrameUse.RECURSION
        result.append(
            FrameExplanation(
                place=at,
                image=counted.image,
                name=counted.name,
                use=use,
                owner=owner,
                is_app=verdict.is_app,
                category=verdict.category,
                rule=rule,
            )
        )
    return tuple(result)
