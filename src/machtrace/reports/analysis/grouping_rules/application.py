"""Applies grouping rules to a stack: which frames are the app's, which count, and by which rule.

Rules are applied in their order to all frames: first the actions that change what matchers see
(``app``, ``category``), then those that choose frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from machtrace.reports.analysis.grouping_rules.rules import (
    Field,
    FingerprintRule,
    GroupingRules,
    Matcher,
    Matchers,
    Part,
    Raised,
    Reach,
    RuleFrame,
    RuleLine,
    StackRule,
)


class Verdict(NamedTuple):
    """A frame after the rules."""

    is_app: bool
    contributes: bool
    """Whether it counts, before recursion is folded and the number of frames is limited."""
    category: str = ""
    app_rule: RuleLine | None = None
    """The last rule that set whether it is the app's; None if its owner decides."""
    group_rule: RuleLine | None = None
    """The last rule that added it to the fingerprint or removed it."""
    category_rule: RuleLine | None = None


class Limit(NamedTuple):
    """A number of frames that a rule sets."""

    frames: int
    rule: RuleLine


class AppliedRules(NamedTuple):
    """A stack after the rules."""

    verdicts: tuple[Verdict, ...]
    """A frame each, innermost first."""
    of_app: bool
    """Whether the app's frames count; otherwise all do."""
    limit: Limit | None = None
    """The number of frames that count at most."""
    without_frames: bool = False
    """Whether the rules would leave no frame, or too few: then -group is not applied."""
    named: FingerprintRule | None = None
    """The rule that sets the fingerprint."""


def apply(
    rules: GroupingRules,
    frames: Sequence[RuleFrame],
    are_app: Sequence[bool],
    raised: Raised = Raised(),  # noqa: B008 - immutable
) -> AppliedRules:
    """Apply rules to a stack; time is bounded by the number of rules times that of frames.

    Args:
        rules: they are applied in their order.
        frames: innermost first.
        are_app: whether each frame is the app's by its owner.
        raised: the cause of the report.
    """
    stack = _Stack(rules, frames, are_app, raised)
    stack.modify()
    return stack.applied()


def resolved(
    parts: Sequence[Part], frames: Sequence[RuleFrame], applied: AppliedRules, raised: Raised
) -> tuple[str, ...]:
    """Return the texts of a fingerprint's parts; ``default`` is left empty.

    Variables of frames are those of the innermost one of the app, or of all if none is the app's.
    """
    mine = (each for each, verdict in zip(frames, applied.verdicts, strict=True) if verdict.is_app)
    frame = next(mine, frames[0] if frames else RuleFrame())
    path = frame.path.replace("\\", "/")
    values = {
        "function": frame.functions[-1] if frame.functions else "",
        "package": frame.package.replace("\\", "/").rpartition("/")[2],
        "module": frame.module,
        "path": path,
        "filename": path.rpartition("/")[2],
        "type": next(iter(raised.types), ""),
        "value": next(iter(raised.values), ""),
        "mechanism": next(iter(raised.mechanisms), ""),
        "default": "",
    }
    return tuple(
        values[part.text] or ("" if part.text == "default" else f"<no-{part.text}>")
        if part.is_variable
        else part.text
        for part in parts
    )


