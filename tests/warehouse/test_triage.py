"""Decisions about issues stay when issues get other identifiers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from machtrace.warehouse.triage import (
    Decision,
    State,
    decisions_by_issue,
    moved_issues,
    resolve,
)

VARIANTS = [("crash", bytes([number]), "") for number in range(5)]
GROUPING = st.fixed_dictionaries({key: st.sampled_from("abcdef") for key in VARIANTS})
REPORTS = st.fixed_dictionaries({key: st.integers(1, 9) for key in VARIANTS})


@given(st.lists(st.tuples(GROUPING, REPORTS, st.booleans()), min_size=2, max_size=12))
def test_no_decision_is_lost_in_any_sequence(steps):
    """After each step every decision is about an issue that exists, and about one."""
    before, aliases, decisions = {}, {}, []
    for step, (now, reports, decides) in enumerate(steps):
        aliases = moved_issues(before, now, reports, aliases)
        live = set(now.values())
        assert not live & aliases.keys()
        if decides:
            decisions.append(Decision(min(live), State.RESOLVED, f"step {step}", step))
        by_issue = decisions_by_issue(decisions, aliases)
        assert sum(map(len, by_issue.values())) == len(decisions)
        assert by_issue.keys() <= live, "a decision is about an issue that does not exist"
        before = now


@given(GROUPING, GROUPING, REPORTS)
def test_an_issue_that_moved_as_a_whole_is_followed(before, now, reports):
    aliases = moved_issues(before, now, reports, {})
    for old in set(before.values()):
        targets = {now[key] for key in VARIANTS if before[key] == old}
        if old in set(now.values()):
            assert old not in aliases
        else:
            assert aliases[old] in targets
            if len(targets) == 1:
                assert aliases[old] == min(targets)


def test_most_reports_decide_where_an_issue_goes():
    before = dict.fromkeys(VARIANTS[:3], "old")
    now = {VARIANTS[0]: "small", VARIANTS[1]: "large", VARIANTS[2]: "large"}
    assert moved_issues(before, now, {VARIANTS[0]: 3, VARIANTS[1]: 2, VARIANTS[2]: 2}, {}) == {
        "old": "large"
    }


def test_an_identifier_that_returns_is_no_alias():
    first = {VARIANTS[0]: "a"}
    second = {VARIANTS[0]: "b"}
    aliases = moved_issues(first, second, {}, {})
    assert aliases == {"a": "b"}
    assert moved_issues(second, first, {}, aliases) == {"b": "a"}


def test_the_latest_decision_about_the_issue_itself_holds():
    rows = [
        Decision("old", State.RESOLVED, "by its earlier name", 5),
        Decision("new", State.IGNORED, "first", 1),
        Decision("new", State.OPEN, "second", 2),
    ]
    (first, *_) = decisions_by_issue(rows, {"old": "new"})["new"]
    assert first.note == "second"
    assert resolve("old", {"old": "new"}) == "new"
