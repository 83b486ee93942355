"""Profiles of Sentry: samples of shared stacks become a tree of each thread."""

from __future__ import annotations

import json

import pytest

from machtrace.model.report import Adjustment, ReportKind
from machtrace.reports.readers import read_source
from machtrace.reports.sentry import profile
from machtrace.reports.source import ReportSource
from tests.support.reports.sentry import SENTRY_CHUNK, SENTRY_PROFILE


def read(data: bytes):
    (report,) = read_source(ReportSource("profile.json", data)).reports
    assert report.kind is ReportKind.SENTRY
    return report


def counts(tree):
    return [(node.parent, node.samples, node.frame.offset) for node in tree.nodes]


def test_a_profile():
    report = read(SENTRY_PROFILE)
    main, other = report.trees
    assert (main.name, main.thread, main.count, main.is_attributed) == ("main", 259, 3, True)
    assert (other.name, other.count, other.is_attributed) == ("net", 1, False)
    # 0x200 calls 0x1A0, which was running twice, and had called into the system once.
    assert counts(main) == [(None, 3, 0x200), (0, 2, 0x1A0), (0, 1, 0x1A0), (2, 1, 0x100)]
    adjustments = [node.frame.adjustment for node in main.nodes]
    assert adjustments == [
        Adjustment.RETURN,
        Adjustment.EXACT,
        Adjustment.RETURN,
        Adjustment.EXACT,
    ]
    assert report.incident.id == "0" * 31 + "1"
    assert (report.process.identifier, report.process.build) == ("org.example.app", "42")
    assert (report.system.model, report.system.os_build) == ("iPhone14,2", "23B85")


def test_a_chunk():
    report = read(SENTRY_CHUNK)
    (tree,) = report.trees
    assert tree.count == 2
    assert report.incident.id == "0" * 31 + "2"


@pytest.mark.parametrize(
    "change",
    [
        {"samples": [{"stack_id": 9, "thread_id": "1"}, {"stack_id": -1}, {"stack_id": "0"}, 1]},
        {"samples": None},
        {"stacks": [1, None]},
        {"stacks": [[0, 99, -1, "x", None]]},
        {"frames": [None, 1, "x"]},
        {"frames": 1},
        {"thread_metadata": [1], "queue_metadata": {"0x1": 1}},
    ],
)
def test_parts_of_unexpected_types(change):
    body = json.loads(SENTRY_PROFILE)
    body["profile"] |= change
    for tree in read(json.dumps(body).encode()).trees:
        assert tree.root_samples <= tree.count


def test_trees_do_not_grow_with_the_square_of_the_input(monkeypatch):
    monkeypatch.setattr(profile, "_MAX_NODES", 1000)
    body = json.loads(SENTRY_PROFILE)
    body["profile"]["stacks"] = [[0] * 100]
    body["profile"]["samples"] = [{"stack_id": 0, "thread_id": str(each)} for each in range(100)]
    report = read(json.dumps(body).encode())
    assert sum(len(tree.nodes) for tree in report.trees) == 1000
    assert any("90 samples are left out" in warning for warning in report.warnings)
