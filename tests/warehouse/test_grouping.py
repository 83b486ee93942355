"""Issues of a warehouse, computed by segment, are those of all its reports at once."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import RulesError
from machtrace.model.report import (
    Incident,
    Report,
    ReportedSystem,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.warehouse.builder import SegmentBuilder, Source
from machtrace.warehouse.grouping.distinct import MAX_COUNT, counts, hashes_of, smallest
from machtrace.warehouse.grouping.segment_stacks import SegmentStacks
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.models import made_frame, made_report, made_thread

FUNCTIONS = ["parse", "load", "draw"]
REPORT = st.tuples(
    st.sampled_from(FUNCTIONS), st.sampled_from(["1", "2"]), st.integers(0, 5), st.booleans()
)


def report(number: int, function: str, build: str, phone: int, *, is_named: bool = True) -> Report:
    """Return a crash; a frame's offset is its function's."""
    frames = [made_frame(f"{function}", offset=16 * (FUNCTIONS.index(function) + 1))]
    if not is_named:
        frames = [frame._replace(symbol=None) for frame in frames]
    thread = replace(made_thread(0, [], crashed=True), frames=tuple(frames))
    return replace(
        made_report(thread, version=build),
        incident=Incident(id=f"i{number}", time=f"2021-11-{phone + 1:02} 10:00:00.000 +0000"),
        system=ReportedSystem(crash_reporter_key=f"phone {phone}", os_name="iOS 18"),
    )


def facts(warehouse: Warehouse, where: str = "true") -> list[tuple[object, ...]]:
    rows = []
    for issue in warehouse.issues(where):
        stacks = tuple((variant.stack, variant.reports) for variant in issue.variants)
        own = (issue.id, issue.reports, issue.devices, issue.builds, issue.first, issue.last)
        rows.append((*own, stacks))
    return sorted(rows)


@settings(max_examples=12)
@given(st.lists(st.lists(REPORT, min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_issues_do_not_depend_on_how_reports_came(tmp_path_factory, batches, data):
    """In segments, at once, compacted, stored or computed: counts are those of the reports."""
    folder = tmp_path_factory.mktemp("w")
    number = 0
    with Warehouse.create(folder / "parts") as parts, Warehouse.create(folder / "whole") as whole:
        every = []
        for batch in batches:
            made = []
            for function, build, phone, is_named in batch:
                number += 1
                made.append(report(number, function, build, phone, is_named=is_named))
            every += made
            parts.add(made)
            if data.draw(st.booleans()):
                parts.regroup()
        whole.add(every)
        expected = facts(whole)
        assert facts(parts) == expected
        parts.regroup()
        assert facts(parts) == expected
        for where in ("build = '1'", "device = 'phone 1'"):
            assert [fact[:3] for fact in facts(parts, where)] == [
                fact[:3] for fact in facts(whole, where)
            ]
        parts.compact()
        parts.regroup()
        assert facts(parts) == expected
    named = {function for batch in batches for function, _, _, is_named in batch if is_named}
    count = Counter(function for batch in batches for function, *_ in batch)
    phones = defaultdict(set)
    for batch in batches:
        for function, _, phone, _ in batch:
            phones[function].add(phone)
    titles = {
        function: (count[function], len(phones[function]))
        for function in count
        if function in named
    }
    with Warehouse(folder / "parts") as parts:
        shown = {issue.title.partition(" ")[0]: issue for issue in parts.issues()}
        assert {
            function: (shown[function].reports, shown[function].devices) for function in titles
        } == titles


def test_a_decision_stays_when_names_arrive(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.add([report(1, "parse", "1", 1, is_named=False)])
        warehouse.regroup()
        (old,) = warehouse.issues()
        assert old.is_build_sensitive
        warehouse.decide(old.id, State.IGNORED, "known")
        warehouse.add([report(2, "parse", "1", 2)])
        warehouse.regroup()
        (issue,) = warehouse.issues()
        assert (issue.reports, issue.title) == (2, "parse (Demo)")
        assert warehouse.present_issue(old.id) == issue.id
        (decision,) = warehouse.decisions()[issue.id]
        assert decision.note == "known"
        assert warehouse.issues_of_stack(issue.variants[0].stack) == [issue.id]


def test_groups_that_are_lost_or_damaged_are_computed_again(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.add([report(1, "parse", "1", 1)])
        warehouse.regroup()
        expected = facts(warehouse)
        (file,) = (tmp_path / "w" / "groups").glob("*/counts.parquet")
        file.write_bytes(b"damaged")
        assert facts(warehouse) == expected
        file.unlink()
        warehouse.regroup()
        assert facts(warehouse) == expected


def test_calls_of_a_recording_are_issues_by_function_and_caller(tmp_path):
    frames = [
        made_frame("system:read", offset=1),
        made_frame("system:wrapper", offset=2),
        made_frame("kit:collect", offset=3),
        made_frame("app:main", offset=4),
    ]
    nodes = [
        SampledNode(at - 1 if at else None, 3, frame) for at, frame in enumerate(reversed(frames))
    ]
    made = made_report(trees=[SampledTree(nodes=tuple(nodes))], exception=None)
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.add([replace(made, kind=ReportKind.SPOOL)])
        (issue,) = warehouse.issues()
        assert issue.title == "read from collect (Kit)"
        assert [frame.name for frame in issue.fingerprint.frames] == ["read", "collect"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000)), max_size=300), st.integers(1, 5)
)
def test_distinct_devices_of_parts_are_those_of_the_whole(rows, parts):
    group = np.array([each for each, _ in rows], np.int64)
    value = hashes_of(str(each) for _, each in rows)
    joined = [smallest(group[at::parts], value[at::parts]) for at in range(parts)]
    sketch = smallest(*(np.concatenate(each) for each in zip(*joined, strict=True)))
    expected = [len({each for own, each in rows if own == number}) for number in range(4)]
    assert counts(*sketch, 4).tolist() == expected


def test_more_devices_than_a_sketch_has_are_estimated():
    value = hashes_of(str(each) for each in range(100_000))
    (count,) = counts(*smallest(np.zeros(len(value), np.int64), value), 1).tolist()
    assert count == pytest.approx(100_000, rel=4 / MAX_COUNT**0.5)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(REPORT, min_size=1, max_size=3)),
        st.tuples(st.just("rules"), st.sampled_from(["", "function:parse -group", None])),
        st.tuples(st.just("rules"), st.just("type:EXC_CRASH -> {{ default }} crash")),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("decide"), st.integers(0, 5)),
    ),
    min_size=2,
    max_size=9,
)
SEQUENCES = int(os.environ.get("MACHTRACE_SEQUENCES", "10"))


@settings(max_examples=SEQUENCES)
@given(STEPS)
def test_no_decision_is_lost_when_names_and_rules_change(tmp_path_factory, steps):
    """After each step every decision is about an issue that exists; by all earlier identifiers."""
    decided, number = [], 0
    with Warehouse.create(tmp_path_factory.mktemp("w") / "w") as warehouse:
        for step, argument in steps:
            match step:
                case "add":
                    made = []
                    for function, build, phone, is_named in argument:
                        number += 1
                        made.append(report(number, function, build, phone, is_named=is_named))
                    warehouse.add(made)
                    warehouse.regroup()
                case "rules":
                    trial = warehouse.try_rules(argument)
                    warehouse.set_rules(argument)
                    assert len(warehouse.issues()) == trial.after
                case "compact":
                    warehouse.compact()
                    warehouse.regroup()
                case _:
                    issues = warehouse.issues()
                    if issues:
                        issue = issues[argument % len(issues)]
                        warehouse.decide(issue.id, State.RESOLVED, f"{len(decided)}")
                        decided.append(issue.id)
            live = {issue.id for issue in warehouse.issues()}
            decisions = warehouse.decisions()
            assert decisions.keys() <= live
            assert sum(map(len, decisions.values())) == len(decided)
            assert {warehouse.present_issue(each) for each in decided} <= live
            assert sum(each.reports for each in warehouse.issues()) == number


def test_rules_are_tried_before_they_are_set(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.add([report(1, "parse", "1", 1), report(2, "load", "1", 2)])
        warehouse.regroup()
        assert warehouse.groups.rules is None
        before = {issue.id for issue in warehouse.issues()}
        text = "type:* -> all"
        trial = warehouse.try_rules(text)
        assert (trial.before, trial.after, trial.split) == (2, 1, {})
        assert [sorted(before)] == list(trial.merged.values())
        assert {issue.id for issue in warehouse.issues()} == before
        warehouse.set_rules(text)
        (issue,) = warehouse.issues()
        assert {warehouse.present_issue(each) for each in before} == {issue.id}
        _, frames = warehouse.explain(next(iter(before)))
        assert frames[0].name in {"parse", "load"}
        with pytest.raises(RulesError, match=r"grouping\.rules:1"):
            warehouse.set_rules("function:x +nothing")
        assert warehouse.groups.rules.text == text


def test_the_quick_hash_is_that_of_the_fingerprint():
    """With and without recursion, names, frames of the app, and a wait."""
    frames = {
        "app": made_frame("main", offset=1),
        "kit": made_frame("kit:draw", offset=2),
        "system": made_frame("system:wait", offset=3),
        "unnamed": made_frame("x", offset=4)._replace(symbol=None),
    }
    choices = [[], ["app"], ["system"], ["app", "app", "system"], ["unnamed", "kit", "app"]]
    choices += [["app", "kit"] * 3, ["system", "unnamed"], [*frames]]
    builder = SegmentBuilder()
    for number, each in enumerate(choices):
        thread = replace(made_thread(0, [], crashed=True), frames=tuple(map(frames.get, each)))
        builder.add(made_report(thread), Source(received=1, number=number))
    segment = builder.build()
    stacks = SegmentStacks(segment)
    for node in segment.stacks["node"].to_pylist():
        for kind, cause in (("crash", ""), ("hang", "mutex"), ("cpu", ""), ("audit", "")):
            made = stacks.fingerprint(node, kind, cause)
            assert stacks.hash_of(node, kind, cause) == (made.hash, made.is_build_sensitive)