class _Stack:
    """A stack to which rules are applied: outermost frame first, as actions reach by that order."""

    def __init__(
        self,
        rules: GroupingRules,
        frames: Sequence[RuleFrame],
        are_app: Sequence[bool],
        raised: Raised,
    ) -> None:
        self._frames = tuple(reversed(frames))
        self._was_app = list(reversed(are_app))
        self._is_app = list(self._was_app)
        self._category = [""] * len(frames)
        self._app_rule: list[RuleLine | None] = [None] * len(frames)
        self._category_rule: list[RuleLine | None] = [None] * len(frames)
        self._raised = raised
        self._rules = rules
        candidates: dict[int, list[int]] = {}
        for at, frame in enumerate(self._frames):
            for number in _candidates(rules, frame):
                candidates.setdefault(number, []).append(at)
        self._candidates = [
            (rules.stack[number], candidates[number])
            for number in sorted(candidates)
            if self._has_cause(rules.stack[number].matchers)
        ]

    def _has_cause(self, matchers: Matchers) -> bool:
        return all(matcher.matches_cause(self._raised) for matcher in matchers.cause)

    def _passes(self, matchers: Sequence[Matcher], at: int) -> bool:
        frame, category, is_app = self._frames[at], self._category[at], self._is_app[at]
        return all(matcher.matches_frame(frame, category, is_app=is_app) for matcher in matchers)

    def _matching(self, matchers: Matchers, places: Sequence[int]) -> list[int]:
        """Return the places whose frames match now, outermost first."""
        own, caller, callee = matchers.own, matchers.caller, matchers.callee
        last = len(self._frames) - 1
        return [
            at
            for at in places
            if self._passes(own, at)
            and (not caller or (at > 0 and self._passes(caller, at - 1)))
            and (not callee or (at < last and self._passes(callee, at + 1)))
        ]

    def modify(self) -> None:
        """Apply the actions that change what matchers see."""
        for rule, places in self._candidates:
            if not rule.is_modifier:
                continue
            matching = self._matching(rule.matchers, places)
            for at, is_set in self._writes(rule, "app", matching):
                self._is_app[at] = is_set
                self._app_rule[at] = rule.where
            if rule.category is not None:
                for at in matching:
                    self._category[at] = rule.category
                    self._category_rule[at] = rule.where

    def applied(self) -> AppliedRules:
        """Choose frames, and the rule for the fingerprint."""
        count = len(self._frames)
        flags: list[bool | None] = [None] * count
        flag_rule: list[RuleLine | None] = [None] * count
        limit: Limit | None = None
        least = 0
        for rule, places in self._candidates:
            matching = self._matching(rule.matchers, places) if rule.is_chooser else []
            if not matching:
                continue
            for at, is_set in self._writes(rule, "group", matching):
                flags[at] = is_set
                flag_rule[at] = rule.where
            if rule.max_frames is not None:
                limit = Limit(rule.max_frames, rule.where) if rule.max_frames else None
            if rule.min_frames is not None:
                least = rule.min_frames
        mine = [
            flag if flag is not None else app for flag, app in zip(flags, self._is_app, strict=True)
        ]
        either = [flag is not False for flag in flags]
        enough = max(least, 1)
        has_app = any(self._is_app)
        without_frames = False
        if has_app and sum(mine) >= enough:
            counts = mine
        elif sum(either) >= enough:
            has_app, counts = False, either
        else:  # a fingerprint of nothing would make all such reports one group
            counts = list(self._is_app) if has_app else [True] * count
            without_frames = bool(count)
        verdicts = [
            Verdict(*row)
            for row in zip(
                self._is_app,
                counts,
                self._category,
                self._app_rule,
                flag_rule,
                self._category_rule,
                strict=True,
            )
        ]
        return AppliedRules(
            tuple(reversed(verdicts)), has_app, limit, without_frames, self._named()
        )

    def _named(self) -> FingerprintRule | None:
        places = range(len(self._frames))
        for rule in self._rules.fingerprints:
            matchers = rule.matchers
            if self._has_cause(matchers) and (
                not matchers.of_frames or self._matching(matchers, places)
            ):
                return rule
        return None

    def _writes(self, rule: StackRule, flag: str, matching: list[int]) -> list[tuple[int, bool]]:
        """Return the frames that a rule marks, with the value.

        Matching frames act from the outermost on, each with the actions in their order, and the
        last one wins.
        """
        of_reach = {one.reach: (at, one) for at, one in enumerate(rule.flags) if one.flag == flag}
        actions = tuple(of_reach.values())
        if not actions or not matching:
            return []
        if len(actions) == 1 and actions[0][1].reach is Reach.ITSELF:
            return [(at, actions[0][1].is_set) for at in matching]
        writes: list[tuple[int, bool]] = []
        own = set(matching)
        last = matching[-1]
        before = -1
        for at in range(len(self._frames)):
            best: tuple[int, int] | None = None
            value = False
            for order, action in actions:
                match action.reach:
                    case Reach.ITSELF:
                        actor = at if at in own else -1
                    case Reach.INWARDS:
                        actor = before
                    case _:
                        actor = last if last > at else -1
                if actor >= 0 and (best is None or (actor, order) > best):
                    best, value = (actor, order), action.is_set
            if best is not None:
                writes.append((at, value))
            if at in own:
                before = at
        return writes


@lru_cache(1 << 15)
def _candidates(rules: GroupingRules, frame: RuleFrame) -> tuple[int, ...]:
    """Return the rules that the frame alone does not exclude; their other matchers can change."""
    by_function, others = _index(rules)
    numbers = {*others}.union(*(by_function.get(name, ()) for name in frame.functions))
    return tuple(
        number
        for number in sorted(numbers)
        if all(
            matcher.field.is_changing or matcher.matches_frame(frame, "", is_app=False)
            for matcher in rules.stack[number].matchers.own
        )
    )


@lru_cache(16)
def _index(rules: GroupingRules) -> tuple[dict[str, list[int]], tuple[int, ...]]:
    """Return the rules that match a few functions, by these, and the other rules."""
    by_function: dict[str, list[int]] = {}
    others: list[int] = []
    for number, rule in enumerate(rules.stack):
        names = next(
            (
                each.glob.exact
                for each in rule.matchers.own
                if each.field is Field.FUNCTION and not each.is_negated and each.glob is not None
            ),
            None,
        )
        if names is None:
            others.append(number)
        for name in names or ():
            by_function.setdefault(name, []).append(number)
    return by_function, tuple(others)
