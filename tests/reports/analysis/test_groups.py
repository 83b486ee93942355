"""Differences between two sets."""

from machtrace.reports.analysis.function_costs import function_costs
from machtrace.reports.analysis.groups import Change, function_differences, group_differences
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
    assert [one.change for one in differences] == [Change.NEW, Change.GONE, Change.SAME]


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
    changes = {one.function.name: round(one.own_change, 3) for one in differences}
    assert changes == {"read": -0.8, "draw": 0.4, "copy": 0.4, "main": 0.0}


def test_nothing_against_nothing():
    """Empty sets have no shares."""
    assert group_differences([], []) == ()
    assert function_differences(function_costs([]), function_costs([])) == ()
