"""Ticks that come on time, and ticks that are lost."""

from machtrace.sampling.sampler import TickClock

MS = 1_000_000


class Time:
    """A clock that advances during sleep and work."""

    def __init__(self):
        self.now = 5_000 * MS
        self.slept = []

    def __call__(self):
        """Return the time in nanoseconds."""
        return self.now

    def sleep(self, seconds):
        """Advance by ``seconds``."""
        self.slept.append(seconds)
        self.now += round(seconds * 1e9)


def ticks(time, until, work):
    """Return the milliseconds of ticks and the number of lost ones; ``work``: milliseconds each."""
    clock = TickClock(10 * MS, time, time.sleep)
    times = []
    work = iter(work)
    while clock.wait(until * MS, lambda: False):
        times.append(clock.elapsed_ns // MS)
        time.now += next(work, 0) * MS
    return times, clock.lost


def test_ticks_are_whole_multiples_of_the_interval():
    """The work between them ends before the next tick is due."""
    assert ticks(Time(), 40, [1, 9, 3]) == ([0, 10, 20, 30], 0)


def test_a_missed_tick_is_lost():
    """The next one comes when it is due, or at once if that has passed."""
    assert ticks(Time(), 40, [25, 0, 0]) == ([0, 25, 30], 1)


def test_the_last_ticks_can_be_lost_too():
    """The work after the second tick takes more than the rest of the time."""
    assert ticks(Time(), 40, [0, 100]) == ([0, 10], 2)


def test_no_tick_comes_at_the_end_or_after_it():
    """Each interval that begins has one tick."""
    assert ticks(Time(), 25, []) == ([0, 10, 20], 0)
    assert ticks(Time(), 1, []) == ([0], 0)


def test_long_waits_can_be_ended():
    """An interval of ten seconds can be left after a fraction of a second."""
    time = Time()
    clock = TickClock(10_000 * MS, time, time.sleep)
    assert clock.wait(20_000 * MS, lambda: False)
    assert not clock.wait(20_000 * MS, lambda: len(time.slept) >= 3)
    assert max(time.slept) <= 0.05
