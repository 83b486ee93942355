"""Ticks: on time, or lost."""

from machtrace.sampling.sampler import TickClock

MS = 1_000_000


class Time:
    """A clock that goes on when something sleeps, or works."""

    def __init__(self):
        self.now = 5_000 * MS
        self.slept = []

    def __call__(self):
        """Nanoseconds."""
        return self.now

    def sleep(self, seconds):
        """Let so much time pass."""
        self.slept.append(seconds)
        self.now += round(seconds * 1e9)


def ticks(time, until, work):
    """When ticks came, in milliseconds, where the work of each takes so long; and those lost."""
    clock = TickClock(10 * MS, time, time.sleep)
    found = []
    work = iter(work)
    while clock.wait(until * MS, lambda: False):
        found.append(clock.elapsed_ns // MS)
        time.now += next(work, 0) * MS
    return found, clock.lost


def test_ticks_are_whole_multiples_of_the_interval():
    """However long the work between them takes, if only it is done in time."""
    assert ([0, 10, 20, 30], 0) == ticks(Time(), 40, [1, 9, 3])


def test_what_cannot_be_kept_is_lost():
    """It is not made up for: the next one comes when it is due, or at once and late."""
    assert ([0, 25, 30], 1) == ticks(Time(), 40, [25, 0, 0])


def test_the_last_ticks_can_be_lost_too():
    """The work of the second takes more than the rest of the time."""
    assert ([0, 10], 2) == ticks(Time(), 40, [0, 100])


def test_no_tick_comes_at_the_end_or_after_it():
    """So many as there are whole intervals begun."""
    assert ([0, 10, 20], 0) == ticks(Time(), 25, [])
    assert ([0], 0) == ticks(Time(), 1, [])


def test_long_waits_can_be_ended():
    """At an interval of ten seconds one can stop after a fraction of one."""
    time = Time()
    clock = TickClock(10_000 * MS, time, time.sleep)
    assert clock.wait(20_000 * MS, lambda: False)
    assert not clock.wait(20_000 * MS, lambda: len(time.slept) >= 3)
    assert max(time.slept) <= 0.05
