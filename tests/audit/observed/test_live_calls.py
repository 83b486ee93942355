"""Calls of one live process, from raw addresses to findings."""

import random

import numpy as np
import pytest

from machtrace.audit.observed.consent import ConsentMarker, MarkerKind, consent_states
from machtrace.audit.observed.live_calls import (
    MISSING,
    AddressTree,
    LoadedImage,
    StackCollector,
    live_calls,
    located,
    tree_of_addresses,
)
from machtrace.audit.observed.process_calls import DeadWatch
from machtrace.audit.observed.recording import RecordingBuilder
from machtrace.audit.observed.report import judge_calls
from machtrace.audit.rules import load_rules
from machtrace.audit.trail.calls import CallFlag, Consent, Process
from machtrace.audit.trail.libraries import CodeMap
from machtrace.audit.trail.stacks import NO_IMAGE
from machtrace.errors import ArgumentError

RULES = """
schema = 1
name = "test"
policies = ["before-consent: fault"]
[[rules]]
watch = "observed"
category = "Contacts"
[[rules]]
watch = "not_there"
category = "Contacts"
"""
IMAGES = (
    LoadedImage("/opt/libone.so", "aa" * 20, 0x7000, 0x8000),
    LoadedImage("/opt/app", "bb" * 20, 0x1000, 0x2000, is_program=True),
    LoadedImage("/usr/lib/libc.so.6", "cc" * 20, 0x8000, 0x9000),
)


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES, encoding="utf-8")
    return load_rules(str(path))


def recording_of(rules, stacks, *, late=False, watches=("observed",), rule=None, **more):
    """Return the recording of one call for each stack, a second apart."""
    collector = StackCollector()
    numbers = np.array([collector.add(stack) for stack in stacks], np.int32)
    tree, nodes = collector.tree()
    builder = RecordingBuilder(rules)
    builder.add(
        live_calls(
            "gdb://here:1",
            Process(run="1", pid=7, started=0, attached_late=late, from_start=not late),
            rules,
            watches=watches,
            images=IMAGES,
            tree=tree,
            columns={
                "time": np.arange(1, len(stacks) + 1) * 10**9,
                "thread": np.full(len(stacks), 5),
                "rule": np.zeros(len(stacks), np.int32) if rule is None else np.array(rule),
                "stack": nodes[numbers],
            },
            **more,
        )
    )
    return builder.recording()


def stacks_of(recording):
    """Return the frames of each call."""
    tree = recording.trail.stacks
    return [[tuple(frame) for frame in tree.frames(node)] for node in recording.trail.calls.stack]


def test_stacks_are_those_of_the_process(rules):
    """Equal tops, recursion, permutations and a stack without frames stay apart."""
    choice = random.Random(5)  # noqa: S311 - no secret
    pool = [0x1010, 0x1020, 0x7010, 0x8010]
    stacks = [[choice.choice(pool) for _ in range(choice.randrange(6))] for _ in range(500)]
    recording = recording_of(rules, stacks)
    places = {0x1010: (1, 0x10), 0x1020: (1, 0x20), 0x7010: (0, 0x10), 0x8010: (2, 0x10)}
    assert stacks_of(recording) == [[places[each] for each in stack] for stack in stacks]
    suffixes = {tuple(stack[at:]) for stack in stacks for at in range(len(stack))}
    assert len(recording.trail.stacks) == 1 + len(suffixes)


def test_a_return_address_behind_an_image_is_in_it():
    tree, _ = tree_of_addresses(
        np.array([0x8000, 0x7000, 0x2000, 0x1001, 0x9001, 0], np.uint64), np.array([6])
    )
    tree = located(tree, IMAGES)
    frames = [tuple(frame) for frame in tree.frames(len(tree) - 1)]
    assert frames[0] == (0, 0x1000), "the last instruction of libone is a call"
    assert frames[1:] == [
        (NO_IMAGE, 0x7000),
        (1, 0x1000),
        (1, 1),
        (NO_IMAGE, 0x9001),
        (NO_IMAGE, 0),
    ]


def test_calls_without_outer_frames_are_marked_and_no_address_is_another_mark(rules):
    recording = recording_of(rules, [[0x7010, MISSING], [0x7010], [0x7010, 2], [0x7010, 3]])
    cut = recording.trail.calls.has(CallFlag.OUTER_MISSING).tolist()
    assert cut == [True, False, False, False]
    assert stacks_of(recording)[2:] == [[(0, 0x10), (NO_IMAGE, 0)]] * 2


def test_a_late_attachment_cannot_be_judged(rules):
    recording = recording_of(rules, [[0x7010, 0x1010]], late=True)
    report = judge_calls(recording, rules, CodeMap(recording.trail.images))
    assert any("attached while the process ran" in line for line in report.unjudged)
    recording = recording_of(rules, [[0x7010, 0x1010]])
    report = judge_calls(
        recording, rules, CodeMap(recording.trail.images), marker=ConsentMarker(MarkerKind.NEVER)
    )
    assert report.unjudged == ()
    assert [finding.identity for finding in report.findings] == ["before-consent:libone:observed"]


def test_consent_is_the_first_call_of_what_no_rule_names(rules):
    stack = [0x7010, 0x1010]
    marker = ConsentMarker(MarkerKind.CALL, "agree")
    watches, rule = ("observed", "agree"), [0, 1, 0, 1]
    for late in (False, True):
        recording = recording_of(rules, [stack] * 4, watches=watches, rule=rule, late=late)
        assert consent_states(recording, marker).tolist() == [Consent.BEFORE, Consent.GRANTED]
        assert recording.unruled == ()
    recording = recording_of(rules, [stack], watches=watches, late=True)
    assert consent_states(recording, marker).tolist() == [Consent.UNKNOWN]
    recording = recording_of(rules, [stack], watches=watches)
    assert consent_states(recording, marker).tolist() == [Consent.BEFORE]


def test_dead_rules_problems_and_costs_are_reported(rules):
    dead = DeadWatch("not_there", "nothing defines it", is_blind=False)
    recording = recording_of(rules, [[0x7010]], dead=[dead], problems=["1 lost"], costs=["2 stops"])
    assert [(each.watch, each.reason) for each in recording.dead] == [dead[:2]]
    assert recording.unwatched == 0
    assert recording.problems == ("gdb://here:1: 1 lost",)
    assert recording.costs == ("gdb://here:1: 2 stops",)


@pytest.mark.parametrize("rule", [[1], [-1]])
def test_columns_that_refer_to_nothing_are_refused(rules, rule):
    with pytest.raises(ArgumentError, match="rule that is not listed"):
        recording_of(rules, [[0x7010]], rule=rule)
    tree = AddressTree(np.array([0, 2, 1], np.int32), np.zeros(3, np.uint64))
    with pytest.raises(ArgumentError, match="precedes its caller"):
        located(tree, IMAGES).check(len(IMAGES))


def test_a_process_without_calls_is_a_recording(rules):
    recording = recording_of(rules, [])
    assert len(recording.trail.calls) == 0
    assert judge_calls(recording, rules, CodeMap(recording.trail.images)).findings == ()
