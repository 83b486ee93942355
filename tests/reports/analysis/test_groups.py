"""Differences between two sets."""

from dataclasses import replace

from machtrace.model.report import Incident, ReportKind
from machtrace.reports.analysis.function_costs import function_costs
from machtrace.reports.analysis.groups import (
    Change,
    function_differences,
    group_differences,
    report_groups,
)
from machtrace.reports.stacks.profiles import profile_of
from tests.support.reports.models import made_report, made_thread, made_tree


def crash(name):
    """Return a report that crashed in a function."""
    return made_report(made_thread(0, [name, "main"], crashed=True))


def test_groups_come_go_and_change():
    """They are compared by their shares of the reports, since sets differ in size."""
    before = [crash("old"), crash("often"), crash("rare"), crash("same")]
    after = [crash("new"), *[crash("often")] * 5, crash("rare"), crash("same"), crash("same")]
    changes = {
        change.group.fingerprint.frames[0].name: (change.change, change.before, change.after)
        for change in group_differences(before, after)
    }
    assert changes["new"] == (Change.NEW, 0, 1)
    assert changes["old"] == (Change.GONE, 1, 0)
    assert changes["often"] == (Change.MORE, 1, 5)
    assert changes["rare"] == (Change.LESS, 1, 1)
    assert changes["same"] == (Change.LESS, 1, 2)
    same = group_differences([crash("a")], [crash("a"), crash("a")])
    assert [change.change for change in same] == [Change.SAME]


def test_new_groups_come_first():
    """Gone groups follow, then changed ones."""
    differences = group_differences([crash("old"), crash("a")], [crash("a"), crash("new")])
    assert [difference.change for difference in differences] == [
        Change.NEW,
        Change.GONE,
        Change.SAME,
    ]


def test_functions_are_compared_by_share():
    """Counts of both, and shares of each set's own stacks."""
    before = function_costs(
        [
            profile_of(
                made_report(
                    trees=[
                        made_tree([(None, 100, "main"), (0, 20, "draw"), (0, 80, "read")], thread=1)
                    ]
                )
            )
        ]
    )
    after = function_costs(
        [
            profile_of(
                made_report(
                    trees=[
                        made_tree([(None, 10, "main"), (0, 6, "draw"), (0, 4, "copy")], thread=1)
                    ]
                )
            )
        ]
    )
    first, *_ = differences = function_differences(before, after)
    assert first.function.name == "read"
    assert (first.own_before, first.own_after) == (80, 0)
    assert first.own_change == -0.8
    changes = {
        difference.function.name: round(difference.own_change, 3) for difference in differences
    }
    assert changes == {"read": -0.8, "draw": 0.4, "copy": 0.4, "main": 0.0}


def test_nothing_against_nothing():
    """Empty sets have no shares."""
    assert group_differences([], []) == ()
    assert function_differences(function_costs([]), function_costs([])) == ()


def test_the_files_of_one_incident_count_once() -> None:
    """Mac's .ips and its text have one identifier, in either case; other writers' ids do not."""
    first, second = (
        made_report(made_thread(0, ["fail", "main"])),
        made_report(made_thread(0, ["other", "main"])),
    )
    incident = Incident(id="1B8BEE85-7C25-4B6F-8EFA-6A4A2C3C0001")
    ips = replace(first, kind=ReportKind.APPLE_IPS, incident=incident)
    text = replace(
        second,
        kind=ReportKind.APPLE_CRASH,
        incident=Incident(id="1b8bee85-7c25-4b6f-8efa-6a4a2c3c0001"),
    )
    (group,) = report_groups([ips, text])
    assert (group.count, group.reports) == (1, (0, 1))
    assert sum(count for _, count in group.versions) == 1
    other = replace(ips, kind=ReportKind.KSCRASH)
    assert [group.count for group in report_groups([other, other])] == [2]
