"""Own and total samples of functions."""

from hypothesis import given
from hypothesis import strategies as st

from machtrace.reports.analysis.function_costs import function_costs
from machtrace.reports.stacks.profiles import profile_of
from tests.support.reports.models import (
    Seen,
    function,
    made_report,
    made_thread,
    made_tree,
    profile,
)


def costs(*profiles):
    """Return own and total by name."""
    totals = function_costs(profiles)
    return {one.function.name: (one.own, one.total) for one in totals.functions}


def test_own_and_total_of_a_report_s_threads_and_trees():
    """A thread is one stack; a tree's counts are the report's."""
    report = made_report(
        made_thread(0, ["system:abort", "run", "main"]),
        trees=[made_tree([(None, 9, "main"), (0, 4, "run")], thread=5)],
    )
    assert costs(profile_of(report)) == {"main": (5, 10), "run": (4, 5), "abort": (1, 1)}


def test_recursion_counts_once_a_stack():
    """A stack with a function in it ten times is one stack."""
    report = made_report(made_thread(0, ["leaf", *["walk", "visit"] * 10, "main"]))
    assert costs(profile_of(report)) == {
        "leaf": (1, 1),
        "walk": (0, 1),
        "visit": (0, 1),
        "main": (0, 1),
    }


def test_a_tree_as_deep_as_a_stack_can_be():
    """Twenty thousand calls of one function in one another."""
    rows = [(at - 1 if at else None, 3, "walk") for at in range(20_000)]
    assert costs(profile_of(made_report(trees=[made_tree(rows)]))) == {"walk": (3, 3)}


def test_several_profiles_are_added():
    """Functions are the same by name and image, wherever they were loaded."""
    report = profile_of(made_report(made_thread(0, ["run", "main"])))
    assert costs(report, report) == {"run": (2, 2), "main": (0, 2)}


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5))))
def test_costs_equal_counting_stack_by_stack(stacks):
    """The oracle counts each stack alone."""
    frames = [function(f"f{number}", offset=0x100 * (1 + number)) for number in range(4)]
    seen = [Seen(0, [frames[number] for number in stack], count) for stack, count in stacks]
    own, total = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    for stack, count in stacks:
        own[stack[-1]] += count
        for number in set(stack):
            total[number] += count
    expected = {f"f{number}": (own[number], total[number]) for number in range(4) if total[number]}
    assert costs(profile(seen)) == expected
