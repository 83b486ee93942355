"""A function between its callers and callees, and its share by build."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from machtrace.warehouse.graphs.butterfly import butterfly
from machtrace.warehouse.graphs.hangs import stored_hangs
from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.fleet import PROBLEMS, START, report
from tests.support.reports.samples import METRICKIT
from tests.warehouse.test_function_tree import paths


@pytest.fixture
def warehouse(tmp_path):
    """Ten crashes of two builds: all of build 811 and a quarter of 812 are in Settings."""
    with Warehouse.create(tmp_path / "w") as made:
        kinds = [(PROBLEMS[4], "811")] * 2 + [(PROBLEMS[4], "812")] * 2 + [(PROBLEMS[0], "812")] * 6
        bodies = [
            report(problem, build, number=at, time=START - timedelta(days=1000 - at), threads=0)
            for at, (problem, build) in enumerate(kinds)
        ]
        made.receive([("x.ips", body) for body in bodies])
        made.flush()
        yield made


SUBJECT = "role = 'subject'"
NAME = "Settings.synchronize()"


def test_callers_and_callees(warehouse):
    made = butterfly(warehouse, NAME, where=SUBJECT)
    assert (made.whole, made.total, made.own, made.images) == (10, 4, 0, ("Wanderer",))
    (callees,) = paths(made.callees)
    assert callees == (NAME, "_pthread_mutex_firstfit_lock_wait", "__psynch_mutexwait")
    (callers,) = paths(made.callers)
    assert callers[1] == "AppDelegate.applicationWillResignActive(_:)"
    assert callers[-1] == "main"
    assert paths(made.callers) == Counter({callers: 4})
    assert {(place.file, place.line) for place in made.places} == {("Settings.swift", 129)}


def test_builds_in_the_order_in_which_they_appeared(warehouse):
    made = butterfly(warehouse, NAME, where=SUBJECT)
    assert [(build.build, build.weight, build.whole) for build in made.builds] == [
        ("811", 2, 2),
        ("812", 2, 8),
    ]


def test_functions_that_do_not_exist(warehouse):
    for where in (SUBJECT, "false"):
        made = butterfly(warehouse, "nothing", where=where)
        assert (made.total, made.images, len(made.callers.tree)) == (0, (), 1)
    assert butterfly(warehouse, NAME, "UIKitCore").total == 0


def test_hangs_in_the_order_of_their_times(warehouse):
    warehouse.receive([("hang", METRICKIT)])
    warehouse.flush()
    (hang,) = stored_hangs(warehouse)
    assert (hang.kind, hang.duration, hang.image) == ("hang", 20_000_000_000, "App")
    assert stored_hangs(warehouse, "build = 'none'") == []
