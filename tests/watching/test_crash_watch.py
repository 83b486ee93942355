"""Ends of processes that are not traced."""

from types import SimpleNamespace

import pytest

from machtrace.watching.crash_watch import CrashWatch


@pytest.mark.parametrize(
    ("kills", "was_killed"), [((2, 3), True), ((2, 2), False), ((None, None), False)]
)
def test_a_kill_for_memory_is_known_without_tracing(kills, was_killed):
    counts = iter(kills)
    polls = SimpleNamespace(oom_kills=lambda: next(counts), close=lambda: None)
    watch = CrashWatch(1, polls, is_wanted=False)
    watch.begin()
    assert watch.end() is None
    watch.close()
    assert watch.killed_for_memory is was_killed
