"""Folded recursion: each repetition appears once, and nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from machtrace.reports.analysis.recursion import Fold, folds


def unfolded(stack, parts):
    """Rebuild the stack from the first period of each fold."""
    return [
        one for fold in parts for one in stack[fold.first : fold.first + fold.period] * fold.times
    ]


def test_a_function_that_calls_itself():
    """One frame, many times over, with what is around it left as it is."""
    assert (Fold(0, 1, 1), Fold(1, 1, 5), Fold(6, 2, 1)) == folds(list("xaaaaamz"))


def test_functions_that_call_one_another():
    """A period of several frames; what remains of a last round stays."""
    assert (Fold(0, 3, 4), Fold(12, 2, 1)) == folds(list("abcabcabcabcab"))


def test_two_repetitions_are_recursion_only_on_request():
    """Two frames of one function are as often two different calls."""
    assert (Fold(0, 4, 1),) == folds(list("abab"))
    assert (Fold(0, 2, 2),) == folds(list("abab"), least_times=2)


def test_recursion_within_recursion_is_the_outer_one():
    """The sequence that covers most is taken."""
    assert (Fold(0, 3, 3),) == folds(list("aabaabaab"))


def test_a_cycle_beyond_the_longest_period_is_not_folded():
    """The bound is what keeps the time linear."""
    circle = list(range(10)) * 3
    assert (Fold(0, 30, 1),) == folds(circle, longest_period=9)
    assert (Fold(0, 10, 3),) == folds(circle, longest_period=10)


def test_a_deep_stack():
    """A stack overflow of two functions that call one another half a million times."""
    assert folds([0, 1] * 250_000) == (Fold(0, 2, 250_000),)


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 6), st.integers(2, 4))
def test_all_frames_are_in_the_folds(stack, longest, least):
    """In order, each once, and what is called repeated is."""
    parts = folds(stack, longest_period=longest, least_times=least)
    assert stack == unfolded(stack, parts)
    at = 0
    for fold in parts:
        assert fold.first == at
        assert fold.times == 1 or (fold.times >= least and fold.period <= longest)
        at += fold.length
    assert len(stack) == at
